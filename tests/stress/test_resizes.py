"""Random resizes of a running producer never break what must hold; ``resizes.py`` makes any number.

A failing one is repeated by ``python tests/tools/resizes.py --seed N --resizes 1 --verbose``.
"""

from __future__ import annotations

import pytest
from stress_resizes import run_until

RESIZES = 15


@pytest.mark.timeout(240)
def test_the_field_is_right_after_every_one_of_fifteen_random_resizes() -> None:
    reports = run_until(RESIZES, seed=0)
    for report in reports:
        print(f"seed {report.seed}: {dict(report.counts)} in {report.duration_s:.1f} s")
        print(*report.log, sep="\n")
    assert [(report.seed, report.faults) for report in reports if report.faults] == []
    assert sum(report.windows for report in reports) >= RESIZES
    assert sum(report.counts["fields compared"] for report in reports) >= RESIZES / 2
