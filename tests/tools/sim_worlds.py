"""Small workloads and policies that the simulator's tests share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st

from dask_hpc.sim import Machine, Options, Result, Workload, simulate
from dask_hpc.sim.engine import engine
from dask_hpc.sim.model.checkpoints import Checkpoints, Level
from dask_hpc.sim.model.job import Job, Program, Stage, amdahl, power_law
from dask_hpc.sim.model.machine import Failures, NodeFailure
from dask_hpc.sim.model.workload import ordered
from dask_hpc_policies.decision import Action, Decision, Expand, Reason, ReasonCode, Shrink, Start
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.rules.io.intensity import Mix, job_intensity, preferred_size

BECAUSE = Reason(ReasonCode.USER_REQUEST, "the test says so")


def rigid(id: str, nodes: int, runtime_s: float, submit_s: float = 0.0, **more: Any) -> Job:
    fields = {"start_nodes": nodes, "min_nodes": nodes, "max_nodes": nodes, "walltime_s": runtime_s, **more}
    return Job(id=id, submit_s=submit_s, runtime_s=runtime_s, **fields)


def malleable(id: str, nodes: int, low: int, high: int, runtime_s: float, **more: Any) -> Job:
    return rigid(id, nodes, runtime_s, kind="malleable", min_nodes=low, max_nodes=high, **more)


def application(id: str, nodes: int, *stages: Stage, resize: Any = "anytime", **more: Any) -> Job:
    return rigid(
        id, nodes, 0.0, program=Program(stages=stages, resize=resize), **{"walltime_s": None, **more}
    )


def workload(*jobs: Job, nodes: int = 16, **machine: Any) -> Workload:
    return Workload(name="test", jobs=ordered(jobs), machine=Machine(nodes=nodes, **machine))


def run(work: Workload, policy: Any = "fcfs", **options: Any) -> Result:
    return simulate(work, policy, options=Options(**options))


def fitting(jobs: Iterable[JobView], idle: int) -> Iterator[Action]:
    """Starts of those jobs that fit, in order."""
    for job in jobs:
        need = job.start_nodes or job.min_nodes
        if need <= idle:
            idle -= need
            yield Start(job=job.id, nodes=need, reason=BECAUSE)


@contextmanager
def soon_given_up() -> Iterator[None]:
    """Runs in which jobs wait in vain end after 200 failures, not after 10,000 that are all alike."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_MOST_STALLED", 200)
        yield


def level(survives: Any = "several", **more: Any) -> Level:
    return Level(survives=survives, **more)


def every(every_s: float | None, *levels: Level) -> Checkpoints:
    return Checkpoints(every_s=every_s, levels=levels)


def failures(*rows: tuple[float, Any], node: int = 0, downtime_s: float = 1.0) -> Failures:
    """A failure of a class at each time."""
    return Failures(
        listed=tuple(
            NodeFailure(t_s=t_s, node=node, downtime_s=downtime_s, severity=what) for t_s, what in rows
        )
    )


def starts(result: Result) -> dict[str, float | None]:
    return {one.id: one.start_s for one in result.runs}


def ends(result: Result) -> dict[str, float | None]:
    return {one.id: one.end_s for one in result.runs}


class Scripted:
    """Starts what fits in order, and resizes at given times: {time: {job: nodes}}."""

    name = "scripted"

    def __init__(self, script: dict[float, dict[str, int]]) -> None:
        self.script = script
        self.params: dict[str, Any] = {}

    def initial_state(self) -> None:
        return None

    def decide(self, view: ClusterSnapshot, state: None) -> tuple[Decision, None]:
        actions: list[Action] = []
        idle = view.idle_nodes
        wanted = self.script.get(view.now_s, {})
        for job in view.jobs:
            if job.state == "running" and job.id in wanted and wanted[job.id] != job.nodes:
                kind = Expand if wanted[job.id] > job.nodes else Shrink
                actions.append(kind(job=job.id, nodes=wanted[job.id], reason=BECAUSE))
                idle -= max(0, wanted[job.id] - job.nodes)
        return Decision(actions=(*actions, *fitting(view.pending, idle))), None


