"""Resize running producers at random and print what happened: ``python tests/tools/resizes.py``.

Exits with 1 when anything that must hold did not.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter

from stress_resizes import run_until

ROWS = (
    "windows committed",
    "windows aborted",
    "resizes done",
    "resizes aborted",
    "resizes refused",
    "rounds that shrink and grow",
    "nodes lost",
    "fields compared",
    "steps",
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Random resizes of running producers.")
    parser.add_argument("--resizes", type=int, default=200, help="windows opened at least (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program (default 0)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--verbose", action="store_true", help="print every change")
    options = parser.parse_args()
    reports = run_until(options.resizes, options.seed)
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.counts)
        for line in [*(report.log if options.verbose else ()), *report.faults]:
            print(f"seed {report.seed}: {line}", file=sys.stderr, flush=True)
    faults = {report.seed: report.faults for report in reports if report.faults}
    summary = {
        "programs": len(reports),
        "resizes": sum(report.windows for report in reports),
        **{row.replace(" ", "_"): counts[row] for row in ROWS},
        "faults": sum(map(len, faults.values())),
        "duration_s": round(sum(report.duration_s for report in reports), 1),
    }
    if options.json:
        print(json.dumps({**summary, "violations": faults}))
    else:
        for name, value in summary.items():
            print(f"{name.replace('_', ' '):30}{value:>12,}")
    return 1 if faults else 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    raise SystemExit(main())
