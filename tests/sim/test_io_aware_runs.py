"""The I/O-aware policy in the simulator: unlike jobs together, the published study, the incremental forms."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest
from sim_worlds import application, run, workload

from dask_hpc.sim import Options, Result, simulate
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.model.job import Compute, Repeat, Transfer
from dask_hpc.sim.workloads import sources
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.registry import create
from dask_hpc_policies.rules.io.intensity import Mix, job_intensity, preferred_size
from dask_hpc_policies.sessions.io import IoSession

LINK, FILE_SYSTEM = 1e9, 4e9


def four_jobs() -> Any:
    """Figure 4.6 of ADMIRE (2023, D3.3): two jobs with much I/O before two with little, two of four fit."""

    def job(id: str, submit_s: float, compute_s: float, size_bytes: float) -> Any:
        step = (Compute(work=8 * compute_s), Transfer(size_bytes=size_bytes))
        alone_s = compute_s + size_bytes / FILE_SYSTEM
        return application(
            id, 8, Repeat(stages=step, times=10.0), submit_s=submit_s, walltime_s=100 * alone_s,
            io_intensity=size_bytes / FILE_SYSTEM / alone_s,
        )  # fmt: skip

    jobs = [job("io1", 0.0, 1.0, 36e9), job("io2", 0.0, 1.0, 36e9)]
    jobs += [job("cpu1", 0.0, 9.0, 4e9), job("cpu2", 0.0, 9.0, 4e9)]
    return workload(*jobs, nodes=16, link_bytes_s=LINK, file_system_bytes_s=FILE_SYSTEM)


def test_pairing_unlike_jobs_finishes_sooner() -> None:
    alike = run(four_jobs(), "fcfs")
    mixed = run(four_jobs(), create("io-aware", reordering=0.8))
    together = {one.id for one in mixed.runs if one.start_s == 0.0}
    assert together in ({"io1", "cpu1"}, {"io1", "cpu2"})
    assert mixed.metrics()["makespan_s"] < 0.8 * alike.metrics()["makespan_s"]


def test_reordering_nothing_starts_jobs_in_order() -> None:
    work = sources.load("builtin:io-aware", jobs=300, mean_gap_s=2.0)
    begun = [one.start_s for one in run(work, create("io-aware", reordering=0.0)).runs]
    assert None not in begun
    assert begun == sorted(begun, key=lambda s: s or 0.0)


@pytest.mark.parametrize(
    "policy",
    [
        create("io-aware"),
        create("io-aware", reordering=0.0),
        create("io-aware", reordering=0.7, adaptive=True, unfitting="skip"),
        create("fcfs-malleable"),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_incremental_form_decides_the_same(policy: Any, seed: int) -> None:
    work = sources.load("builtin:io-aware", seed=seed, jobs=120, mean_gap_s=2.0)
    quick = run(work, policy)
    assert quick.rows == run(work, policy, snapshots=True).rows
    assert quick.counts.expansions > 0


def test_an_empty_machine_has_no_say_in_the_adaptive_reordering() -> None:
    policy = create("io-aware", reordering=0.9, adaptive=True)
    session = IoSession(4, policy.params)  # type: ignore[attr-defined]
    session.submit(
        0, JobView(id="a", kind="rigid", start_nodes=4, min_nodes=4, max_nodes=4, io_intensity=0.5)
    )
    assert session.decide(0.0, "submit", 0) == [(0, 4)]
    seen = session._state
    assert (seen.lowest, seen.highest) == (0.5, 0.5)
    session.finish(0)
    assert session.decide(1.0, "finish", 0) == []
    empty = ClusterSnapshot(now_s=1.0, idle_nodes=4)
    assert session._state == policy.decide(empty, seen)[1] == seen


class Checked(IoSession):
    """Compares its sums with those of all jobs, at every call."""

    __slots__ = ("calls",)

    def decide(self, now_s: float, trigger: Any, key: int | None) -> list[tuple[int, int]]:
        self.check()
        answer = super().decide(now_s, trigger, key)
        self.check()
        return answer

    def check(self) -> None:
        running, queued = Mix(), Mix()
        for one, now in self.balance.running.items():
            running = running.plus(job_intensity(self.job(one), now.nodes), now.nodes)
        for one in self.balance.keys:
            size = preferred_size(self.job(one))
            queued = queued.plus(job_intensity(self.job(one), size), size)
        assert self.balance.system == running
        assert self.balance.queued == queued
        assert self.balance.workload == running.joined(queued).intensity
        self.calls = getattr(self, "calls", 0) + 1

    def job(self, key: int) -> JobView:
        return self._jobs[key]


def test_sums_equal_those_computed_anew_after_every_event() -> None:
    work = sources.load("builtin:io-aware", jobs=150, mean_gap_s=2.0)
    assert work.machine is not None
    policy = create("io-aware", reordering=0.4)
    engine = Engine(work, policy, work.machine, Options())
    session = Checked(work.machine.nodes, policy.params)  # type: ignore[attr-defined]
    engine.enactor.asker.session = session  # type: ignore[attr-defined]
    engine.run()
    assert session.calls > 1000


# -------------------------------------------------------------- the published study

#: Change of the mean checkpoint time against FCFSm, in per cent, by reordering (section 4.2.5.2).
PUBLISHED = {0.2: -31.4, 0.3: -45.9, 0.4: -49.9}


def study(jobs: int, seeds: range) -> tuple[dict[float, float], dict[float, float]]:
    """Median changes of checkpoint time and makespan in per cent, by reordering."""

    def changed(result: Result, base: Result, name: str) -> float:
        return 100 * (result.metrics(jobs=False)[name] / base.metrics(jobs=False)[name] - 1)

    times: dict[float, list[float]] = {alpha: [] for alpha in PUBLISHED}
    spans: dict[float, list[float]] = {alpha: [] for alpha in PUBLISHED}
    for seed in seeds:
        work = sources.load("builtin:io-aware", seed=seed, jobs=jobs)
        base = simulate(work, "fcfs-malleable")
        for alpha in PUBLISHED:
            result = simulate(work, create("io-aware", reordering=alpha))
            times[alpha].append(changed(result, base, "mean_checkpoint_s"))
            spans[alpha].append(changed(result, base, "makespan_s"))
    for alpha, published in PUBLISHED.items():
        print(f"reordering {alpha}: checkpoint {published} % published, ours", times[alpha], spans[alpha])
    return {a: median(v) for a, v in times.items()}, {a: median(v) for a, v in spans.items()}


def test_checkpoints_and_makespan_are_shorter_than_with_fcfs() -> None:
    # A quarter of the jobs, once: the queue is less deep, and the tail weighs more.
    times, spans = study(1000, range(1))
    assert all(change < -20 for change in times.values())
    assert all(change < 0 for change in spans.values())


@pytest.mark.slow
def test_the_published_checkpoint_times_are_met_within_ten_points() -> None:
    times, spans = study(4000, range(5))
    for alpha, published in PUBLISHED.items():
        assert times[alpha] == pytest.approx(published, abs=10)
    assert max(times[0.3], times[0.4]) < times[0.2]
    assert all(change < 0 for change in spans.values())
