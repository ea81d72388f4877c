"""Run random sequences and print what they did, and what was wrong: ``python tests/tools/stress.py``.

Exits with 1 when anything that must hold did not.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter

from stress_drains import longest
from stress_seeds import make_sequence
from stress_sequences import run

#: What is printed, in this order: title and count.
ROWS = (
    "operations",
    "operations with lending on",
    "graphs",
    "jobs",
    "jobs refused",
    "tasks",
    "starts",
    "passes",
    "rounds that shrink and grow",
    "resizes done",
    "resizes aborted",
    "resizes refused",
    "recalled by a shrink",
    "lent tasks",
    "drains",
    "drains of nodes with lent tasks",
    "of a job, with lent tasks of others alone",
    "drains beside a shuffle",
    "worker losses",
    "restarts",
    "double starts by a shrink",
    "stuck tasks",
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Random sequences of operations on a validating cluster.")
    parser.add_argument("--sequences", type=int, default=500, help="how many (default 500)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first one (default 0)")
    parser.add_argument("--operations", type=int, default=40, help="operations of each (default 40)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--verbose", action="store_true", help="print every operation")
    options = parser.parse_args()
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    counts: Counter[str] = Counter()
    failed: dict[int, list[str]] = {}
    longest_s: dict[str, float] = {}
    duration_s = 0.0
    for seed in range(options.seed, options.seed + options.sequences):
        print(f"\rseed {seed} ", end="", file=sys.stderr, flush=True)
        report = run(make_sequence(seed, options.operations))
        counts.update(report.counts)
        longest_s = longest(longest_s, report.longest_s)
        duration_s += report.duration_s
        if report.faults:
            failed[seed] = report.faults
        if not options.json:
            for line in [*(report.log if options.verbose else ()), *report.faults]:
                print(f"seed {seed}: {line}", flush=True)
    print(file=sys.stderr)
    summary = {
        "sequences": options.sequences,
        **{row.replace(" ", "_"): counts[row] for row in ROWS},
        **{f"{what.replace(' ', '_')}_s": round(seconds, 2) for what, seconds in sorted(longest_s.items())},
        "invariant_violations": sum(map(len, failed.values())),
        "sequences_with_violations": len(failed),
        "duration_s": round(duration_s, 1),
    }
    if options.json:
        print(json.dumps({**summary, "violations": failed}))
    else:
        for title, value in summary.items():
            print(f"{title.replace('_', ' '):28}{value:>12,}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
