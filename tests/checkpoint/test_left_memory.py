"""What killed managers have left in the memory of a host, and who removes it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
from command_line import run
from outside import until
from session_memory import home

from dask_hpc import CheckpointSession


def left_by(name: str, killed: bool = True, age_s: float = 10_000.0) -> tuple[Path, int]:
    """What a run leaves whose manager was killed, or stands still; both look as if that were long ago."""
    with program_of(name) as session:
        session.add("field", np.zeros(10))
        session.commit()
    folder, manager = home(name)
    assert manager is not None
    os.kill(manager, signal.SIGKILL if killed else signal.SIGSTOP)
    if killed:
        until(lambda: home(name)[1] is None, "it has ended")
    then_s = time.time() - age_s
    os.utime(folder / "workers.lock", (then_s, then_s))
    return folder, manager


def program_of(name: str) -> CheckpointSession:
    return CheckpointSession(name, levels="L1")


def collected(store: Path, *options: str) -> Any:
    """What the command says."""
    store.mkdir(exist_ok=True)
    found = run("checkpoint", "gc", "--store", str(store), "--json", *options)
    assert found.exit_code == 0, found.output
    return json.loads(found.output)


def test_what_killed_managers_left_is_collected_by_the_next_one_and_by_the_command_and_no_more(
    memory: Path, tmp_path: Path
) -> None:
    """A manager that lives and does not answer keeps all it holds, whatever its age."""
    late, _ = left_by("late", age_s=0.0)
    still, manager = left_by("still", killed=False)
    try:
        killed, _ = left_by("killed")
        held = {path.name: path.read_bytes() for path in still.glob("*.segment")}
        assert collected(tmp_path, "--dry-run")["would_remove"] == [str(killed)]
        assert killed.exists()
        assert collected(tmp_path, "--yes")["removed"] == [str(killed)]
        assert not killed.exists()
        other, _ = left_by("other")
        with program_of("run") as session:
            session.add("field", np.zeros(10))
            session.commit()
            until(lambda: not other.exists(), "the next manager has removed it")
        assert late.exists()
        assert {path.name: path.read_bytes() for path in still.glob("*.segment")} == held != {}
    finally:
        os.kill(manager, signal.SIGCONT)
