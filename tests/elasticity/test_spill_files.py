"""A spilled file gives back what was written, to its owner only; what is written, and for how long."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dask_hpc.config import settings
from dask_hpc.errors import ConfigError
from dask_hpc.scheduler.internals.reads import spillable
from dask_hpc.scheduler.leaving.spilled import Spilled
from dask_hpc.worker import spill


def test_a_file_gives_back_what_was_written_and_is_its_owners_only(tmp_path: Path) -> None:
    folder = str(tmp_path / "new" / "mine")
    value = {"field": np.arange(1000.0), "name": "x"}
    digest, length = spill.write_file(folder, spill.file_name(("x", 0), 1), value)
    [path] = Path(folder).iterdir()
    assert stat.S_IMODE(os.lstat(folder).st_mode) == 0o700
    assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
    back = spill.read_file(str(path), digest, length)
    assert back["name"] == "x"
    assert np.array_equal(back["field"], value["field"])
    back["field"][0] = 1.0  # as in memory, it can be written to


def test_names_of_files_cannot_lead_out_of_the_folder() -> None:
    names = {
        spill.file_name(key, n) for key in ("../../etc/passwd", ("x", 0), "/", "x" * 5000) for n in (0, 1)
    }
    assert len(names) == 8
    assert all(name.isalnum() and len(name) == 40 for name in names)


@pytest.mark.parametrize("damage", ["changed", "longer", "shorter", "link"])
def test_a_file_that_is_not_what_was_written_is_not_deserialised(tmp_path: Path, damage: str) -> None:
    folder = str(tmp_path / "mine")
    digest, length = spill.write_file(folder, "a", b"x" * 100)
    path = Path(folder) / "a"
    content = path.read_bytes()
    if damage == "changed":
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    elif damage == "longer":
        path.write_bytes(content + b"x")
    elif damage == "shorter":
        path.write_bytes(content[:-1])
    else:
        path.rename(path.with_name("b"))
        path.symlink_to(path.with_name("b"))
    with pytest.raises((ValueError, OSError), match=r"not what was written|not the file|symbolic"):
        spill.read_file(str(path), digest, length)


def test_a_file_is_never_written_over_and_nothing_is_left_of_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "mine")
    spill.write_file(folder, "a", 1)
    with pytest.raises(FileExistsError):
        spill.write_file(folder, "a", 2)

    def full(value: Any, **kwargs: Any) -> list[Any]:
        return [b"x", None]  # writing the second frame fails

    monkeypatch.setattr(spill, "serialize_bytelist", full)
    with pytest.raises(TypeError):
        spill.write_file(folder, "b", 2)
    assert os.listdir(folder) == ["a"]


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="theirs is not a folder that is yours only"):
        spill.write_file(str(folder), "a", 1)
    link = tmp_path / "link"
    (tmp_path / "mine").mkdir(mode=0o700)
    link.symlink_to(tmp_path / "mine")
    with pytest.raises(PermissionError):
        spill.write_file(str(link), "a", 1)


@pytest.mark.parametrize("bad", ["spill", "~/spill", "", 3])
def test_the_folder_is_an_absolute_path(bad: Any) -> None:
    with pytest.raises(ConfigError, match=r"hpc.spill.directory is .*; allowed: an absolute path, or none"):
        settings({"spill": {"directory": bad}})


def test_what_takes_too_long_is_not_waited_for(tmp_path: Path) -> None:
    worker = SimpleNamespace(data={"x": 1, "y": 2})
    names = {"x": "a", "y": "b", "z": "c"}
    answers = asyncio.run(spill.write(str(tmp_path / "mine"), names, 0.0, worker))
    assert answers == dict.fromkeys("abc", "not written within 0.0 s")
    answers = asyncio.run(spill.write(str(tmp_path / "mine"), names, 60.0, worker))
    assert [answers["a"][2], answers["b"][2], answers["c"]] == ["int", "int", "KeyError: 'z'"]


def test_time_is_kept_for_writing() -> None:
    spilled = Spilled(SimpleNamespace(scheduler=SimpleNamespace(plugins={})), None, None)
    assert spilled.writing_s(0, within_s=60.0) == 2.0  # the least
    assert spilled.writing_s(10**9, within_s=60.0) == 20.0  # twice what 100 MB/s take
    assert spilled.writing_s(10**12, within_s=60.0) == 30.0  # half of what there is
    assert spilled.writing_s(0, within_s=1.0) == 0.5


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