class Restless:
    """Starts what fits, and gives every malleable job another size each time that something happens."""

    name = "restless"

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = tuple(numbers)
        self.params: dict[str, Any] = {}

    def initial_state(self) -> tuple[int, float]:
        return 0, -1.0

    def decide(self, view: ClusterSnapshot, state: tuple[int, float]) -> tuple[Decision, tuple[int, float]]:
        at, last_s = state
        actions: list[Action] = []
        idle = view.idle_nodes
        for job in view.running if view.now_s > last_s else ():
            # An end to it: a resize that takes time is followed by an event, and that by the next resize.
            if job.kind == "malleable" and job.at_scheduling_point and at < len(self.numbers):
                at += 1
                spread = min(job.max_nodes, job.nodes + idle) - job.min_nodes
                target = job.min_nodes + self.numbers[at - 1] % (spread + 1)
                if target != job.nodes:
                    idle -= max(0, target - job.nodes)
                    kind = Expand if target > job.nodes else Shrink
                    actions.append(kind(job=job.id, nodes=target, reason=BECAUSE))
        return Decision(actions=(*actions, *fitting(view.pending, idle))), (at, view.now_s)


@st.composite
def rigid_workloads(draw: st.DrawFn) -> Workload:
    """Rigid jobs at whole seconds, so that events often coincide; some have no length, some no walltime."""
    jobs = []
    for i in range(draw(st.integers(1, 25))):
        runtime_s = float(draw(st.integers(0, 20)))
        over = draw(st.sampled_from([-5.0, 0.0, 0.0, 3.0, 10.0]))
        walltime_s = draw(st.sampled_from([max(0.0, runtime_s + over)] * 5 + [None]))
        jobs.append(
            rigid(
                f"j{i}", draw(st.integers(1, 8)), runtime_s, float(draw(st.integers(0, 40))),
                walltime_s=walltime_s, priority=draw(st.sampled_from([0, 0, 0, 1])),
            )
        )  # fmt: skip
    return workload(*jobs, nodes=8)


@st.composite
def mixed_workloads(draw: st.DrawFn) -> Workload:
    """The same with some jobs that start at one of several sizes; now and then none of them is legal."""
    work = draw(rigid_workloads())
    jobs = []
    for job in work.jobs:
        kind = draw(st.sampled_from(["rigid", "rigid", "moldable", "malleable"]))
        if kind != "rigid":
            low, high = draw(st.integers(1, job.max_nodes)), draw(st.integers(job.max_nodes, 8))
            job = replace(job, kind=kind, min_nodes=low, max_nodes=high)
            if draw(st.booleans()):
                preferred = draw(st.sampled_from([None, low, high]))
                constraint = draw(st.sampled_from(["any", "any", "even", "pof2"]))
                job = replace(job, start_nodes=None, preferred_nodes=preferred, constraint=constraint)
        jobs.append(job)
    return workload(*jobs, nodes=8)


@st.composite
def malleable_workloads(draw: st.DrawFn) -> Workload:
    """Malleable and rigid jobs with several speed-up models."""
    jobs = []
    for i in range(draw(st.integers(1, 8))):
        low = draw(st.integers(1, 4))
        high = draw(st.integers(low, 16))
        nodes = draw(st.integers(low, high))
        job = malleable(
            f"j{i}", nodes, low, high, draw(st.floats(0.5, 50.0)), submit_s=float(draw(st.integers(0, 60)))
        )
        if draw(st.booleans()):
            job = replace(job, speed=draw(st.sampled_from([amdahl(0.1), power_law(0.5)])))
        jobs.append(
            job if draw(st.integers(0, 3)) else replace(job, kind="rigid", min_nodes=nodes, max_nodes=nodes)
        )
    return workload(*jobs, nodes=16)


def running_mix(jobs: Iterable[JobView]) -> Mix:
    """The mix of all jobs that hold nodes, at their sizes."""
    mix = Mix()
    for job in jobs:
        if job.nodes > 0 and not job.is_default:
            mix = mix.plus(job_intensity(job, job.nodes), job.nodes)
    return mix


def queued_mix(jobs: Iterable[JobView]) -> Mix:
    """The mix of waiting jobs, at their preferred sizes."""
    mix = Mix()
    for job in jobs:
        size = preferred_size(job)
        if size:
            mix = mix.plus(job_intensity(job, size), size)
    return mix
