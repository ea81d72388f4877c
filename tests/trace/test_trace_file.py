"""A trace that is written while it happens: order, readability at any time, failures."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import pytest

from dask_hpc.errors import TraceError
from dask_hpc.trace.files import TraceFile, parse_trace, read_trace, write_trace
from dask_hpc.trace.records import Header, NodeEvent

HEADER = Header(versions={"dask_hpc": "0.1.0"})
EVENTS = tuple(NodeEvent(t_s=float(i), nodes=("w",)) for i in range(5))


@pytest.mark.parametrize("name", ["live.jsonl", "live.jsonl.gz"])
def test_it_can_be_read_after_every_flush(tmp_path: Path, name: str) -> None:
    path = tmp_path / name

    async def write() -> None:
        stream = TraceFile(path, HEADER)
        for count, event in enumerate(EVENTS, start=1):
            stream.add(event)
            await asyncio.to_thread(stream.flush)
            assert read_trace(path).records == EVENTS[:count]
        stream.close()
        stream.add(EVENTS[0])
        await asyncio.to_thread(stream.flush)

    asyncio.run(write())
    assert read_trace(path).header == HEADER
    assert read_trace(path).records == EVENTS


def test_records_that_come_while_writing_keep_their_order(tmp_path: Path) -> None:
    events = tuple(NodeEvent(t_s=float(i), nodes=("w",)) for i in range(5_000))

    async def write() -> None:
        stream = TraceFile(tmp_path / "t.jsonl", HEADER)
        flushes = []
        for event in events:
            stream.add(event)
            if event.t_s % 50 == 0:
                flushes.append(asyncio.ensure_future(asyncio.to_thread(stream.flush)))
                await asyncio.sleep(0)
        await asyncio.gather(*flushes)
        stream.close()

    asyncio.run(write())
    assert read_trace(tmp_path / "t.jsonl").records == events


@pytest.mark.parametrize("name", ["live.jsonl", "live.jsonl.gz"])
def test_who_reads_while_it_is_written_finds_whole_flushes(tmp_path: Path, name: str) -> None:
    flushed = 500
    events = tuple(NodeEvent(t_s=float(i), nodes=("w",)) for i in range(10 * flushed))

    async def write() -> list[int]:
        stream = TraceFile(tmp_path / name, HEADER)
        found = []
        for start in range(0, len(events), flushed):
            for event in events[start : start + flushed]:
                stream.add(event)
            flushing = asyncio.ensure_future(asyncio.to_thread(stream.flush))
            while not flushing.done():
                await asyncio.sleep(0)
                found.append(len(read_trace(tmp_path / name).records))
        return found

    found = asyncio.run(write())
    assert len(found) >= len(events) / flushed
    assert {count % flushed for count in found} == {0}


def test_closing_writes_what_was_added(tmp_path: Path) -> None:
    stream = TraceFile(tmp_path / "t.jsonl", HEADER)
    for event in EVENTS:
        stream.add(event)
    stream.close()
    stream.close()
    assert read_trace(tmp_path / "t.jsonl").records == EVENTS


def test_the_file_that_was_there_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    write_trace(path, [HEADER, *EVENTS])
    TraceFile(path, HEADER).close()
    assert read_trace(path).records == ()
    kept = gzip.decompress((tmp_path / "t.jsonl.gz.previous").read_bytes()).decode()
    assert parse_trace(kept.splitlines()).records == EVENTS


def test_a_path_that_cannot_be_written_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot write the trace .*absent.*set hpc\.trace\.path"):
        TraceFile(tmp_path / "absent" / "t.jsonl", HEADER)
    with pytest.raises(TraceError, match=r"cannot write the trace"):
        TraceFile(tmp_path, HEADER)


@pytest.mark.errors("ends here, because it could not be written")
def test_a_full_disk_is_told_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (path := tmp_path / "full").symlink_to("/dev/full")  # which is the machine's
    stream = TraceFile(path, HEADER)
    for event in EVENTS:
        stream.add(event)
    stream.flush()
    stream.close()
    told = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert told == [f"the trace {path} ends here, because it could not be written"]
    assert path.is_char_device()


@pytest.mark.errors("ends here, because it could not be written")
@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_of_two_that_are_given_one_path_the_first_ends_and_neither_has_lines_of_the_other(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / name
    first = TraceFile(path, HEADER)
    first.add(EVENTS[0])
    first.flush()
    second = TraceFile(path, HEADER)
    for stream, event in ((first, EVENTS[1]), (second, EVENTS[2]), (first, EVENTS[3])):
        stream.add(event)
        stream.flush()
    assert read_trace(path).records == (EVENTS[2],)
    kept = (tmp_path / f"{name}.previous").rename(tmp_path / f"kept-{name}")
    assert read_trace(kept).records == (EVENTS[0],)
    (told,) = (record.getMessage() for record in caplog.records)
    assert "another scheduler writes to this path" in told
    assert "hpc.trace.path of its own" in told
    path.unlink()
    second.add(EVENTS[4])
    second.close()
    assert not path.exists(), "nothing begins anew without its header"
