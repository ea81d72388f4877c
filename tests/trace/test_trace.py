"""Traces: round trip, every malformed input, cut ends, and what jobs did."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.errors import TraceError
from dask_hpc.trace.files import TraceWarning, parse_trace, read_trace, write_trace
from dask_hpc.trace.records import Header, JobEvent, NodeEvent, Pass, Record, Result, decode_line, encode_line
from dask_hpc.trace.runs import job_runs, pool_steps
from dask_hpc_policies.decision import Decision, Expand, Hold, Outcome, Reason, ReasonCode, Shrink, Start
from dask_hpc_policies.model import ClusterSnapshot, Demand, JobView, NodeView

REASON = Reason(ReasonCode.FITS, "needs 2 nodes, 4 are idle", {"idle": 4, "sizes": [1, 2]})
RECORDS: list[Record] = [
    Header(started="2026-01-01T00:00:00+00:00", versions={"dask_hpc": "0.1.0"}),
    Pass(
        policy={"policy": "fcfs", "params": {}},
        state={"closes": 2},
        snapshot=ClusterSnapshot(
            now_s=1.5,
            trigger="submit",
            nodes=(NodeView(id="w-0", walltime_left_s=60.0), NodeView(id="w-1", job="a", state="lost")),
            jobs=(JobView(id="a", name="héat <1>", constraint="pof2"),),
            idle_nodes=1,
            demand=Demand(occupancy_s=3.0),
        ),
        decision=Decision(actions=(Start(job="a", nodes=2, reason=REASON), Hold(job="b", reason=REASON))),
        decide_s=0.001,
    ),
    Result(
        t_s=2.0, outcome=Outcome(action=Start(job="a", nodes=2, reason=REASON), result="done", reason=REASON)
    ),
    JobEvent(t_s=1.0, job="a", name="heat", state="pending"),
    NodeEvent(t_s=0.0, nodes=("w-0",)),
]
LINES = [encode_line(record) for record in RECORDS]


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_trace(path, RECORDS)
    trace = read_trace(path)
    assert trace.header == RECORDS[0]
    assert trace.records == tuple(RECORDS[1:])
    assert [item.snapshot.now_s for item in trace.passes] == [1.5]
    assert path.read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")
    assert os.listdir(tmp_path) == [name]


def test_equal_traces_give_equal_bytes(tmp_path: Path) -> None:
    write_trace(tmp_path / "a.gz", RECORDS)
    write_trace(tmp_path / "b.gz", RECORDS)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(path, RECORDS)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="inf"):
        write_trace(path, [*RECORDS, NodeEvent(t_s=float("inf"), nodes=("w",))])
    with pytest.raises(TraceError, match="record 2 is a header"):
        write_trace(path, [RECORDS[0], RECORDS[0]])
    with pytest.raises(TraceError, match="record 1 is a node"):
        write_trace(path, RECORDS[4:])
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["trace.jsonl"]


@given(
    st.builds(
        JobEvent,
        t_s=st.floats(allow_nan=False, allow_infinity=False),
        job=st.text(),
        name=st.text(),
        state=st.sampled_from(["pending", "running", "failed"]),
        nodes=st.integers(),
        reason=st.text(),
    )
)
def test_any_text_survives_on_one_line(event: JobEvent) -> None:
    line = encode_line(event)
    assert len(line.splitlines()) == 1
    assert decode_line(line) == event


def test_unknown_fields_are_ignored_and_absent_ones_take_defaults() -> None:
    record = decode_line('{"kind": "nodes", "t_s": 1, "nodes": ["w"], "colour": "red"}')
    assert record == NodeEvent(t_s=1.0, nodes=("w",))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", "expected one JSON object"),
        ("nonsense", "expected one JSON object"),
        ("[1]", "expected one JSON object"),
        ("{", "expected one JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"kind": ""}', "expected a kind of header, pass, outcome, job, .*, transfer or another; got ''"),
        ('{"kind": ["pass"]}', "expected a kind"),
        ("{}", "expected a kind"),
        ('{"kind": "nodes", "t_s": NaN, "nodes": ["w"]}', "NaN is not JSON"),
        ('{"kind": "nodes", "t_s": "1", "nodes": ["w"]}', r"NodeEvent\.t_s: expected float, got '1'"),
        ('{"kind": "nodes", "nodes": ["w"]}', "NodeEvent: .*t_s"),
        (
            '{"kind": "pass", "policy": {}, "snapshot": {"now_s": 1, "trigger": "x"}}',
            r"snapshot\.trigger: 'x'",
        ),
        (LINES[0], "expected a record, not a second header"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, expected: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join([LINES[0], LINES[4], line, LINES[4], ""]))
    with pytest.raises(TraceError, match=expected) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}, line 3: ")
    assert "\n" not in str(caught.value)


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(LINES[0].encode() + b"\n\xff\xfe\n" + LINES[4].encode() + b"\n")
    with pytest.raises(TraceError, match=r"bad\.jsonl, line 2: expected UTF-8"):
        read_trace(path)


@pytest.mark.parametrize("name", ["cut.jsonl", "cut.jsonl.gz"])
def test_a_cut_end_is_told_and_tolerated(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    whole = "".join(line + "\n" for line in LINES).encode()
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(whole)[:-40])
    else:
        path.write_bytes(whole[:-10])
    with pytest.warns(TraceWarning, match=r"is cut; the \d+ lines before it were read"):
        trace = read_trace(path)
    assert 0 < len(trace.records) < len(RECORDS)
    assert trace.records == tuple(RECORDS[1 : 1 + len(trace.records)])


def test_a_last_line_without_line_break_counts_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(LINES))
    assert read_trace(path).records == tuple(RECORDS[1:])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "line 1: expected the header, got nothing"),
        (LINES[4].encode() + b"\n", "line 1: expected the header, got a record of kind 'nodes'"),
        (b'{"kind": "header", "schema": 99, "versions": {"dask_hpc": "9"}}\n', "version 99; .* reads 1 to 1"),
    ],
)
def test_a_trace_without_a_header_we_know_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=expected):
        read_trace(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read the trace .*absent\.jsonl: No such file"):
        read_trace(tmp_path / "absent.jsonl")
    (tmp_path / "plain.gz").write_text("plain text\n")
    with pytest.raises(TraceError, match=r"cannot read the trace .*plain\.gz: Not a gzipped file"):
        read_trace(tmp_path / "plain.gz")


def test_lines_from_memory_are_read_like_a_file() -> None:
    assert parse_trace(LINES).records == tuple(RECORDS[1:])
    with pytest.raises(TraceError, match="live, line 2"):
        parse_trace([LINES[0], "x"], "live")


def event(t_s: float, job: str, state: str, nodes: int = 0) -> JobEvent:
    return JobEvent(t_s=t_s, job=job, name=job.upper(), state=state, nodes=nodes)


def outcome(t_s: float, action: Expand | Shrink, result: str) -> Result:
    return Result(t_s=t_s, outcome=Outcome(action=action, result=result, reason=REASON))


def test_job_runs() -> None:
    records = [
        event(0.0, "a", "pending"),
        event(1.0, "a", "running", 2),
        event(2.0, "b", "pending"),
        event(3.0, "a", "adapting", 2),
        event(4.0, "a", "running", 4),
        outcome(4.0, Expand(job="a", nodes=4, reason=REASON), "done"),
        outcome(4.5, Shrink(job="a", nodes=2, reason=REASON), "aborted"),
        event(5.0, "a", "running", 3),  # a worker was lost: fewer nodes, but no shrink
        event(6.0, "a", "completing", 3),
        event(7.0, "a", "completed", 0),
        event(8.0, "b", "cancelled"),
        event(9.0, "c", "pending"),
    ]
    a, b, c = job_runs(records)
    assert (a.id, a.name, a.state, a.submit_s, a.start_s, a.end_s) == ("a", "A", "completed", 0.0, 1.0, 7.0)
    assert a.nodes == ((1.0, 2), (4.0, 4), (5.0, 3), (7.0, 0))
    assert (a.expansions, a.shrinks) == (1, 0)
    assert (b.start_s, b.end_s, b.state, b.nodes) == (None, 8.0, "cancelled", ())
    assert (c.submit_s, c.start_s, c.end_s, c.state) == (9.0, None, None, "pending")


def test_job_runs_of_a_trace_without_its_beginning() -> None:
    (run,) = job_runs([event(5.0, "a", "adapting", 3), event(6.0, "a", "completed")])
    assert (run.start_s, run.end_s, run.nodes) == (5.0, 6.0, ((5.0, 3), (6.0, 0)))
    # nodes that are being left were had, and who takes turns with others has none
    assert [job_runs([event(5.0, "a", *one)])[0].start_s for one in (("completing", 3), ("running", 0))] == [
        5.0, 5.0,
    ]  # fmt: skip


def test_pool_steps() -> None:
    def node(t_s: float, name: str, state: str = "up", job: str | None = None) -> NodeEvent:
        return NodeEvent(t_s=t_s, nodes=(name,), state=state, job=job)

    records = [
        node(0.0, "x"),
        node(0.0, "y"),
        node(1.0, "x", job="a"),
        node(2.0, "x", "draining"),
        node(3.0, "y", "lost"),
        node(4.0, "y"),
        node(5.0, "x", "removed"),
    ]
    assert pool_steps(records) == ((0.0, 2), (3.0, 1), (4.0, 2), (5.0, 1))


def test_lines_are_plain_json() -> None:
    assert [json.loads(line)["kind"] for line in LINES] == ["header", "pass", "outcome", "job", "nodes"]


def test_a_record_of_a_kind_that_nobody_here_knows_is_kept_as_it_is() -> None:
    line = '{"kind":"watts","t_s":3.5,"nodes":{"a":[71,1.5]}}'
    record = decode_line(line)
    assert (record.kind, record.data["t_s"]) == ("watts", 3.5)
    assert encode_line(record) == line
