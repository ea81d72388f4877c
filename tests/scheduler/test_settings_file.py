"""The file of settings that is watched: what it says holds, and a bad one changes nothing."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import dask
import pytest
from helpers import live, until

import dask_hpc
from dask_hpc.config.file import MOST_BYTES, mark, read_changes
from dask_hpc.errors import ConfigError
from dask_hpc.scheduler.rpc.service import of

#: What is taken for a file by nobody, and what is said of it.
BAD = {
    "no YAML": ("hpc: [1, 2", "no YAML that is taken"),
    "a list": ("- hpc", "allowed: a mapping of settings below hpc"),
    "nothing": ("", "it holds None"),
    "other sections": ("hpc: {tick: 2 s}\ndistributed: {}", "it holds {'hpc'"),
    "unknown": ("hpc: {lend: 9 s, tikc: 2 s}", "did you mean hpc.tick"),
    "no value of it": ("hpc: {lend: 9 s, tick: soon}", "hpc.tick is 'soon'; allowed: a duration"),
    "a key twice": ("hpc:\n  lend: 9 s\n  lend: 8 s\n", "'lend' is given twice"),
    "no section": ("hpc: {checkpoint: 3, lend: 9 s}", "hpc.checkpoint is 3; allowed: a mapping"),
    "of a node": ("hpc: {lend: 9 s, node: {domain: rack-1}}", "cannot become rack-1 by an update"),
    "of the start": ("hpc: {lend: 9 s, policy: fcfs}", "cannot become fcfs by an update"),
    "another file": ("hpc: {lend: 9 s, settings-file: /tmp/other}", "cannot become /tmp/other by an update"),
    "code": ("hpc: {lend: 9 s, tick: !!python/object/apply:os.getpid []}", "no YAML that is taken"),
    "a name that is no text": ("hpc: {1: 2}", "no setting hpc.1"),
    "too long": ("hpc: {lend: 9 s}\n#" + "x" * MOST_BYTES, f"longer than {MOST_BYTES} bytes"),
    "aliases": (
        "hpc:\n  a: &a [1,1]\n  b: &b [*a,*a]\n  c: &c [*b,*b]\n  policy-params: {d: [*c,*c]}",
        "aliases are not allowed",
    ),
    "deep": ("hpc: " + "[" * 60_000, "allowed are 10 lists and mappings in each other"),
    "no text": (b"hpc: {tick: \xff}", "no UTF-8 text"),
}


def put(path: Path, content: str | bytes) -> None:
    """Have a file with another content, in one step."""
    made = path.with_name("made")
    made.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.replace(made, path)


def watched(s):
    return of(s).engine.parts.status(lambda name, error: pytest.fail(f"{name}: {error}"))["settings_file"]


@pytest.mark.errors("Settings stay as they are")
@live(workers=0)
async def test_what_changes_holds_and_what_is_bad_changes_nothing_and_is_said_once(c, s, tmp_path, caplog):
    path = tmp_path / "settings.yaml"
    caplog.set_level(logging.INFO, logger="dask_hpc")
    with dask.config.set({"hpc.settings-file": str(path), "hpc.tick": "20 ms"}):
        rt = await dask_hpc.install(c)

    def settings():
        return of(s).engine.state.settings

    # it is not there yet
    await until(lambda: "cannot be read" in watched(s)["problem"], "its absence is told of")
    put(path, "hpc:\n  lend: 3 s\n  checkpoint:\n    every: 2 min\n  policy: fair\n")
    await until(lambda: settings().lend_s == 3.0, "it is applied without a job")
    assert settings().checkpoint_every_s == 120.0
    assert watched(s)["problem"] == ""
    # what it does not name any more is as configured, which is said once
    put(path, "hpc: {lend: 3 s}")
    await until(lambda: settings().checkpoint_every_s == 600.0, "it is 10 min again")
    put(path, "hpc: {lend: 5 s}")
    await until(lambda: settings().lend_s == 5.0, "it is applied")
    said = "does not name hpc.checkpoint.every any more: it is 600"
    assert len([each for each in caplog.records if said in each.getMessage()]) == 1
    before = settings()
    for name, (content, said) in BAD.items():
        put(path, content)
        await until(lambda said=said: said in watched(s)["problem"], f"{name}: {watched(s)}")
        assert settings() == before, name
        assert (await rt.status())["settings_file"]["problem"] == watched(s)["problem"]
    # what clients say holds until the file changes, also when what it says is as before
    await rt.update(lend="7 s")
    put(path, "hpc: {lend: 4 s}")
    await until(lambda: settings().lend_s == 4.0, "the file has the last word")
    await rt.update(lend="7 s")
    looks = s.periodic_callbacks["hpc-settings-file"]
    for _ in range(3):
        await looks.callback()
    assert settings().lend_s == 7.0
    told = [each.getMessage() for each in caplog.records if "Settings stay" in each.getMessage()]
    assert len(told) == len(BAD) + 1
    path.unlink()
    await until(lambda: watched(s)["problem"], "it is gone")
    assert settings().lend_s == 7.0
    await rt.uninstall()
    assert "hpc-settings-file" not in s.periodic_callbacks
    assert not looks.is_running()


@live(workers=0)
async def test_without_a_file_nothing_is_looked_at(c, s):
    rt = await dask_hpc.install(c)
    assert "hpc-settings-file" not in s.periodic_callbacks
    assert "settings_file" not in await rt.status()


def test_another_file_of_that_size_is_told_from_the_one_before(tmp_path):
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_text("hpc: {tick: 2 s}")
    os.utime(path, ns=(1, 1))
    marks = [mark(str(path))]
    os.utime(path, ns=(1, 2))  # it was written to
    marks.append(mark(str(path)))
    other.write_text("hpc: {tick: 3 s}")
    os.utime(other, ns=(1, 2))
    other.rename(path)
    marks += [mark(str(path)), mark(str(other)), mark("no\0name")]
    assert len(set(marks[:3])) == 3
    assert marks[3:] == [None, None]


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, said in ((tmp_path / "pipe", "it is no file"), (tmp_path, "cannot be read")):
        with pytest.raises(ConfigError, match=said):
            read_changes(str(path))
