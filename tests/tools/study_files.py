"""A small study as a file, which tests change."""

from __future__ import annotations

from pathlib import Path

SMALL = """
name: small
workload: builtin:esp-10
policies:
  fcfs: {policy: fcfs, set: {malleable_share: 0}}
  pwma: pwma-fpsma
vary: {malleable_share: [0, 0.5, 1], seed: [2, 3, 4]}
baseline: fcfs
metrics: [makespan_s, mean_wait_s]
paired: [makespan_s]
sign_change: malleable_share
published:
  - {of: makespan_s, value: 38 min, at: {policy: pwma, malleable_share: 1}, source: somebody}
expect:
  - {at: {policy: fcfs}, that: makespan_s == 2871}
fast:
  set: {seed: 0}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return path
