"""Work that failures take of jobs that have been resized, or that save by themselves: figures by hand."""

from __future__ import annotations

from typing import Any

import pytest
from sim_worlds import (
    Scripted,
    application,
    ends,
    every,
    failures,
    level,
    malleable,
    rigid,
    run,
    workload,
)

from dask_hpc.sim.model.job import Compute, Job, Transfer
from dask_hpc.sim.model.machine import AdaptationCost
from dask_hpc.sim.model.power import NodePower

POWER = NodePower(idle_w=0.0, busy_w=1.0)
CLOCK = rigid("clock", 1, 10.0)


def program(nodes: int, *stages: Any, **how: Any) -> Job:
    return application("a", nodes, *stages, kind="malleable", min_nodes=1, max_nodes=8, **how)


def found(job: Job, wanted: int, fails_s: float, **machine: Any) -> dict[str, Any]:
    """Metrics of a run in which the job is to have another size from 10 s on, and a process of it fails."""
    lost = failures((fails_s, "process"))
    work = workload(job, CLOCK, nodes=9, power=POWER, failures=lost, **machine)
    result = run(work, Scripted({10.0: {"a": wanted}}))
    return {**result.metrics(jobs=False), "end_s": ends(result)["a"]}


@pytest.mark.parametrize(("before", "after"), [(1, 8), (8, 1)])
def test_all_that_a_program_had_held_is_lost_when_it_has_saved_nothing(before: int, after: int) -> None:
    metrics = found(program(before, Compute(work=200.0)), after, 12.0)
    held_node_s = before * 10 + after * 2
    assert metrics["lost_node_s"] == pytest.approx(held_node_s)
    assert metrics["end_s"] == pytest.approx(12 + 200 / before)
    assert metrics["useful_utilization"] * 9 * metrics["end_s"] == pytest.approx(10 + 200)


@pytest.mark.parametrize("beside", [None, "file-system"])
@pytest.mark.parametrize("commits", [False, True])
def test_what_a_program_did_since_it_saved_is_lost(beside: Any, commits: bool) -> None:
    save = Transfer(size_bytes=0.0, purpose="checkpoint", beside=beside)
    made = every(1000.0, level()) if commits else None
    job = program(4, Compute(work=20.0), save, Compute(work=80.0), checkpoints=made)
    # saved at 5 s; 5 s of four nodes and 2 s of eight since then
    metrics = found(job, 8, 12.0)
    assert metrics["lost_node_s"] == pytest.approx(5 * 4 + 2 * 8)
    assert metrics["end_s"] == pytest.approx(12 + 80 / 4)
    # of two failures each takes what was done since then, or since the one before
    work = workload(job, nodes=4, failures=failures((7.0, "process"), (10.0, "process")))
    assert run(work).metrics()["lost_node_s"] == pytest.approx(2 * 4 + 3 * 4)


@pytest.mark.parametrize("cost", ["expand_base_s", "shrink_base_s"])
@pytest.mark.parametrize(
    ("job", "saved_s"),
    [
        (malleable("a", 4, 1, 8, 100.0), 0.0),
        (malleable("a", 4, 1, 8, 100.0, checkpoint_interval_s=4.0), 8.0),
        (malleable("a", 4, 1, 8, 100.0, checkpoints=every(8.0, level())), 8.0),
        (program(4, Compute(work=400.0)), 0.0),
    ],
)
def test_a_failure_in_the_window_of_a_resize_wastes_as_much_of_it_as_there_was(
    job: Job, saved_s: float, cost: str
) -> None:
    wanted = 8 if cost == "expand_base_s" else 2
    metrics = found(job, wanted, 12.0, adaptation=AdaptationCost(**{cost: 50.0}))
    held_up_node_s = 2 * max(4, wanted)
    assert metrics["lost_node_s"] == pytest.approx(4 * (10 - saved_s))
    assert metrics["energy_recovery_j"] == pytest.approx(4 * (10 - saved_s))
    assert metrics["energy_communicate_j"] == pytest.approx(held_up_node_s)
    assert metrics["resize_s"] == pytest.approx(2.0)
    # what it did until then and has kept, and what was left, each once
    assert metrics["energy_compute_j"] == pytest.approx(10 + 400)


def test_a_job_that_failed_in_the_window_of_its_resize_loses_later_what_all_its_nodes_did() -> None:
    lost = failures((12.0, "process"), (20.0, "process"))
    costs = AdaptationCost(expand_base_s=50.0)
    work = workload(malleable("a", 4, 1, 8, 100.0), CLOCK, nodes=9, failures=lost, adaptation=costs)
    result = run(work, Scripted({10.0: {"a": 8}}))
    assert result.metrics()["lost_node_s"] == pytest.approx(4 * 10 + 4 * 8)
