"""Slurm's commands when they are absent, fail, hang, or print nonsense: programs that only pretend."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_slurm import OPTIONS, SUBMIT, submitted
from outside import until
from private_slurm import poll

import dask_hpc
from dask_hpc.errors import SlurmError
from dask_hpc.slurm import commands

Asked = Callable[..., Awaitable[Any]]

#: Every function that runs a command, the command, and what to call it with.
ALL: dict[str, tuple[Asked, tuple[Any, ...]]] = {
    "squeue": (commands.squeue, ()),
    "scancel": (commands.scancel, ([1],)),
}


def fake(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def search(folder: Path) -> str:
    """PATH with the fakes of `folder` alone, and the commands that they use."""
    return f"{folder}{os.pathsep}/bin"


def hanging(folder: Path) -> list[int]:
    """Processes that a fake of `folder` has left."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("HANGS") == str(folder):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_the_end_is_unknown_when_slurm_does_not_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake(tmp_path, "squeue", "echo no >&2; exit 1")
    environment = {"PATH": search(tmp_path), "SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "soon"}
    with caplog.at_level(logging.WARNING):
        assert asyncio.run(commands.own_job_end_s(environment)) is None
    assert "SLURM_JOB_END_TIME is of no use" in caplog.text
    assert "the end of job 7 is not known: squeue failed with exit code 1: no" in caplog.text


@pytest.mark.parametrize("name", ALL)
def test_a_command_that_is_not_there(name: str, tmp_path: Path) -> None:
    function, arguments = ALL[name]
    with pytest.raises(SlurmError) as caught:
        asyncio.run(function(*arguments, environment={"PATH": str(tmp_path)}))
    assert (
        str(caught.value) == f"{name} is not on PATH ({tmp_path}); load the site's Slurm module, or set PATH"
    )


@pytest.mark.parametrize("name", ALL)
def test_a_command_that_fails(name: str, tmp_path: Path) -> None:
    function, arguments = ALL[name]
    fake(tmp_path, name, "echo nothing of use; echo 'slurm_load: Unable to contact' >&2; exit 3")
    with pytest.raises(SlurmError, match=f"{name}.* failed with exit code 3: slurm_load: Unable to contact"):
        asyncio.run(function(*arguments, environment={"PATH": search(tmp_path)}))
    fake(tmp_path, name, "kill -9 $$")
    with pytest.raises(SlurmError, match=f"{name}.* was ended by signal 9: it said nothing"):
        asyncio.run(function(*arguments, environment={"PATH": search(tmp_path)}))
    (tmp_path / name).write_text("no program")
    with pytest.raises(SlurmError, match=f"{name} cannot be run: Exec format error"):
        asyncio.run(function(*arguments, environment={"PATH": search(tmp_path)}))


@pytest.mark.parametrize("name", [name for name in ALL if name != "scancel"])
def test_a_command_that_prints_nonsense(name: str, tmp_path: Path) -> None:
    function, arguments = ALL[name]
    fake(tmp_path, name, r"printf 'Welcome to the \377 cluster\n'")
    with pytest.raises(SlurmError, match=rf"{name}.*, line 1: expected .*the line is 'Welcome to the"):
        asyncio.run(function(*arguments, environment={"PATH": search(tmp_path)}))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "script",
    ["exec sleep 600", "sleep 600; true", "sleep 600 & exit 0"],
    ids=["itself", "child", "left behind"],
)
def test_a_command_that_hangs_is_killed_with_its_children(name: str, script: str, tmp_path: Path) -> None:
    function, arguments = ALL[name]
    fake(tmp_path, name, f"export HANGS={tmp_path}\n{script}")
    start_s = time.monotonic()
    with pytest.raises(SlurmError, match=rf"{name} did not end within 0\.5 s and was killed; .*timeout_s"):
        asyncio.run(function(*arguments, timeout_s=0.5, environment={"PATH": search(tmp_path)}))
    assert time.monotonic() - start_s < 20
    poll(lambda: not hanging(tmp_path), "what hangs to be gone", 20)


