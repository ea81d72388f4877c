"""What a departing worker writes gives back what it held, to its owner only; what is written, how long."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.checkpoint.plan import Array
from dask_hpc.config import settings
from dask_hpc.errors import ConfigError
from dask_hpc.scheduler.checkpoint import departing
from dask_hpc.scheduler.checkpoint.departing import Departing
from dask_hpc.scheduler.internals.reads import spillable
from dask_hpc.worker import saved
from dask_hpc.worker.saved import Copy


def _written(folder: Path, value: Any) -> Copy:
    """A copy as a worker of a departure writes it."""
    departing._make(str(folder))
    array = Array("data", "opaque", None, (1,), ((1,),))
    worker = SimpleNamespace(data={"x": value})
    answer = asyncio.run(saved.write(str(folder), array, {0: "x"}, worker))[0]
    assert isinstance(answer, tuple)
    return Copy(str(folder), array, 0, answer[0], passing=True)


def _file(folder: Path) -> Path:
    [path] = [path for path in folder.rglob("0") if path.is_file()]
    return path


def test_a_copy_gives_back_what_was_written_and_nobody_else_can_enter_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "mine" / "1"
    back = _written(folder, {"field": np.arange(1000.0), "name": "x"}).stored()()
    for private in (folder, folder.parent):
        assert stat.S_IMODE(os.lstat(private).st_mode) == 0o700
    assert back["name"] == "x"
    assert np.array_equal(back["field"], np.arange(1000.0))
    back["field"][0] = 1.0  # as in memory, it can be written to


def test_what_was_never_written_is_not_said_to_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    departing._remove([str(tmp_path / "missing"), str(tmp_path / "file" / "missing")])
    assert not caplog.records


class Evil:
    """What is made of it runs code."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("it was unpickled",)


@pytest.mark.parametrize("damage", ["changed", "shorter", "link", "another"])
def test_what_is_not_what_was_written_is_not_deserialised(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "mine" / "1"
    copy = _written(folder, Evil())
    path = _file(folder)
    content = path.read_bytes()
    if damage == "changed":
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    elif damage == "shorter":
        path.write_bytes(content[: copy.written.nbytes])
    elif damage == "another":
        # whole by itself, and not what the scheduler was told of
        _written(tmp_path / "mine" / "2", (Evil(), Evil()))
        _file(tmp_path / "mine" / "2").replace(path)
    else:
        path.rename(path.with_name("b"))
        path.symlink_to(path.with_name("b"))
    with pytest.raises((ValueError, OSError), match=r"not what was written|symbolic"):
        copy.stored()()


def test_a_folder_is_never_written_to_twice(tmp_path: Path) -> None:
    departing._make(str(tmp_path / "mine" / "1"))
    with pytest.raises(FileExistsError):
        departing._make(str(tmp_path / "mine" / "1"))


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="theirs is not a folder that is yours only"):
        departing._make(str(folder / "1"))
    link = tmp_path / "link"
    (tmp_path / "mine").mkdir(mode=0o700)
    link.symlink_to(tmp_path / "mine")
    with pytest.raises(PermissionError):
        departing._make(str(link / "1"))


@pytest.mark.parametrize("bad", ["spill", "~/spill", "", 3])
def test_the_folder_is_an_absolute_path(bad: Any) -> None:
    with pytest.raises(ConfigError, match=r"hpc.spill.directory is .*; allowed: an absolute path, or none"):
        settings({"spill": {"directory": bad}})


def _part() -> Departing:
    state = SimpleNamespace(scheduler=SimpleNamespace())
    return Departing(cast(Any, state), cast(Any, None), cast(Any, SimpleNamespace(unused=[])))


def test_time_is_kept_for_writing() -> None:
    part = _part()
    assert part.writing_s(0, within_s=60.0) == 2.0  # the least
    assert part.writing_s(10**9, within_s=60.0) == 20.0  # twice what 100 MB/s take
    assert part.writing_s(10**12, within_s=60.0) == 30.0  # half of what there is
    assert part.writing_s(0, within_s=1.0) == 0.5


def test_a_mount_that_hangs_is_not_asked_once_more_before_it_answers() -> None:
    part, gate = _part(), threading.Event()
    asked: list[bool] = []
    part._own = {"/store": "/store/mine"}
    part._used.touch = lambda: asked.append(gate.wait(20))  # type: ignore[method-assign]

    async def run() -> None:
        for _ in range(3):
            part._touch()
            assert part._touching is not None, "it looks again"
            part._touching.cancel()
        gate.set()
        assert part._touched is not None
        await part._touched
        assert asked == [True]
        part._touch()
        await part._touched
        assert asked == [True, True]
        part._own = {}
        await part._rest()

    asyncio.run(run())


@given(st.lists(st.integers(0, 100 << 20), max_size=60))
def test_little_is_written_at_a_time_and_all_of_it_once(sizes: list[int]) -> None:
    part = _part()
    tasks = {n: SimpleNamespace(get_nbytes=lambda size=size: size) for n, size in enumerate(sizes)}
    part._scheduler = cast(Any, SimpleNamespace(tasks=tasks))
    batches = list(part._batches(tasks))
    written = [key for batch in batches for key in batch]
    assert sorted(written) == list(tasks)
    assert [sizes[key] for key in written] == sorted(sizes)
    for batch in batches:
        assert len(batch) == 1 or sum(sizes[key] for key in batch) <= departing._BATCH_BYTES
        assert 0 < len(batch) <= departing._BATCH_BLOCKS


def test_actors_copies_elsewhere_and_what_inputs_of_shuffles_leave_are_not_written() -> None:
    def task(key: str, *workers: str, actor: bool = False, dependents: Any = ()) -> Any:
        who_has = [SimpleNamespace(address=address) for address in workers]
        return SimpleNamespace(key=key, actor=actor, who_has=who_has, dependents=dependents)

    barrier = task("shuffle-barrier-1", "a")
    tasks = [
        barrier,
        task("transfer", "a", dependents=[barrier]),
        task("actor", "a", actor=True),
        task("elsewhere", "a", "c"),
        task("nowhere"),
        task("one", "a", dependents=[task("child")]),
        task("both", "b", "a"),
        task("other", "b"),
    ]
    scheduler: Any = SimpleNamespace(tasks={ts.key: ts for ts in tasks})
    found = spillable(scheduler, [*scheduler.tasks, "unknown"], ["a", "b"])
    assert found == {"a": ["one", "both"], "b": ["other"]}


def test_a_tenth_of_the_time_that_is_left_is_for_what_comes_after(monkeypatch) -> None:
    now, told = [100.0], []
    state: Any = SimpleNamespace(
        scheduler=SimpleNamespace(workers=["a"]), settings=settings({"spill": {"directory": "/x"}})
    )
    state.now_s = lambda: now[0]
    departure: Any = SimpleNamespace(addresses=["a"], kept={}, last=True, deadline_s=120.0)

    async def write(directory: str, keys: Any, leaving: Any, left_s: Any) -> dict[str, list[Any]]:
        told.append(left_s())
        now[0], departure.deadline_s = 105.0, 110.0
        told.append(left_s())
        return {"a": keys}

    monkeypatch.setattr(departing.reads, "sole_keys", lambda *_: ["x"])
    found = Departing(state, cast(Any, None), cast(Any, SimpleNamespace(unused=[])))
    monkeypatch.setattr(found, "write", write)
    assert not asyncio.run(found.leave(departure))
    assert (told, departure.kept) == ([18.0, 4.0], {"a": ["x"]})
