"""Random sequences of operations never break what must hold; ``stress.py`` runs any number.

A failing one is repeated by ``python tests/tools/stress.py --seed N --sequences 1 --verbose``.
"""

from __future__ import annotations

import functools
from collections import Counter

import pytest
from stress_drains import Execution, Executions
from stress_operations import OPERATIONS
from stress_seeds import make_sequence
from stress_sequences import run

from dask_hpc.trace.records import NodeEvent, Result
from dask_hpc_policies.decision import Outcome, Reason, ReasonCode, Shrink

SEQUENCES = 50
#: Of these so many in every run of the tests, the others with the slow ones.
_ALWAYS = 6
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


def test_the_sequences_hold_every_operation_lend_and_are_calm_every_third_time() -> None:
    sequences = [make_sequence(seed) for seed in range(SEQUENCES)]
    for some in (sequences, sequences[:_ALWAYS]):
        assert {item.name for sequence in some for item in sequence.operations} == set(OPERATIONS)
    assert sum(sequence.calm for sequence in sequences) == SEQUENCES // 3
    assert sum(sequence.settings["lend_s"] > 0 for sequence in sequences) > SEQUENCES / 2
    assert all(len(sequence.operations) >= 40 for sequence in sequences)


def test_a_seed_always_gives_the_same_sequence() -> None:
    assert make_sequence(7) == make_sequence(7)
    assert make_sequence(7) != make_sequence(8)


def _drain(job: str, *ran: Execution, took_s: float = 2.0) -> list[str]:
    """What is said of a drain of node `n0` from 10 to 12 s beside these executions."""
    action = Shrink(job=job, nodes=1, reason=Reason(ReasonCode.USER_REQUEST, "asked for"))
    outcome = Outcome(action=action, result="done", reason=Reason(ReasonCode.DONE, "done"), latency_s=took_s)
    holder = None if job == "default-1" else job
    executions = Executions()
    executions.all = list(ran)
    return executions.drains(
        [
            NodeEvent(t_s=10.0, nodes=("n0",), job=holder, state="draining"),
            Result(t_s=10.0 + took_s, outcome=outcome),
        ],
        Counter(),
        {},
    )


def test_a_drain_that_waits_for_longer_than_a_task_of_its_job_is_told() -> None:
    ran = functools.partial(Execution, key="k", job="a", lent=False, node="n0", began_s=9.9)
    assert _drain("a", ran(ended_s=12.0)) == []
    (said,) = _drain("a", ran(ended_s=10.5))
    assert "took 2.00 s, the longest task it may wait for 0.60 s" in said
    assert _drain("a", ran(ended_s=12.0, node="n1"))  # not where nodes leave
    assert _drain("a", ran(ended_s=12.0, job="b", lent=True))  # what it has lent is not waited for
    assert _drain("default-1", ran(ended_s=12.0, job="b", lent=True)) == []


def test_a_drain_may_wait_for_all_of_a_shuffle_also_while_nothing_of_it_executes() -> None:
    part = functools.partial(Execution, job="b", lent=False, node="n1")
    before = part(key="('rechunk-transfer-1', 0)", began_s=9.0, ended_s=9.5)
    after = part(key="('rechunk-sum-2', 0)", began_s=13.0, ended_s=13.5)
    assert _drain("a", before, after) == []
    assert _drain("a", before)
    assert _drain("a", after)
