"""ElastiSim's files: what each task becomes on each size."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from elastisim_files import CLUSTER, CPU, WRITE, flexible, job, one_phase, write

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.engine.views import mtct
from dask_hpc.sim.formats import elastisim
from dask_hpc.sim.model.job import (
    Compute,
    Delay,
    Job,
    Repeat,
    Request,
    SchedulingPoint,
    Stage,
    Transfer,
    amount,
)


def read(folder: Path, model: Any, *jobs: dict[str, Any], platform: bool = False) -> Job:
    return elastisim.read(write(folder, model, *jobs, platform=platform)).jobs[0]


def stages(job: Job) -> tuple[Stage, ...]:
    assert job.program is not None
    return job.program.stages


def walked(steps: tuple[Stage, ...], nodes: int) -> list[Stage]:
    """Stages as they are gone through."""
    result: list[Stage] = []
    for stage in steps:
        if isinstance(stage, Repeat):
            result += walked(stage.stages, nodes) * round(amount(stage.times, nodes))
        else:
            result.append(stage)
    return result


def names(steps: tuple[Stage, ...], nodes: int = 4) -> str:
    """One letter a stage."""
    letters = {Compute: "c", Transfer: "t", Delay: "d", SchedulingPoint: ".", Request: "?"}
    return "".join(letters[type(stage)] for stage in walked(steps, nodes))  # type: ignore[index]


# What a payload of 24 means on 1 and on 5 nodes: of the busiest node, of all, and how many take part.
PATTERNS = {
    "uniform": ((24, 24, 1), (24, 120, 5)),
    "all_ranks": ((24, 24, 1), (24 / 5, 24, 5)),
    "total": ((24, 24, 1), (24 / 5, 24, 5)),
    "root_only": ((24, 24, 1), (24, 24, 1)),
    "even_ranks": ((24, 24, 1), (8, 24, 3)),
    "odd_ranks": ((0, 0, 1), (12, 24, 2)),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_payload_is_divided_by_its_pattern(tmp_path: Path, pattern: str) -> None:
    cpu = {"type": "cpu", "flops": "24e11", "computation_pattern": pattern}
    io = {"type": "pfs_read", "bytes": 24, "pattern": pattern}
    wait = {"type": "idle", "delay": 24, "pattern": pattern}
    compute, transfer, delay = stages(read(tmp_path, one_phase(cpu, io, wait), flexible(low=1, high=5)))
    assert isinstance(compute, Compute)
    assert isinstance(transfer, Transfer)
    assert isinstance(delay, Delay)
    assert transfer.direction == "read"
    for nodes, (busiest, total, participants) in zip((1, 5), PATTERNS[pattern], strict=True):
        assert amount(compute.work, nodes) / compute.speed(nodes) == pytest.approx(busiest)
        assert amount(delay.seconds, nodes) == pytest.approx(busiest)
        assert amount(transfer.size_bytes, nodes) == pytest.approx(total)
        taking_part = nodes if transfer.participants is None else amount(transfer.participants, nodes)
        assert taking_part == participants


def test_a_vector_names_the_payload_of_each_node(tmp_path: Path) -> None:
    cpu = {"type": "CPU", "flops": [1e11, 0, 3e11, 0], "computation_pattern": "vector"}
    io = {"type": "pfs_write", "bytes": [1, 0, 3, 0], "pattern": "VECTOR"}
    compute, transfer = stages(read(tmp_path, one_phase(cpu, io)))
    assert isinstance(compute, Compute)
    assert isinstance(transfer, Transfer)
    assert (compute.work, transfer.size_bytes, transfer.participants) == (3, 4, 2)


# The busiest link on 4 nodes, one way, of 12.5e9 bytes/s; the sum of all messages is 100e9.
LINKS = {
    "all_to_all": 25e9, "gather": 75e9, "scatter": 75e9, "master_worker": 50e9, "ring": 25e9,
    "ring_clockwise": 25e9, "ring_counter_clockwise": 25e9,
}  # fmt: skip


@pytest.mark.parametrize("pattern", LINKS)
def test_messages_take_the_time_of_the_busiest_link(tmp_path: Path, pattern: str) -> None:
    talk = {"type": "cpu", "bytes": 1e11, "communication_pattern": pattern}
    both = {**CPU, "bytes": 1e11, "communication_pattern": pattern, "coupled": True}
    model = one_phase(talk, both)
    delay, compute = stages(read(tmp_path, model, flexible(), platform=True))
    assert isinstance(delay, Delay)
    assert isinstance(compute, Compute)
    assert amount(delay.seconds, 4) == pytest.approx(LINKS[pattern] / 12.5e9)
    assert amount(delay.seconds, 1) == 0
    # computing takes 8 s and overlaps
    assert amount(compute.work, 4) / compute.speed(4) == pytest.approx(max(8, LINKS[pattern] / 12.5e9))
    # without a platform, links have no limit
    delay, compute = stages(read(tmp_path, model, flexible()))
    assert isinstance(delay, Delay)
    assert amount(delay.seconds, 4) == 0


def test_a_matrix_of_messages(tmp_path: Path) -> None:
    cells = [99, 1, 2, 3, 9, 0, 0, 0, 9, 0, 0, 0, 7, 0, 0, 0]
    talk = {"type": "cpu", "bytes": [cell * 1e9 for cell in cells], "communication_pattern": "matrix"}
    (delay,) = stages(read(tmp_path, one_phase(talk), platform=True))
    assert isinstance(delay, Delay)
    assert delay.seconds == pytest.approx(25 / 12.5)


def test_formulas_know_the_size_and_the_arguments(tmp_path: Path) -> None:
    cpu = {"type": "cpu", "flops": "comp / num_nodes^0.8", "computation_pattern": "uniform"}
    io = {"type": "pfs_write", "bytes": "size", "pattern": "uniform", "iterations": "num_nodes > 2 ? 1 : 2"}
    arguments = {"comp": 8e12, "size": "7e11", "phase_i": 3}
    read_ = read(tmp_path, one_phase(cpu, io, iterations="phase_i"), flexible(arguments=arguments))
    assert names(stages(read_), nodes=4) == "ct.ct.ct"
    assert names(stages(read_), nodes=2) == "ctt.ctt.ctt"
    first = stages(read_)[0]
    assert isinstance(first, Compute)
    for nodes in range(1, 9):
        assert amount(first.work, nodes) / first.speed(nodes) == pytest.approx(80 / nodes**0.8)


def test_arguments_may_be_texts_that_no_formula_uses(tmp_path: Path) -> None:
    cpu = {"type": "cpu", "flops": "comp * num_nodes", "computation_pattern": "uniform"}
    numbers = {"comp": "8e11"}
    texts = {"input": "mesh.nc", "run-of": "2024-01-01", "count": "1_000", "limit": "inf", "num_nodes": "all"}
    with_texts = read(tmp_path, one_phase(cpu), flexible(arguments={**numbers, **texts}))
    assert with_texts == read(tmp_path, one_phase(cpu), flexible(arguments=numbers))


@pytest.mark.parametrize("formula", ["input / num_nodes", "num_nodes > 0 ? 1 : input"])
def test_a_formula_that_uses_a_text_names_the_argument(tmp_path: Path, formula: str) -> None:
    cpu = {"type": "cpu", "flops": formula, "computation_pattern": "uniform"}
    with pytest.raises(WorkloadError) as error:
        read(tmp_path, one_phase(cpu), flexible(arguments={"input": "mesh.nc"}))
    assert f"phases[0].tasks[0].flops: '{formula}' uses the argument 'input'" in str(error.value)
    assert "which is the text 'mesh.nc'; an argument of a formula must be a number" in str(error.value)
    assert "as the application of jobs[0]" in str(error.value)


def test_the_speed_of_computing_is_known_to_policies(tmp_path: Path) -> None:
    def share(flops: str, low: int, nodes: int) -> float | None:
        cpu = {"type": "cpu", "flops": flops, "computation_pattern": "uniform"}
        return mtct(read(tmp_path, one_phase(cpu), flexible(low=low, high=8)), nodes)

    assert share("8e12 / num_nodes", 1, 8) == pytest.approx(0)
    assert share("8e12 / num_nodes", 4, 8) == pytest.approx(0)
    # no faster at all: all that more nodes do is wait
    assert share("8e12", 1, 8) == pytest.approx(7)
    assert share("8e12 / num_nodes^0.5", 1, 4) == pytest.approx(1)


def test_scheduling_points_stand_before_each_iteration_but_the_first(tmp_path: Path) -> None:
    twice = {"iterations": 2, "tasks": [CPU]}
    cases = [
        ([twice, twice], "c.c.c.c"),
        ([{**twice, "scheduling_point": False}, twice], "cc.c.c"),
        ([{**twice, "final_scheduling_point": False}, twice], "c.cc.c"),
        ([{"iterations": 0, "tasks": [CPU]}, twice], "c.c"),
        ([{"tasks": [CPU]}, {"tasks": [WRITE]}], "c.t"),
        ([{"tasks": [{"type": "sequence", "iterations": 2, "tasks": [CPU, WRITE]}, CPU]}], "ctctc"),
    ]
    for phases, expected in cases:
        assert names(stages(read(tmp_path, {"phases": phases}, flexible()))) == expected, phases
    model = {"on_init": {"tasks": [WRITE], "iterations": 2}, "phases": [twice]}
    assert names(stages(read(tmp_path, model, flexible()))) == "ttc.c"
    assert names(stages(read(tmp_path, {"on_init": [WRITE], "phases": [twice]}, flexible()))) == "tc.c"


def test_evolving_requests_come_before_each_iteration(tmp_path: Path) -> None:
    def requests(text: str | int, nodes: int) -> tuple[str, list[float]]:
        model = one_phase(CPU, iterations=3, evolving_request=text)
        found = read(tmp_path, model, flexible("evolving", 2, 8))
        assert (found.kind, found.nodes, found.min_nodes, found.max_nodes) == ("evolving", None, 2, 8)
        asked = [s for s in walked(stages(found), nodes) if isinstance(s, Request)]
        return names(stages(found)), [amount(request.nodes, nodes) for request in asked]

    assert requests("num_nodes % 2 == 0 ? num_nodes + 1 : num_nodes - 1", 4) == ("?c?.c?.c", [5, 5, 5])
    assert requests("num_nodes_min + 2 * phase_iteration", 4) == ("?c?.c?.c", [2, 4, 6])
    # cut to the sizes of the job
    assert requests("phase_iteration == 1 ? 1 : 99", 4)[1] == [8, 2, 8]
    assert requests(6, 4)[1] == [6, 6, 6]


def test_jobs_of_every_type(tmp_path: Path) -> None:
    rows = [
        job(submit_time=9, attributes={"priority": 50, "name": "a", "user": "u", "io_intensity": 0.25}),
        *(flexible(kind, submit_time=3, walltime=60) for kind in ("Moldable", "malleable", "adaptive")),
    ]
    workload = elastisim.read(write(tmp_path, one_phase(CPU), *rows))
    by_id = {one.id: one for one in workload.jobs}
    assert [one.id for one in workload.jobs] == ["2", "3", "4", "1"]
    assert [by_id[id].kind for id in "1234"] == ["rigid", "moldable", "malleable", "malleable"]
    first = by_id["1"]
    assert (first.nodes, first.priority, first.name, first.user, first.io_intensity) == (
        4,
        50,
        "a",
        "u",
        0.25,
    )
    assert (first.walltime_s, by_id["2"].walltime_s) == (None, 60)
    assert workload.machine is None
    assert "1e+11 operations per second assumed" in workload.notes[0]


def test_users_of_a_jobs_file_are_texts(tmp_path: Path) -> None:
    users = ("007", "7.0", "1e3", 1001)
    rows = [job(attributes={"user": user, "priority": "3"}) for user in users]
    found = elastisim.read(write(tmp_path, one_phase(CPU), *rows)).jobs
    assert [one.user for one in found] == ["007", "7.0", "1e3", "1001"]
    assert {one.priority for one in found} == {3}


def test_a_configuration_brings_its_platform(tmp_path: Path) -> None:
    workload = elastisim.read(write(tmp_path, one_phase(CPU), platform=True))
    assert workload.machine is not None
    assert (workload.machine.nodes, workload.machine.link_bytes_s) == (128, 12.5e9)
    assert workload.machine.file_system_bytes_s == 48e9
    (tmp_path / "platform.xml").write_text(CLUSTER.replace('"100Gf"', '"200Mf"'))
    slow = stages(elastisim.read(tmp_path / "configuration.json").jobs[0])[0]
    assert isinstance(slow, Compute)
    assert slow.work == pytest.approx(4000)


def test_models_are_found_where_elastisim_was_started(tmp_path: Path) -> None:
    inner = tmp_path / "data" / "input"
    inner.mkdir(parents=True)
    for name in ("data/input/model.json", "/somewhere/else/model.json", "model.json"):
        path = write(inner, one_phase(CPU), job(application_model=name))
        assert len(elastisim.read(path).jobs) == 1, name


def test_what_is_simulated_otherwise_is_counted(tmp_path: Path) -> None:
    model = one_phase({**WRITE, "async": True})
    workload = elastisim.read(write(tmp_path, model, job(attributes={"colour": "red"}), job()))
    notes = "\n".join(workload.notes)
    assert "2 asynchronous I/O tasks" in notes
    assert "1 jobs with the attribute 'colour'" in notes


def test_phases_of_a_resize_are_read_for_those_who_do_them(tmp_path: Path) -> None:
    model = {
        **one_phase(CPU, iterations=2),
        "on_reconfiguration": {"tasks": [{"type": "idle", "delay": "num_nodes"}]},
        # the same bytes together, however many nodes join
        "on_expansion": [{"type": "pfs_read", "bytes": "8e9 / num_nodes", "pattern": "uniform"}],
    }
    (read,) = elastisim.read(write(tmp_path, model, flexible(low=2, high=8))).jobs
    assert read.program is not None
    (after,), (joined,) = read.program.on_reconfiguration, read.program.on_expansion
    assert isinstance(after, Delay)
    assert isinstance(joined, Transfer)
    assert [amount(after.seconds, n) for n in (2, 8)] == [2, 8]
    assert [amount(joined.size_bytes, n) for n in (1, 6)] == [8e9, 8e9]
    assert joined.direction == "read"


def test_a_packed_file_and_one_with_a_mark_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, one_phase(CPU))
    packed = tmp_path / "jobs.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert elastisim.read(packed).jobs == elastisim.read(path).jobs
