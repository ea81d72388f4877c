"""Transfers beside computing, and what is conserved whatever fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from random_worlds import DETERMINED, UNSTEADY, failing_world, options_of, policy_of
from sim_worlds import (
    Restless,
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

from dask_hpc.errors import SimulationError
from dask_hpc.sim import Workload
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.engine.recording import recorded
from dask_hpc.sim.formats.yaml_file import parse
from dask_hpc.sim.formats.yaml_text import dump
from dask_hpc.sim.model.checkpoints import Level
from dask_hpc.sim.model.domains import Domains
from dask_hpc.sim.model.job import LINEAR, Compute, Repeat, SchedulingPoint, Stage, Transfer
from dask_hpc.sim.model.machine import AdaptationCost, Failures, Machine, Options
from dask_hpc.trace.records import TransferEvent
from dask_hpc_policies import registry
from dask_hpc_policies.metrics import node_seconds

GB = 1e9


def test_transfers_share_the_file_system_with_the_input_and_output_of_others() -> None:
    # a copies 40 GB from 0 s on with 4 nodes, b writes 40 GB with 4: 10 GB/s for both, half each
    a = application("a", 4, Transfer(size_bytes=40 * GB, beside="file-system"), Compute(work=4.0))
    b = application("b", 4, Transfer(size_bytes=40 * GB))
    result = run(workload(a, b, nodes=8, file_system_bytes_s=10 * GB))
    assert ends(result) == {"a": pytest.approx(8.0), "b": pytest.approx(8.0)}, "a waits for its transfer"
    alone = run(workload(a, nodes=8, file_system_bytes_s=10 * GB))
    assert ends(alone) == {"a": pytest.approx(4.0)}


def test_a_transfer_stands_still_while_its_own_job_reads_or_writes() -> None:
    # 20 GB beside from 0 s on at 10 GB/s; at 1 s the job itself writes 10 GB, for 1 s; 10 GB are left then
    stages = (
        Transfer(size_bytes=20 * GB, beside="file-system"),
        Compute(work=4.0),
        Transfer(size_bytes=10 * GB),
    )
    result = run(workload(application("a", 4, *stages), nodes=4, file_system_bytes_s=10 * GB))
    assert ends(result)["a"] == pytest.approx(3.0)
    events = _transfers(workload(application("a", 4, *stages), nodes=4, file_system_bytes_s=10 * GB))
    assert events == [(0.0, "t1", "begun", 0.0), (3.0, "t1", "ended", 20 * GB)]


def _transfers(work: Workload, policy: Any = "fcfs") -> list[tuple[float, str, str, float]]:
    assert work.machine is not None
    options = Options(snapshots=True, node_ids=True)
    records = list(recorded(Engine(work, registry.create(policy), work.machine, options)))
    found = [record for record in records if isinstance(record, TransferEvent)]
    return [(event.t_s, event.id, event.state, event.moved_bytes) for event in found]


def test_transfers_over_links_share_with_nobody_and_one_follows_the_other() -> None:
    # two of 8 GB by 4 nodes at 1 GB/s: 2 s each, while the file system is full
    copies = (Transfer(size_bytes=8 * GB, beside="link"), Transfer(size_bytes=8 * GB, beside="link"))
    job = application("a", 4, *copies, Transfer(size_bytes=10 * GB), Compute(work=40.0))
    work = workload(job, nodes=4, file_system_bytes_s=10 * GB, network_bytes_s=GB)
    times = [(t_s, id, state) for t_s, id, state, _ in _transfers(work)]
    assert times == [(0, "t1", "begun"), (0, "t2", "begun"), (2, "t1", "ended"), (4, "t2", "ended")]
    assert ends(run(work))["a"] == pytest.approx(11.0)


def test_a_transfer_goes_on_with_the_nodes_that_its_job_has() -> None:
    # 16 GB by 4 nodes at 1 GB/s; after 2 s (8 GB) the job has 2 nodes
    stages = Transfer(size_bytes=16 * GB, beside="link"), Compute(work=100.0)
    job = replace(application("a", 4, *stages), kind="malleable", min_nodes=1, max_nodes=4)
    work = workload(job, rigid("clock", 1, 2.0), nodes=5, network_bytes_s=GB)
    events = [event for event in _transfers(work, "fcfs") if event[2] == "ended"]
    assert [t_s for t_s, *_ in events] == [4.0]
    assert work.machine is not None
    engine = Engine(work, Scripted({2.0: {"a": 2}}), work.machine, Options(snapshots=True, node_ids=True))
    found = [one.t_s for one in recorded(engine) if isinstance(one, TransferEvent) and one.state == "ended"]
    assert found == [pytest.approx(2 + 8 / 2)]


def test_an_application_saves_beside_computing() -> None:
    # saved at 10 s, there at 14 s: a failure at 13 s finds nothing, one at 15 s the state at 10 s
    save = Transfer(size_bytes=16 * GB, beside="link", purpose="checkpoint")
    job = application("a", 4, Compute(work=40.0), save, Compute(work=80.0))
    for t_s, end_s in ((13.0, 13 + 30), (15.0, 15 + 20)):
        work = workload(job, nodes=4, network_bytes_s=GB, failures=failures((t_s, "process")))
        assert ends(run(work))["a"] == pytest.approx(end_s)


@pytest.mark.parametrize("path", ["file-system", "link"])
def test_a_job_that_waits_for_a_transfer_behind_a_commit_ends_when_a_lost_node_breaks_that(path: Any) -> None:
    # its work is done at 10 s; the transfer of nothing comes after the commit of 5 s, which takes 100 s
    copy = level("several", node_bytes=100 * GB, path=path)
    stages = Compute(work=20.0), Compute(work=20.0), Transfer(size_bytes=0.0, beside=path)
    job = replace(application("a", 4, *stages), kind="malleable", min_nodes=2, max_nodes=4)
    machine: dict[str, Any] = {"link_bytes_s": GB, "network_bytes_s": GB}
    lost = failures((11.0, None), node=3)
    work = workload(replace(job, checkpoints=every(5.0, copy)), nodes=4, failures=lost, **machine)
    assert ends(run(work))["a"] == pytest.approx(11.0)


# ---------------------------------------------------------------------------- what is conserved


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Workload, int]:
    """Jobs with and without checkpoints of every kind on machines where everything fails, and a seed."""
    jobs = []
    for i in range(draw(st.integers(1, 5))):
        nodes = draw(st.integers(1, 4))
        made = every(draw(st.sampled_from([5.0, 12.5])), *draw(st.lists(_LEVELS, min_size=1, max_size=3)))
        kind = draw(st.sampled_from(["plain", "plain", "program"]))
        submit_s = float(draw(st.integers(0, 30)))
        if kind == "plain":
            job = malleable(f"j{i}", nodes, 1, 4, draw(st.floats(1.0, 60.0)), submit_s=submit_s)
        else:
            stages = Repeat(stages=tuple(draw(st.lists(_STAGES, min_size=1, max_size=4))), times=2)
            job = application(f"j{i}", nodes, stages, Compute(work=9.0), submit_s=submit_s)
            job = replace(job, kind="malleable", min_nodes=1, max_nodes=4)
        if draw(st.booleans()):
            job = replace(job, kind="rigid", min_nodes=nodes, max_nodes=nodes)
        jobs.append(replace(job, checkpoints=draw(st.sampled_from([made, made, None]))))
    rates = {
        what: draw(st.sampled_from([None, 400.0]))
        for what in ("process_mtbf_s", "node_mtbf_s", "domain_mtbf_s")
    }
    machine = Machine(
        nodes=draw(st.sampled_from([4, 6])),
        link_bytes_s=draw(st.sampled_from([None, GB])),
        file_system_bytes_s=draw(st.sampled_from([None, 3 * GB])),
        network_bytes_s=draw(st.sampled_from([None, 0.5 * GB])),
        domains=Domains(size=2),
        failures=Failures(downtime_s=3.0, **rates),  # type: ignore[arg-type]
        adaptation=AdaptationCost(expand_base_s=draw(st.sampled_from([0.0, 1.5]))),
    )
    work = workload(*jobs)
    return replace(work, machine=machine), draw(st.integers(0, 1000))


_LEVELS = st.builds(
    Level,
    survives=st.sampled_from(["process", "host", "domain", "several"]),
    each=st.integers(1, 3),
    blocking_s=st.sampled_from([0.0, 0.5]),
    node_bytes=st.sampled_from([0.0, 2 * GB]),
    path=st.sampled_from(["file-system", "link"]),
    restart_s=st.sampled_from([0.0, 1.0]),
)
_STAGES: st.SearchStrategy[Stage] = st.sampled_from(
    [
        Compute(work=20.0),
        SchedulingPoint(),
        Transfer(size_bytes=3 * GB),
        Transfer(size_bytes=2 * GB, beside="link"),
        Transfer(size_bytes=4 * GB, beside="file-system", participants=2.0),
        Transfer(size_bytes=1 * GB, beside="file-system", purpose="checkpoint"),
    ]
)


@examples(150)
@given(worlds(), st.lists(st.integers(0, 20), max_size=12), st.booleans())
def test_bytes_and_work_are_conserved_whatever_fails(
    world: tuple[Workload, int], numbers: list[int], single: bool
) -> None:
    work, seed = world
    policy: Any = Restless(numbers)
    policy.params = {"events": "single"} if single else {}
    # the engine compares bytes begun, moved and cut off, and those of the file system, and raises otherwise
    result = run(work, policy, seed=seed)
    assert all(one.state == "completed" for one in result.runs)
    lost_node_s = 0.0
    for each, job in zip(result.runs, result.workload.jobs, strict=True):
        assert each.end_s is not None
        held = node_seconds(each.nodes, 0.0, each.end_s)
        assert each.wasted_node_s >= -1e-9
        lost_node_s += each.wasted_node_s
        if job.program is None and job.checkpoints is not None:
            # what was neither lost nor spent in commits, restarts and resizes is the work, once
            assert held - each.wasted_node_s == pytest.approx(
                job.runtime_s * (job.start_nodes or 0), rel=1e-6
            )
    found = result.metrics()
    assert found.get("lost_node_s", 0.0) <= lost_node_s * (1 + 1e-9) + 1e-6
    if "begun_bytes" in found:
        assert found["moved_bytes"] + found["cut_bytes"] == pytest.approx(found["begun_bytes"])


def test_the_engine_notices_bytes_that_are_not_conserved() -> None:
    job = rigid("a", 2, 100.0, checkpoints=every(30.0, level(node_bytes=GB, path="link")))
    work = workload(job, nodes=2, network_bytes_s=GB)
    assert work.machine is not None
    engine = Engine(work, registry.create("fcfs"), work.machine, Options())
    engine.run_until(31.0)
    engine.progress.transfers.moved.moved_bytes += 1e6
    with pytest.raises(SimulationError, match=r"transfers of 6000000000\.0 bytes began"):
        engine.run()


@pytest.mark.parametrize("first", [0, 20, 40])
def test_random_worlds_conserve_bytes_work_and_nodes(first: int) -> None:
    # the engine raises when anything is not conserved; a run of a whole and one that is copied are the same
    for seed in range(first, first + 20):
        work = parse(failing_world(seed), f"world {seed}")
        assert work.machine is not None
        assert parse(dump(work), "again").jobs == work.jobs or any(job.program for job in work.jobs)
        policy = policy_of(seed, (*DETERMINED, *UNSTEADY))
        engine = Engine(work, policy, work.machine, options_of(seed))
        engine.run_until(30.0)
        other = engine.fork()
        for each in (engine, other):
            each.run()
        assert engine.world.table.rows == other.world.table.rows
        for row in engine.world.table.rows:
            job = engine.world.workload.jobs[row.key]
            if job.program is None and job.checkpoints is not None and job.speed == LINEAR and row.end_s:
                steps = ((row.start_s or 0.0, row.nodes),) if isinstance(row.nodes, int) else row.nodes
                held = node_seconds(steps, 0.0, row.end_s)
                work_node_s = job.runtime_s * job.reference_nodes
                assert held - row.wasted_node_s == pytest.approx(work_node_s, rel=1e-6, abs=1e-6)
