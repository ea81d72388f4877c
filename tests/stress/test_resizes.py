"""Random resizes of a running producer never break what must hold; ``resizes.py`` makes any number.

A failing one is repeated by ``python tests/tools/resizes.py --seed N --resizes 1 --verbose``.
"""

from __future__ import annotations

import pytest
from stress_resizes import run_until


@pytest.mark.timeout(240)
@pytest.mark.parametrize("resizes", [10, pytest.param(30, marks=pytest.mark.slow)])
def test_the_field_is_right_after_every_one_of_many_random_resizes(resizes: int) -> None:
    reports = run_until(resizes, seed=resizes)
    for report in reports:
        print(f"seed {report.seed}: {dict(report.counts)} in {report.duration_s:.1f} s")
        print(*report.log, sep="\n")
    assert [(report.seed, report.faults) for report in reports if report.faults] == []
    assert sum(report.windows for report in reports) >= resizes
    assert sum(report.counts["fields compared"] for report in reports) >= resizes / 2
