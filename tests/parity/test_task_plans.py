"""Jobs become tasks that take as long as the job's model says, or are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.errors import WorkloadError
from dask_hpc.parity.tasks import TaskPlan, plan, scaled
from dask_hpc.sim.generators import esp
from dask_hpc.sim.model.checkpoints import Checkpoints, Level
from dask_hpc.sim.model.domains import Domains
from dask_hpc.sim.model.job import Delay, Job, Program, SpeedUp, amdahl, computing_s, power_law
from dask_hpc.sim.model.machine import PUBLISHED, Failures, Machine, NodeFailure
from dask_hpc.sim.model.pool import Pool
from dask_hpc.sim.model.workload import Workload, with_malleable_share


def malleable(**fields: Any) -> Job:
    given = {"id": "m", "submit_s": 0.0, "start_nodes": 4, "min_nodes": 2, "max_nodes": 8, "runtime_s": 10.0}
    return Job(**{**given, "kind": "malleable", **fields})


def planned(job: Job, task_length_s: float = 0.3) -> TaskPlan:
    [found] = plan(Workload(name="one", jobs=(job,)), 8, task_length_s)
    return found


def length_s(found: TaskPlan, nodes: int) -> float:
    return found.length_s if isinstance(found.length_s, float) else found.length_s[nodes - 1]


def test_esp_becomes_as_many_node_seconds_of_tasks_as_it_has() -> None:
    workload = scaled(with_malleable_share(esp.esp_10(), 1.0, 0, 16), 100.0)
    plans = plan(workload, 16, 0.1)
    for job, found in zip(workload.jobs, plans, strict=True):
        assert isinstance(found.length_s, float)
        assert 0.09 < found.length_s <= 0.1
        assert found.tasks * found.length_s == pytest.approx(job.nodes * job.runtime_s)
        assert found.tasks % job.nodes == 0
        assert found.submit_s == job.submit_s
        fields = {"nodes": job.nodes, "min_nodes": 1, "max_nodes": 16, "walltime": job.walltime_s}
        assert fields.items() <= found.fields.items()
    assert sum(found.tasks * length_s(found, 1) for found in plans) == pytest.approx(359.16)


@given(
    st.sampled_from([SpeedUp(), amdahl(0.1), power_law(0.3), power_law(0.0)]),
    st.integers(2, 8),
    st.floats(0.05, 100.0),
    st.floats(0.01, 1.0),
)
def test_a_job_takes_on_every_size_as_long_as_its_model_says(
    speed: SpeedUp, nodes: int, runtime_s: float, task_length_s: float
) -> None:
    job = malleable(speed=speed, start_nodes=nodes, runtime_s=runtime_s)
    found = planned(job, task_length_s)
    for size in range(2, 9):
        assert length_s(found, size) <= task_length_s * (1 + 1e-9)
        assert found.tasks * length_s(found, size) / size == pytest.approx(computing_s(job, size))


def test_a_rigid_job_needs_no_model() -> None:
    job = malleable(kind="rigid", min_nodes=4, max_nodes=4, speed=amdahl(0.5))
    found = planned(job)
    assert (found.tasks, found.length_s) == (4 * 34, pytest.approx(10.0 / 34))
    assert found.fields["nodes"] == 4
    assert "min_nodes" not in found.fields


def test_a_moldable_job_starts_as_large_as_it_can_and_stays_so() -> None:
    found = planned(malleable(kind="moldable", start_nodes=None))
    assert (found.fields["nodes"], found.fields["rigid"]) == (None, True)
    assert found.tasks % 8 == 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"program": Program(stages=(Delay(seconds=1.0),))}, "has an application model"),
        ({"kind": "evolving"}, "is evolving"),
        ({"runtime_s": 0.0}, "has a run time of 0.0 s"),
        ({"runtime_s": math.inf}, "has a run time of inf s"),
        ({"preferred_nodes": 3}, "has a preferred size"),
        ({"recorded_s": 3.0}, "has recorded run times"),
        ({"checkpoints": Checkpoints(levels=(Level(survives="host"),), every_s=9.0)}, "has checkpoints"),
        ({"adaptation": PUBLISHED}, "has resizes that take as long as a model says"),
        ({"constraint": "cube", "start_nodes": 4}, "not legal"),
        ({"constraint": "even", "max_nodes": 7}, "would be"),
    ],
)
def test_what_tasks_cannot_stand_for_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(WorkloadError, match=why):
        planned(malleable(**changes))


def test_failing_nodes_resizes_by_a_model_and_too_many_tasks_are_refused() -> None:
    failure = NodeFailure(t_s=1.0, node=0, downtime_s=1.0)
    machine = Machine(nodes=8, failures=Failures(listed=(failure,)))
    with pytest.raises(WorkloadError, match="its nodes fail"):
        plan(Workload(name="one", jobs=(malleable(),), machine=machine), 8, 0.1)
    for more in ({"pool": Pool(initial_nodes=8)}, {"roles": {"staging": 1}}):
        machine = Machine(nodes=8, **more)
        with pytest.raises(WorkloadError, match="its nodes come and go, or play roles"):
            plan(Workload(name="one", jobs=(malleable(),), machine=machine), 8, 0.1)
    for more in ({"domains": Domains(size=2)}, {"hosts": Domains(size=2)}, {"network_bytes_s": 1e9}):
        machine = Machine(nodes=8, **more)
        with pytest.raises(WorkloadError, match="its nodes have failure domains, or hosts"):
            plan(Workload(name="one", jobs=(malleable(),), machine=machine), 8, 0.1)
    machine = Machine(nodes=8, adaptation=PUBLISHED)
    with pytest.raises(WorkloadError, match="its resizes take as long as a model says"):
        plan(Workload(name="one", jobs=(malleable(),), machine=machine), 8, 0.1)
    with pytest.raises(WorkloadError, match="take a longer --task-length"):
        planned(malleable(runtime_s=1e6))


def test_all_times_are_scaled_and_begin_at_the_first_submission() -> None:
    job = malleable(submit_s=50.0, walltime_s=20.0)
    [one, two] = scaled(
        Workload(name="two", jobs=(job, replace(job, id="n", submit_s=60.0, walltime_s=None))), 10.0
    ).jobs
    assert (one.submit_s, one.runtime_s, one.walltime_s) == (0.0, 1.0, 2.0)
    assert (two.submit_s, two.walltime_s) == (1.0, None)
    for speed in (0.0, math.inf, math.nan):
        with pytest.raises(WorkloadError, match="must be above 0"):
            scaled(Workload(name="one", jobs=(job,)), speed)
    with pytest.raises(WorkloadError, match="no job"):
        scaled(Workload(name="none", jobs=()), 1.0)
