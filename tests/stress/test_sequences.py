"""Random sequences of operations never break what must hold; ``stress.py`` runs any number.

A failing one is repeated by ``python tests/tools/stress.py --seed N --sequences 1 --verbose``.
"""

from __future__ import annotations

import pytest
from stress_operations import OPERATIONS
from stress_seeds import make_sequence
from stress_sequences import run

SEQUENCES = 50
#: Of these so many in every run of the tests, the others with the slow ones.
_ALWAYS = 20
_SEEDS = [*range(_ALWAYS), *(pytest.param(i, marks=pytest.mark.slow) for i in range(_ALWAYS, SEQUENCES))]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", _SEEDS)
def test_nothing_that_must_hold_is_broken_by_a_random_sequence(seed: int) -> None:
    sequence = make_sequence(seed)
    report = run(sequence)
    print(f"seed {seed}: {dict(report.counts)} in {report.duration_s:.1f} s")
    print(*report.log, sep="\n")
    assert report.faults == []
    assert report.counts["operations"] >= 40


def test_the_sequences_hold_every_operation_and_are_calm_every_third_time() -> None:
    sequences = [make_sequence(seed) for seed in range(SEQUENCES)]
    assert {item.name for sequence in sequences for item in sequence.operations} == set(OPERATIONS)
    assert sum(sequence.calm for sequence in sequences) == SEQUENCES // 3
    assert all(len(sequence.operations) >= 40 for sequence in sequences)


def test_a_seed_always_gives_the_same_sequence() -> None:
    assert make_sequence(7) == make_sequence(7)
    assert make_sequence(7) != make_sequence(8)
