"""Workloads written as YAML and read again are the same workloads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.formats.amounts import BySize
from dask_hpc.sim.formats.yaml_file import parse
from dask_hpc.sim.formats.yaml_text import dump
from dask_hpc.sim.model.job import (
    CONSTANT,
    LINEAR,
    Compute,
    Delay,
    Job,
    Program,
    Repeat,
    Request,
    SchedulingPoint,
    SpeedUp,
    Transfer,
    amdahl,
    amount,
    power_law,
    speed_table,
)
from dask_hpc.sim.model.machine import PUBLISHED, Failures, Machine, NodeFailure
from dask_hpc.sim.model.pool import Pool
from dask_hpc.sim.model.power import NodePower
from dask_hpc.sim.model.workload import Workload
from dask_hpc.sim.workloads import sources

positive = st.floats(1e-3, 1e9)
names = st.text("abcexyz-_ 0:#'é", min_size=1, max_size=8).filter(str.strip) | st.sampled_from(
    ["1e3", "-2E+5", ".5e1", "1.0e1", "0x1f", "1_0", "190:20", "2026-01-31", "null", "no", "=", "<<", "~"]
)
speeds = st.one_of(st.just(LINEAR), st.floats(0, 1).map(amdahl), st.floats(0, 1).map(power_law))


@st.composite
def amounts(draw: st.DrawFn, low: int, high: int) -> Any:
    values = draw(st.lists(st.floats(0, 1e9), min_size=high - low + 1, max_size=high - low + 1))
    return values[0] if len(set(values)) == 1 or draw(st.booleans()) else BySize(low, tuple(values))


@st.composite
def stages(draw: st.DrawFn, low: int, high: int, speed: SpeedUp, depth: int = 0) -> Any:
    some = amounts(low, high)
    choices: list[Any] = [
        st.builds(Compute, work=some, speed=st.just(speed)),
        st.builds(
            Transfer, size_bytes=some, direction=st.sampled_from(["read", "write"]),
            purpose=st.just("") | names, participants=st.none() | st.integers(1, low).map(float),
        ),
        st.builds(Delay, seconds=some),
        st.just(SchedulingPoint()),
        st.builds(Request, nodes=st.integers(low, high).map(float)),
    ]  # fmt: skip
    if depth < 2:
        inner = st.lists(stages(low, high, speed, depth + 1), min_size=1, max_size=3).map(tuple)
        choices.append(st.builds(Repeat, stages=inner, times=st.integers(0, 9).map(float)))
    return draw(st.one_of(choices))


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    low = draw(st.integers(1, 6))
    high = draw(st.integers(low, 8))
    kind = draw(st.sampled_from(["rigid", "moldable", "malleable", "evolving"]))
    if kind == "rigid":
        high = low
    start = (
        low if kind == "rigid" else None if kind == "moldable" else draw(st.none() | st.integers(low, high))
    )
    program, speed, runtime_s, reference = None, draw(speeds), 0.0, 0
    if draw(st.booleans()):
        runtime_s, reference = draw(positive), draw(st.integers(1, 9))
    else:
        # one stage of computing at least, whose speed is that of the job
        rest = draw(st.lists(stages(low, high, speed), max_size=4))
        program = Program(
            stages=(Compute(work=draw(positive), speed=speed), *rest),
            resize=draw(st.sampled_from(["anytime", "points"])),
        )
        if program.resize == "points":
            program = replace(
                program,
                on_reconfiguration=draw(st.just(()) | st.just((Delay(seconds=3.0),))),
                on_expansion=draw(st.just(()) | st.just((Transfer(size_bytes=5e6, direction="read"),))),
            )
    deadlines = sorted(draw(st.lists(positive, min_size=2, max_size=2)))
    return Job(
        id="", submit_s=draw(st.floats(0, 1e6)), start_nodes=start, min_nodes=low, max_nodes=high, kind=kind,
        walltime_s=draw(st.none() | positive), priority=draw(st.integers(-9, 9)), runtime_s=runtime_s,
        speed=speed, reference_nodes=reference, program=program, name=draw(names),
        user=draw(st.just("") | names), application=draw(st.just("") | names),
        data_bytes=draw(st.just(0.0) | positive),
        recorded_s=draw(st.none() | positive), preferred_nodes=draw(st.none() | st.integers(low, high)),
        io_intensity=draw(st.none() | st.floats(0, 1)),
        io_by_nodes=draw(st.just(()) | st.floats(0, 1).map(lambda share: ((low, share),))),
        checkpoint_interval_s=draw(st.none() | positive), min_power_w=draw(st.none() | st.floats(0, 1e6)),
        deadline_s=draw(st.none() | st.just(deadlines[1])),
        soft_deadline_s=draw(st.none() | st.just(deadlines[0])), value=draw(st.none() | st.floats(0, 1e9)),
        protect=draw(st.booleans() | names), resilience=draw(st.just("") | names),
    )  # fmt: skip


@given(st.lists(jobs(), min_size=1, max_size=4), st.booleans())
def test_what_is_written_is_read_again(drawn: list[Job], with_machine: bool) -> None:
    numbered = [replace(job, id=str(number)) for number, job in enumerate(drawn)]
    machine = Machine(nodes=8, link_bytes_s=1e9) if with_machine else None
    workload = Workload(
        name="w", jobs=tuple(sorted(numbered, key=lambda job: job.submit_s)), machine=machine, source="w.yaml"
    )
    assert replace(parse(dump(workload), "w.yaml"), notes=()) == workload


def test_machines_are_written_whole() -> None:
    machine = Machine(
        nodes=8, link_bytes_s=1e9, file_system_bytes_s=2e9, adaptation=PUBLISHED,
        failures=Failures(
            listed=(NodeFailure(t_s=1, node=2, downtime_s=5),), node_mtbf_s=1e6, downtime_s=60
        ),
    )  # fmt: skip
    jobs = parse("jobs: [{name: a, nodes: 1, runtime: 3}]", "w").jobs
    again = parse(dump(Workload(name="w", jobs=jobs, machine=machine)), "w")
    assert again.machine == machine
    pool = Pool(
        initial_nodes=3, wait_s=None, wait_sigma=0.5, boot_s=9, walltime_s=60, initial_walltimes_s=(4.0, None)
    )
    for more in (
        Machine(nodes=8, pool=pool, roles={"staging": 1}, power=NodePower(idle_w=90, busy_w=300, down_w=1)),
        Machine(nodes=8, pool=Pool(initial_nodes=0), roles={}, power=NodePower()),
    ):
        assert parse(dump(Workload(name="w", jobs=jobs, machine=more)), "w").machine == more
    named = parse("machine: {nodes: 2, adaptation: published}\njobs: [{name: a, nodes: 1, runtime: 3}]", "w")
    assert named.machine == Machine(nodes=2, adaptation=PUBLISHED)


# no file describes a coupled run, which is refused: test_coupled
@pytest.mark.parametrize("name", sorted({*sources.BUILTIN} - {"coupled"}))
def test_builtin_workloads_can_be_kept(name: str) -> None:
    small = {"io-aware": {"jobs": 30}, "poisson": {"jobs": 30}, "esp": {"malleable": 0.5}}.get(name, {})
    if name.startswith("mebf"):
        small = {"jobs": 10}
    workload = sources.load(f"builtin:{name}", seed=1, **small)
    again = parse(dump(workload), "w.yaml")
    assert again.machine == workload.machine
    for before, after in zip(workload.jobs, again.jobs, strict=True):
        # a job without name has got one, and the size that its run time belongs to is said
        reference = 0 if before.program else before.reference_nodes or before.nodes
        speed = after.speed if before.program else before.speed
        assert after == replace(before, name=before.name or before.id, reference_nodes=reference, speed=speed)


def test_speeds_that_differ_by_stage_become_times() -> None:
    table = speed_table({1: 10, 2: 6, 3: 5, 4: 4})
    program = Program(
        stages=(Compute(work=20.0, speed=table), Compute(work=BySize(2, (8.0, 6.0, 5.0)), speed=CONSTANT))
    )
    job = Job(
        id="a", submit_s=0, start_nodes=None, min_nodes=2, max_nodes=4, kind="malleable", program=program
    )
    again = parse(dump(Workload(name="w", jobs=(job,))), "w").jobs[0].program
    assert again is not None
    for nodes in (2, 3, 4):
        for before, after in zip(program.stages, again.stages, strict=True):
            assert isinstance(before, Compute)
            assert isinstance(after, Compute)
            assert amount(after.work, nodes) / after.speed(nodes) == pytest.approx(
                amount(before.work, nodes) / before.speed(nodes)
            )


def test_a_table_of_speeds_is_kept() -> None:
    job = Job(
        id="a", name="a", submit_s=0, start_nodes=2, min_nodes=2, max_nodes=2, runtime_s=6,
        speed=speed_table({1: 10, 2: 6}), reference_nodes=2,
    )  # fmt: skip
    again = parse(dump(Workload(name="w", jobs=(job,))), "w").jobs[0]
    assert [again.speed(n) for n in (1, 2)] == pytest.approx([0.1, 1 / 6])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("delay: {2: 3}", "no value for 3 nodes; a table has one for each size, 2 to 3"),
        ("compute: {2: 3, 3: -1}", "compute.3: expected a number from 0"),
        ("write: 1, participants: 3", "3 of 2 nodes; it must be from 1 to all"),
        ("write: 1, participants: 0", "0 of 2 nodes"),
    ],
)
def test_bad_tables_are_one_error(text: str, said: str) -> None:
    with pytest.raises(WorkloadError) as error:
        parse("jobs: [{name: a, min_nodes: 2, max_nodes: 3, stages: [{" + text + "}]}]", "w")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "failures: [{at: 1, node: 4, down: 1}]",
            "machine.failures[0].node: expected a whole number from 0 to 3",
        ),
        ("failures: [{at: 1, node: 3}]", "'down' is missing"),
        ("node_mtbf: 0", "machine.node_mtbf: expected a duration above 0 s"),
        ("pool: {initial_nodes: 5}", "machine.pool.initial_nodes: expected a whole number from 0 to 4"),
        ("pool: {wait_s: 5}", "machine.pool: 'initial_nodes' is missing"),
        ("pool: {initial_nodes: 1, wait: 5}", "machine.pool.wait: unknown key"),
        ("pool: {initial_nodes: 1, wait_s: soon}", "machine.pool.wait_s: "),
        ("pool: {initial_nodes: 1, walltime_s: 0}", "machine.pool.walltime_s: expected a duration above 0 s"),
        (
            "pool: {initial_nodes: 1, wait_sigma: 11}",
            "machine.pool.wait_sigma: expected a number from 0 to 10",
        ),
        ("roles: {kitchen: 1}", "machine.roles.kitchen: unknown key; known keys: compute, staging"),
        ("roles: {staging: 4}", "machine: roles: 4 nodes of 4 play others, so that none computes"),
        ("power: {idle: 4}", "machine.power.idle: unknown key"),
        ("power: {idle_w: -4}", "machine.power.idle_w: expected a number from 0"),
        ("power: {idle_w: 1e30}", "machine.power.idle_w: expected a number from 0 to 1e+06"),
        ("adaptation: cheap", "machine.adaptation: 'cheap' is none of none, published"),
        ("adaptation: {expand_s: 1}", "machine.adaptation.expand_s: unknown key"),
    ],
)
def test_bad_machines_are_one_error(text: str, said: str) -> None:
    with pytest.raises(WorkloadError) as error:
        parse("machine: {nodes: 4, " + text + "}\njobs: [{name: a, nodes: 1, runtime: 1}]", "w")
    assert said in str(error.value)
