"""Runs all benchmarks, each in a process of its own, and exits with 1 when any misses its bar."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: In order of importance.
BENCHMARKS = (
    "hooks", "heartbeats", "jobs", "in_flight", "fairness", "pays_off", "policy_pass", "resize", "window",
    "adopt", "pool", "adapt",
    "simulator", "panel", "what_if", "calibration", "consent", "placement", "placement_live",
    "power", "corridor", "corridor_live", "corridor_cost", "coupling", "io_tokens",
    "checkpoint", "redundancy",
    "host_memory", "versions", "synthetic", "trends", "full_memory", "killed",
)  # fmt: skip


def run(arguments: list[str]) -> int:
    """Run them with the given command-line arguments; returns the exit code."""
    here = Path(__file__).resolve().parent
    missed = []
    for name in BENCHMARKS:
        done = subprocess.run([sys.executable, str(here / f"{name}.py"), *arguments])
        print(flush=True)
        if done.returncode:
            missed.append(name)
    print(f"missed a bar or broke off: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
