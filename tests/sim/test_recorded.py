"""Workloads of what has run: ``sacct`` and live traces."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.formats import sacct, trace_file
from dask_hpc.sim.model.job import computing_s
from dask_hpc.sim.model.workload import Workload
from dask_hpc.sim.workloads.sources import load
from dask_hpc.slurm.text import SACCT_FORMAT
from dask_hpc.trace.files import Trace
from dask_hpc.trace.records import Header, JobEvent, NodeEvent, Pass, Record
from dask_hpc_policies.decision import Decision
from dask_hpc_policies.model import ClusterSnapshot, JobView

CAPTURED = Path(__file__).parents[1] / "slurm" / "captured" / "sacct-22.05.8.txt"
LIVE = Path(__file__).parents[1] / "traces" / "live-0.1.0.jsonl.gz"


def line(
    id: str, state: str = "COMPLETED", nodes: str = "2", limit: str = "01:00:00", elapsed: str = "60",
    submit: str = "1000", start: str = "1010", end: str = "1070", name: str = "app",
) -> str:  # fmt: skip
    return f"{id}|{id}|p|u|{state}|0:0|{nodes}|n[1-2]|{limit}|{elapsed}|{submit}|{start}|{end}|None|{name}"


def parsed(text: str, source: str = "x.sacct") -> Workload:
    return sacct.parse(enumerate(text.splitlines(), start=1), source)


def test_sacct_as_captured(tmp_path: Path) -> None:
    path = tmp_path / "site.sacct"
    path.write_bytes(CAPTURED.read_bytes())
    workload = load(path)
    # of the captured jobs four are over: one completed, two failed, one cancelled while it ran
    assert [(job.id, job.nodes, job.runtime_s, job.walltime_s) for job in workload.jobs] == [
        ("2", 1, 0, None), ("3", 1, 0, None), ("4", 1, 0, 365 * 86400), ("10", 1, 2, 365 * 86400),
    ]  # fmt: skip
    assert workload.notes == ("6 jobs left out: not over", "2 jobs left out: not started")


def test_sacct_jobs_are_as_they_ran() -> None:
    text = "\n".join(
        [
            line("7", submit="2000", nodes="4", elapsed="90", name="b|c"),
            line("6", "TIMEOUT", limit="UNLIMITED"),
            line("6.batch"),
            line("6", "FAILED", submit="1500"),
            line("8", "PENDING", start="Unknown", end="Unknown"),
        ]
    )
    workload = parsed(text)
    assert [(job.id, job.submit_s, job.nodes, job.runtime_s) for job in workload.jobs] == [
        ("6", 0, 2, 60), ("6.run2", 500, 2, 60), ("7", 1000, 4, 90),
    ]  # fmt: skip
    assert [job.walltime_s for job in workload.jobs] == [None, 3600, 3600]
    assert (workload.jobs[2].name, workload.jobs[2].user, workload.jobs[2].kind) == ("b|c", "u", "rigid")
    assert workload.notes == ("1 steps left out", "1 jobs left out: not started")


def test_sacct_with_its_own_header() -> None:
    text = (
        "JobID|JobName|State|AllocNodes|Submit|Start|Elapsed|Timelimit\n"
        "1|a|COMPLETED|2|2024-01-01T00:00:00|2024-01-01T00:00:05|00:10:00|1-00:00:00\n"
        "1.0|a|COMPLETED|2|2024-01-01T00:00:00|2024-01-01T00:00:05|00:10:00|\n"
        "2_3|b|CANCELLED by 5|1|2024-01-01T00:01:00|2024-01-01T00:01:05|00:00:30|Partition_Limit\n"
        "3|c|CANCELLED by 5|0|2024-01-01T00:01:00|Unknown|00:00:00|01:00:00\n"
    )
    workload = parsed(text)
    assert [(job.id, job.submit_s, job.nodes, job.runtime_s, job.walltime_s) for job in workload.jobs] == [
        ("1", 0, 2, 600, 86400), ("2_3", 60, 1, 30, None),
    ]  # fmt: skip
    assert workload.notes == ("1 steps left out", "1 jobs left out: not started")
    with_times = "JobID|State|NNodes|Submit|Start|End|\n1|COMPLETED|3|10|20|50|\n"
    (job,) = parsed(with_times).jobs
    assert (job.nodes, job.runtime_s) == (3, 30)
    with_seconds = "JobID|State|NNodes|Submit|ElapsedRaw\n1|COMPLETED|3|10|7\n2|CANCELLED|3|10|0\n"
    assert [job.runtime_s for job in parsed(with_seconds).jobs] == [7]


BAD = [
    (line("1") + "\n" + line("x"), "sacct, line 2: JobID: 'x' is no id of a job"),
    (line("1")[:40], "sacct, line 1: expected 15 fields"),
    (line("1", nodes="many"), "line 1: NNodes: 'many' is no number"),
    (line("1", elapsed="9" * 11), "line 1: ElapsedRaw"),
    (line("1", submit="2024-01-01T00:00:00"), "line 1: Submit: '2024-01-01T00:00:00' is a time without zone"),
    (line("1", nodes="0"), "no job that can be simulated; 1 jobs left out: no size"),
    (line("1", submit="Unknown"), "1 jobs left out: no time of submission"),
    ("JobID|State\n1|COMPLETED\n", "line 1: the header has no column Submit"),
    ("JobID|State|Submit|NNodes\n", "line 1: the header has no column ElapsedRaw or Elapsed"),
    ("JobID|State|Submit|NNodes|Elapsed\n1|COMPLETED|5\n", "line 2: expected 5 fields as in the"),
    ("JobID|State|Submit|NNodes|Elapsed\n1|done|5|1|10:00\n", "line 2: State: 'done' is no state"),
    ("JobID|State|Submit|NNodes|Elapsed\n1|FAILED|5|1|soon\n", "line 2: Elapsed: 'soon' is no duration"),
    ("JobID|State|Submit|NNodes|Elapsed\n1|FAILED|5|1K|10:00\n", "line 2: NNodes: '1K' is no number"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), BAD)
def test_bad_sacct_output_is_one_error_with_file_and_line(text: str, said: str) -> None:
    with pytest.raises(WorkloadError) as error:
        parsed(text, "site.sacct")
    assert str(error.value).startswith("site.sacct")
    assert said in str(error.value)


def test_the_command_asks_for_what_is_read() -> None:
    assert SACCT_FORMAT in sacct.COMMAND
    assert "--parsable2" in sacct.COMMAND


def test_bad_files_are_named(tmp_path: Path) -> None:
    cases = {
        "cut.sacct.gz": (gzip.compress(line("1").encode())[:-8], "cut off"),
        "wide.sacct": (line("1").encode("utf-16"), "UTF-16"),
        "empty.sacct": (b"\n", "empty"),
        "no.jsonl": (b"{}\n", "line 1"),
        "wide.jsonl": ('{"kind": "header"}'.encode("utf-16"), ""),
        "no.txt": (b"1", "unknown kind of workload"),
    }
    for name, (data, said) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(WorkloadError) as error:
            load(tmp_path / name)
        assert name in str(error.value), name
        assert said in str(error.value).lower() or said in str(error.value), (name, error.value)


def test_the_recorded_live_trace_is_a_workload() -> None:
    workload = load(LIVE)
    assert workload.machine is not None
    assert workload.jobs
    for job in workload.jobs:
        assert job.runtime_s > 0
        assert job.min_nodes <= (job.nodes or job.min_nodes) <= job.max_nodes
    assert workload.jobs[0].submit_s == 0


def test_a_trace_of_a_cluster_that_was_killed_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(LIVE.read_bytes()[:-20])
    assert load(path).notes[0] == "the trace ends in the middle of a line"


def trace(*records: Record) -> Trace:
    return Trace("t.jsonl", Header(), records)


def test_a_job_of_a_trace_has_the_work_that_it_did() -> None:
    view = JobView(
        id="a", kind="malleable", start_nodes=2, min_nodes=1, max_nodes=4, constraint="pof2",
        walltime_s=99, priority=3, io_intensity=0.5,
    )  # fmt: skip
    workload = trace_file.from_trace(
        trace(
            NodeEvent(t_s=90, nodes=("n1", "n2", "n3", "n4")),
            JobEvent(t_s=100, job="a", name="heat", state="pending"),
            Pass(
                policy={}, decision=Decision(),
                snapshot=ClusterSnapshot(now_s=100, jobs=(view, JobView(id="d", is_default=True))),
            ),
            JobEvent(t_s=110, job="a", state="running", nodes=2),
            JobEvent(t_s=130, job="a", state="adapting", nodes=2),
            JobEvent(t_s=140, job="a", state="running", nodes=4),
            JobEvent(t_s=160, job="a", state="completed"),
        )
    )  # fmt: skip
    (job,) = workload.jobs
    assert workload.machine is not None
    assert workload.machine.nodes == 4
    assert (job.id, job.name, job.submit_s, job.kind, job.nodes) == ("a", "heat", 0, "malleable", 2)
    assert (job.min_nodes, job.max_nodes, job.constraint, job.priority) == (1, 4, "pof2", 3)
    assert (job.walltime_s, job.io_intensity) == (99, 0.5)
    # 30 s on two nodes and 20 s on four
    assert computing_s(job, 2) == 70
    assert computing_s(job, 4) == 35


def test_jobs_that_a_trace_does_not_show_whole_are_left_out() -> None:
    records = (
        JobEvent(t_s=1, job="early", state="running", nodes=2),
        JobEvent(t_s=2, job="ok", state="pending"),
        JobEvent(t_s=3, job="bad", state="pending"),
        JobEvent(t_s=3, job="late", state="pending"),
        JobEvent(t_s=4, job="ok", state="running", nodes=3),
        JobEvent(t_s=5, job="bad", state="running", nodes=3),
        JobEvent(t_s=6, job="bad", state="failed"),
        JobEvent(t_s=7, job="early", state="completed"),
        JobEvent(t_s=14, job="ok", state="completed"),
    )
    workload = trace_file.from_trace(trace(*records), ("a note",))
    (job,) = workload.jobs
    assert (job.id, job.kind, job.nodes, job.runtime_s) == ("ok", "rigid", 3, 10)
    assert workload.notes == (
        "a note",
        "1 jobs left out: submitted before the trace begins",
        "1 jobs left out: failed",
        "1 jobs left out: not over",
    )
    with pytest.raises(WorkloadError, match="no job that can be simulated; it has no jobs"):
        trace_file.from_trace(trace())


def test_a_job_whose_run_time_is_not_known_is_left_out() -> None:
    text = (
        "JobID|JobName|State|NNodes|Submit|Start|Elapsed\n"
        "1|a|COMPLETED|3|2024-01-01T00:00:00|2024-01-01T00:00:00|00:00:10\n"
        "2|b|COMPLETED|3|2024-01-01T00:00:00|2024-01-01T00:00:00|INVALID\n"
        "3|c|COMPLETED|3|2024-01-01T00:00:00|2024-01-01T00:00:00|UNLIMITED\n"
    )
    found = parsed(text)
    assert [(job.id, job.runtime_s) for job in found.jobs] == [("1", 10)]
    assert found.notes == ("2 jobs left out: no run time",)
