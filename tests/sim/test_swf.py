"""The reader of the standard workload format, and the real traces when they are there."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from sim_worlds import run, starts

from dask_hpc.errors import WorkloadError
from dask_hpc.sim import Workload, load, simulate
from dask_hpc.sim.formats.swf import parse
from dask_hpc_policies import registry

HEADER = "; Computer: X\n; MaxProcs: 64\n; Note: anything\n"


def line(number: int = 1, submit: float = 0, runtime: float = 10, **more: float) -> str:
    fields = [-1.0] * 18
    fields[0], fields[1], fields[3], fields[7], fields[8] = number, submit, runtime, 4, 20
    for name, value in more.items():
        fields[int(name[1:]) - 1] = value
    return " ".join(f"{value:g}" for value in fields)


def read(*lines: str) -> Workload:
    return parse(enumerate((HEADER + "\n".join(lines)).split("\n"), start=1), "log.swf")


def test_fields_of_a_job() -> None:
    work = read(line(7, 5, 10, f12=3, f14=9))
    (job,) = work.jobs
    assert (job.id, job.submit_s, job.nodes, job.runtime_s, job.walltime_s) == ("7", 5, 4, 10, 20)
    assert (job.user, job.application, job.kind) == ("3", "9", "rigid")
    assert work.machine is not None
    assert work.machine.nodes == 64


def test_requested_processors_else_allocated_ones() -> None:
    assert [job.nodes for job in read(line(1, f5=8), line(2, f5=8, f8=-1)).jobs] == [4, 8]


def test_lines_in_any_order_are_taken_by_submission_and_number() -> None:
    assert [job.id for job in read(line(3, 5), line(2, 5), line(1, 9), line(4, 0)).jobs] == [
        "4",
        "2",
        "3",
        "1",
    ]


def test_what_cannot_be_simulated_is_left_out_and_counted() -> None:
    work = read(
        line(1), line(2, submit=-1), line(3, runtime=-1), line(4, f8=-1), line(5, f11=2), line(6, f9=-1),
        line(7, runtime=0),
    )  # fmt: skip
    assert [job.id for job in work.jobs] == ["1", "6", "7"]
    assert sorted(work.notes) == [
        "1 jobs left out: no run time",
        "1 jobs left out: no size",
        "1 jobs left out: no submission time",
        "1 jobs without a requested time: their run time is the estimate",
        "1 partial executions left out (status 2 to 4)",
    ]
    assert [job.walltime_s for job in work.jobs] == [20, 10, 20]
    assert set(starts(run(work)).values()) == {0.0}


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("1 2 3", "line 4, field 4 (run time)", "the line has 3 of 18 fields"),
        (line().replace("10", "ten"), "line 4, field 4 (run time)", "'ten' is not a number"),
        (line(runtime=float("nan")), "line 4, field 4 (run time)", "is not a number"),
        (line(runtime=float("inf")), "line 4, field 4 (run time)", "is not a number"),
        (line(submit=1e15), "line 4, field 2 (submit time)", "out of range"),
        (line(f8=1e12), "line 4, field 8 (requested processors)", "out of range"),
        (line(f8=2.5), "line 4, field 8 (requested processors)", "whole number"),
        (line(1) + "\n" + line(1), "line 5, field 1 (job number)", "also the job of line 4"),
        (line(f13=float("nan")), "line 4, field 13 (group)", "is not a number"),
    ],
)
def test_a_wrong_line_refuses_the_file_with_line_and_field(text: str, where: str, what: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        read(text)
    assert str(caught.value).startswith(f"log.swf, {where}: ")
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_text(tmp_path: Path) -> None:
    good = (HEADER + line() + "\n").encode()
    packed = gzip.compress(good)
    damaged = bytearray(gzip.compress(good * 50))
    damaged[60:80] = bytes(20)
    cases = {
        "utf16.swf": (good.decode().encode("utf-16"), "UTF-16"),
        "binary.swf": (good + b"\0\0", "line 5: a zero byte"),
        "cut.swf.gz": (packed[:-12], "the gzip file is cut off"),
        "damaged.swf.gz": (bytes(damaged), "the gzip file is damaged"),
        "empty.swf": (b"", "no job that can be simulated"),
        "comments.swf": (HEADER.encode(), "no job that can be simulated"),
    }
    for name, (content, what) in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(WorkloadError, match=what) as caught:
            load(path)
        assert str(path) in str(caught.value)
    with pytest.raises(WorkloadError, match="cannot be read"):
        load(tmp_path / "absent.swf")
    whole = tmp_path / "whole.swf.gz"
    whole.write_bytes(packed)
    assert len(load(whole).jobs) == 1


def test_the_real_trace_job_by_job(data_folder: Path) -> None:
    path = data_folder / "KTH-SP2-easy.swf.gz"
    work = load(path)
    rows = [row.split() for row in gzip.decompress(path.read_bytes()).decode().splitlines()]
    expected = {row[0]: float(row[2]) for row in rows if row and row[0] != ";"}

    single = simulate(work, registry.create("easy", events="single"), nodes=100)
    assert {one.id: one.wait_s for one in single.runs} == expected
    assert single.metrics(jobs=False)["mean_wait_s"] == pytest.approx(6836.87, abs=0.005)

    grouped = simulate(work, "easy", nodes=100)
    assert grouped.metrics(jobs=False)["mean_wait_s"] == pytest.approx(6834.59, abs=0.005)
    assert sum(one.wait_s != expected[one.id] for one in grouped.runs) == 456

    fcfs = simulate(work, "fcfs", nodes=100)
    assert fcfs.metrics(jobs=False)["mean_wait_s"] == pytest.approx(353_776.4, abs=0.05)
    for result in (single, grouped, fcfs):
        assert result.counts.idle_policy_calls == result.counts.idle_queue_scans == 0


@pytest.mark.parametrize(
    ("name", "nodes", "jobs"),
    [("theta-2023-walltime.swf.gz", 4392, 23_387), ("NASA-iPSC-1993-3.1-cln.swf.gz", 128, 18_239)],
)
def test_other_real_traces_run(data_folder: Path, name: str, nodes: int, jobs: int) -> None:
    result = simulate(load(data_folder / name), "easy", nodes=nodes)
    assert len(result.runs) == jobs
    assert all(one.state == "completed" for one in result.runs)


def test_a_seeded_trace_of_that_size_stands_in_for_a_real_one() -> None:
    work = load("builtin:poisson", seed=1, jobs=28_481, nodes=100, load=0.7)
    waits = [simulate(work, policy).metrics(jobs=False)["mean_wait_s"] for policy in ("easy", "fcfs")]
    assert 0 < waits[0] < waits[1]
