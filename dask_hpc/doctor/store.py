"""Checks of the folder that versions of checkpoints go to, from here and from all of a cluster."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dask.utils import format_bytes, format_time

from dask_hpc.checkpoint.disk import MORE
from dask_hpc.checkpoint.store_threads import Asked, SilentStoreError
from dask_hpc.config import find, problems, settings
from dask_hpc.doctor.checks import Finding
from dask_hpc.errors import CheckpointError, InstallError
from dask_hpc_policies.wording import counted

if TYPE_CHECKING:
    from distributed import Client

#: With less room than this many bytes a store is as good as full.
SMALL_STORE_BYTES = 2**30
_NONE = (
    "no store is set (hpc.checkpoint.store): versions are in the memory of hosts, and lost with all of "
    "them; a call may name a folder"
)
_ELSEWHERE = "make the folder, or set hpc.checkpoint.store to one that scheduler and workers can write to"


@dataclass(frozen=True, slots=True)
class Looked:
    """What one process finds of a store."""

    #: Why it can write nothing there; empty when it can.
    problem: str = ""
    free_bytes: int = 0
    #: Whether files there can be written past the page cache.
    direct: bool = False


async def look(folder: str, silence_s: float) -> Looked:
    """Try a store from this process, whose loop goes on meanwhile. Nothing stays behind.

    Parameters
    ----------
    silence_s
        Without getting on for so long its mount is taken to hang.
    """
    try:
        return await Asked(folder, silence_s).soon(_look, folder)
    except SilentStoreError as error:
        return Looked(str(error))


def _look(folder: str) -> Looked:
    from dask_hpc.checkpoint.checksums import crc32c
    from dask_hpc.checkpoint.direct import taken_by
    from dask_hpc.checkpoint.store import Store

    try:
        crc32c(b"")  # says when it is not installed
        if not os.path.isdir(folder):
            return Looked(f"there is no folder {folder}")
        if (problem := Store(folder).problem()) is not None:
            return Looked(problem)
        return Looked("", shutil.disk_usage(folder).free, taken_by(folder))
    except CheckpointError as error:
        return Looked(str(error))
    except OSError as error:
        return Looked(f"the store {folder} cannot be looked at: {error.strerror or error}")


def check_store(folder: str | None = None) -> list[Finding]:
    """Can this machine write checkpoints to the folder that its settings name?"""
    if folder is None:
        if problems():
            return []
        folder = settings().checkpoint_store
    if folder is None:
        return [Finding("checkpoint store", "ok", _NONE)]
    try:
        looked = Asked(folder, find("checkpoint.silence").configured())(_look, folder)
    except SilentStoreError as error:
        looked = Looked(str(error))
    return [_found("checkpoint store", folder, {"this machine": looked}, "this machine")]


def check_checkpoints(client: Client) -> list[Finding]:
    """Can the scheduler and all workers write checkpoints to the folder that is set?"""
    import dask_hpc

    try:
        told = dask_hpc.runtime(client).status()
    except InstallError:
        return []
    folder = told["settings"]["checkpoint_store"]
    rows = told.get("checkpoints", {})
    taken = [*_taken_over(rows.get("taken_over")), *_on_disk(rows.get("managers", ()))]
    if folder is None:
        return [Finding("checkpoints", "ok", _NONE), *taken]
    asked = folder, told["settings"]["checkpoint_silence_s"]
    found: dict[str, Looked] = {"the scheduler": client.run_on_scheduler(look, *asked)}
    for address, one in client.run(look, *asked, on_error="return").items():
        # a worker may go while it is asked
        looked = one if isinstance(one, Looked) else Looked(f"{type(one).__name__}: {one}")
        found[f"worker {address}"] = looked
    return [_found("checkpoints", folder, found, "the scheduler and all workers"), *taken]


def _taken_over(told: Mapping[str, Any] | None) -> list[Finding]:
    """What an earlier scheduler has left in the memory of hosts."""
    if told is None:
        return []
    what = f"{counted(told['results'], 'result')} in {counted(told['versions'], 'version')}"
    age = format_time(told["age_s"])
    text = f"{what} of an earlier scheduler were taken over {age} ago; dask_hpc.restore reads them"
    return [Finding("checkpoints in memory", "ok", text)]


def _on_disk(managers: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """What hosts have had no memory for."""
    rows = [row for row in managers if row["disk_bytes"]]
    if not rows:
        return []
    nbytes = format_bytes(sum(row["disk_bytes"] for row in rows))
    hosts = f"{counted(len(rows), 'host')} ({rows[0]['host']}{', ...' if len(rows) > 1 else ''})"
    text = f"{nbytes} of what is to be in memory is on the disk of {hosts}"
    return [Finding("memory for checkpoints", "warn", text, MORE)]


def _found(name: str, folder: str, looked: dict[str, Looked], all_of_them: str) -> Finding:
    problems = {where: one.problem for where, one in looked.items() if one.problem}
    if problems:
        return Finding(name, "warn", f"{_where(list(problems))}: {next(iter(problems.values()))}", _ELSEWHERE)
    free_bytes = min(one.free_bytes for one in looked.values())
    text = f"{folder} can be written to by {all_of_them}, {format_bytes(free_bytes)} free"
    if buffered := [where for where, one in looked.items() if not one.direct]:
        by = "" if len(buffered) == len(looked) else f" by {_where(buffered)}"
        text += f"; through the page cache{by}, as its file system knows no direct writing"
    if free_bytes < SMALL_STORE_BYTES:
        return Finding(name, "warn", text, "free some space; dask hpc checkpoint gc removes old versions")
    return Finding(name, "ok", text)


def _where(places: list[str]) -> str:
    return places[0] if len(places) == 1 else f"{places[0]} and {counted(len(places) - 1, 'worker')}"