def test_whoever_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    fake(tmp_path, "squeue", f"export HANGS={tmp_path}; touch {tmp_path}/started; sleep 600")

    async def cancelled() -> None:
        asked = asyncio.create_task(commands.squeue(environment={"PATH": search(tmp_path)}))
        await asyncio.to_thread(poll, (tmp_path / "started").exists, "the command to start")
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(cancelled())
    poll(lambda: not hanging(tmp_path), "what was started to be gone", 20)


def test_commands_do_not_keep_the_event_loop_from_its_work(tmp_path: Path) -> None:
    fake(tmp_path, "squeue", f"while ! [ -e {tmp_path}/go ]; do sleep 0.05; done")

    async def both() -> Any:
        asked = asyncio.create_task(commands.squeue(environment={"PATH": search(tmp_path)}))
        # runs while the command waits for it
        await asyncio.sleep(0)
        (tmp_path / "go").touch()
        return await asked

    assert asyncio.run(both()) == ()


def test_a_job_that_may_not_be_cancelled_is_told(tmp_path: Path) -> None:
    fake(
        tmp_path,
        "scancel",
        "echo 'scancel: error: Kill job error on job id 1: Invalid job id specified' >&2\n"
        "echo 'scancel: error: Kill job error on job id 2: Access/permission denied' >&2\n"
        "echo 'scancel: error: Kill job error on job id 3: Job/step already completing or completed' >&2\n"
        "exit 1",
    )
    with pytest.raises(SlurmError) as caught:
        asyncio.run(commands.scancel([1, 2, 3], environment={"PATH": search(tmp_path)}))
    assert "job id 2: Access/permission denied" in str(caught.value)
    assert "job id 1" not in str(caught.value)


def test_ends_are_told_of_jobs_that_have_begun_by_the_number_in_their_environment(tmp_path: Path) -> None:
    # number, id, state, limit and end, as squeue shows them; a job that waits has the end that is expected
    shown = [
        ("7", "7", "RUNNING", "1:00:00", "5000"),
        ("8", "8", "PENDING", "1:00:00", "9000"),
        ("9", "9", "RUNNING", "UNLIMITED", "N/A"),
        ("11", "10_1", "RUNNING", "1:00:00", "6000"),
        ("12", "10_2", "RUNNING", "1:00:00", "7000"),
        # what is being ended is shown to end when it was told so
        ("13", "13", "COMPLETING", "1:00:00", "3000"),
        ("15", "15", "CANCELLED", "1:00:00", "3000"),
    ]
    rows = [
        f"{number}|{id}|p|u|{state}|1|n1|{limit}|N/A|1000|2000|{end}|None|j"
        for number, id, state, limit, end in shown
    ]
    fake(tmp_path, "squeue", "\n".join(f"echo '{row}'" for row in rows))
    asked = ["7", "8", "9", "11", "13", "14", "15"]
    found = asyncio.run(commands.job_ends_s(asked, environment={"PATH": search(tmp_path)}))
    assert found == {"7": 5000.0, "9": math.inf, "11": 6000.0}


@pytest.mark.errors("could not be started")
def test_of_jobs_that_cannot_be_submitted_two_are_tried(fakes: Any, tmp_path: Path, caplog: Any) -> None:
    fakes("squeue", "exit 1")
    fakes("sbatch", 'echo x >> "$0.asked"; exit 1')
    with dask_hpc.SLURMCluster(**OPTIONS) as made:
        made.scale(jobs=4)
        until(lambda: not made.worker_spec and "could not be started" in caplog.text, "it is said")
        assert "4 of the workers could not be started: SlurmError" in caplog.text
        assert submitted(tmp_path) == 2


@pytest.mark.errors("could not be started")
def test_one_job_that_is_refused_keeps_no_other_from_being_submitted(
    fakes: Any, tmp_path: Path, caplog: Any
) -> None:
    fakes("squeue", "exit 1")
    once = 'test -e "$0.busy" || { : > "$0.busy"; echo "Socket timed out" >&2; exit 1; }'
    fakes("sbatch", f"{once}\n{SUBMIT}")
    with dask_hpc.SLURMCluster(**OPTIONS) as made:
        made.scale(jobs=4)
        until(lambda: "could not be started" in caplog.text, "it is said")
        assert "1 of the workers could not be started: SlurmError" in caplog.text
        assert (len(made.workers), submitted(tmp_path)) == (3, 3)
