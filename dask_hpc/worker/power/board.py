"""Once a host: one of a cluster's workers there samples, the others read what it found in a shared folder.

Who samples holds a lock that the kernel takes back when its process ends, however it ends; then the next one
takes over. The figure is split over the workers there: idle watts, where they are set, by threads, the rest
by the CPU time that each has used, so that the parts add up to the whole. The folder is the user's alone.

Rules of the file: nothing here measures; everything here may be called from a thread of its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dask_hpc.errors import WorkerError
from dask_hpc.worker.power.figures import Figure

_LEADER, _BOARD = "leader.lock", "board.json"
_MEMBER = ".member"


@dataclass(frozen=True, slots=True)
class Member:
    """A worker of this host."""

    id: str
    pid: int
    threads: int


@dataclass(slots=True)
class Told:
    """What the board says."""

    figure: Figure
    #: When it was taken, in seconds since 1970.
    at_s: float
    #: Watts of each worker; empty when they are not known.
    share_w: dict[str, float] = field(default_factory=dict)
    #: Energy of each worker so far.
    energy_j: dict[str, float] = field(default_factory=dict)
    #: The same on the clock of the machine that never goes back, which its processes share.
    taken_s: float = float("-inf")
    #: How many workers are here, and their threads.
    workers: int = 1
    threads: int = 1
    #: Watts of the part of the host that caps are for; None: not known, or all of it.
    governed_w: float | None = None


class Board:
    """One worker's hold on the folder of its cluster on this host.

    Parameters
    ----------
    cluster
        Address of the scheduler.
    member
        This worker.
    root
        Where folders are; None: /dev/shm, or the folder of temporary files where that cannot be written to.

    Raises
    ------
    WorkerError
        When somebody else has made the folder.
    """

    def __init__(self, cluster: str, member: Member, root: Path | None = None) -> None:
        self.member = member
        which = hashlib.sha256(cluster.encode()).hexdigest()[:16]
        shm = "/dev/shm"
        base = root or Path(shm if os.access(shm, os.W_OK) else tempfile.gettempdir())
        self._folder = base / f"dask-hpc-power-{os.getuid()}-{which}"
        _own(self._folder)
        self._path = self._folder / f"{hashlib.sha256(member.id.encode()).hexdigest()[:16]}{_MEMBER}"
        part = self._path.with_suffix(".new")
        part.write_text(json.dumps(asdict(member)))
        self._here = os.open(part, os.O_RDWR | os.O_CLOEXEC)
        # before anybody sees it: one that nobody holds is taken away
        fcntl.flock(self._here, fcntl.LOCK_EX | fcntl.LOCK_NB)
        part.replace(self._path)
        self._leads: int | None = None
        #: CPU seconds of each process when it was looked at last.
        self._cpu_s: dict[int, float] = {}
        #: What this one has told last, and who the others are, by their files.
        self._told: Told | None = None
        self._known: dict[str, tuple[int, Member]] = {}

    def leads(self) -> bool:
        """Whether it is this worker that samples; takes over from one that has gone."""
        if self._leads is None:
            descriptor = os.open(self._folder / _LEADER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            self._leads = descriptor
        return True

    def read(self) -> Told | None:
        """What was found last; None when nothing was yet."""
        try:
            data = json.loads((self._folder / _BOARD).read_text())
        except (OSError, ValueError):
            return None
        return Told(**{**data, "figure": Figure(**data["figure"])})

    def tell(
        self,
        figure: Figure,
        at_s: float,
        taken_s: float,
        idle_w: float = 0.0,
        governed_w: float | None = None,
    ) -> Told:
        """Split a figure over the workers of this host, and have all of them know it; gives what they know.

        Parameters
        ----------
        figure
            Of the host.
        at_s
            When it was taken, in seconds since 1970.
        taken_s
            The same on a clock that never goes back.
        idle_w
            Of the host at no load: this much is split by threads.
        governed_w
            Watts of the part of the host that caps are for.
        """
        before = self._told or self.read()
        members = self.members()
        threads = sum(each.threads for each in members)
        told = Told(
            figure, at_s, taken_s=taken_s, workers=len(members), threads=threads, governed_w=governed_w
        )
        parts = self._parts(members, figure.watts or 0.0, idle_w)
        if figure.watts is not None:
            told.share_w = {id: part * figure.watts for id, part in parts.items()}
        earlier = {} if before is None else before.energy_j
        told.energy_j = {id: earlier.get(id, 0.0) + part * figure.energy_j for id, part in parts.items()}
        written = self._folder / f"{_BOARD}.new"
        written.write_text(json.dumps(asdict(told)))
        written.replace(self._folder / _BOARD)
        self._told = told
        return told

    def members(self) -> list[Member]:
        """Workers that are here; those whose process has ended are forgotten."""
        found = [self.member]
        for entry in os.scandir(self._folder):
            name = entry.name
            if not name.endswith(_MEMBER) or name == self._path.name:
                continue
            with suppress(OSError, ValueError, TypeError):
                if not _held(entry.path):
                    os.unlink(entry.path)
                    continue
                written = entry.stat().st_mtime_ns
                if name not in self._known or self._known[name][0] != written:
                    self._known[name] = (written, Member(**json.loads(Path(entry.path).read_text())))
                found.append(self._known[name][1])
        return found

    def _parts(self, members: list[Member], watts: float, idle_w: float) -> dict[str, float]:
        """The part of each worker; all of them are 1 together."""
        now = {member.pid: _cpu_s(member.pid) for member in members}
        here: dict[int, int] = {}
        for member in members:
            here[member.pid] = here.get(member.pid, 0) + member.threads
        # the kernel counts ticks: one that seems to rest may have used one a thread, and its part is never 0
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        used = {
            pid: max(0.0, cpu_s - self._cpu_s.get(pid, cpu_s)) + tick_s * here[pid]
            for pid, cpu_s in now.items()
        }
        self._cpu_s = now
        threads, all_s = sum(here.values()), sum(used.values())
        even = min(1.0, idle_w / watts) if watts > 0 else 0.0
        # several workers may be in one process
        return {
            member.id: even * member.threads / threads
            + (1 - even) * used[member.pid] / all_s * member.threads / here[member.pid]
            for member in members
        }

    def _led(self) -> bool:
        """Whether it leads, also when another one looks at this moment whether it could."""
        for _ in range(5):
            if self.leads():
                return True
            time.sleep(0.01)
        return False

    def stop(self) -> None:
        """Be a worker there no more; the last one removes the folder."""
        try:
            # its worker may be here anew by the same name, before this one has ended: it stays then
            mine = os.path.samestat(os.stat(self._path), os.fstat(self._here))
            if mine:
                self._path.unlink()
            last = mine and self._led() and self.members() == [self.member]
        except FileNotFoundError:
            # another one was the last, and has removed the folder since
            last = False
        if last:
            for name in (_BOARD, _LEADER):
                (self._folder / name).unlink(missing_ok=True)
            with suppress(OSError):
                self._folder.rmdir()
        for descriptor in (self._here, self._leads):
            if descriptor is not None:
                os.close(descriptor)


def _own(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise WorkerError(f"{folder} belongs to somebody else; remove it, or set TMPDIR to another folder")


def _held(path: str) -> bool:
    """Whether the worker whose file this is is still there."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process and of those that it has waited for; 0 when it is gone."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    # the name of the program may have blanks and brackets
    fields: list[Any] = said.rpartition(")")[2].split()
    return sum(int(value) for value in fields[11:15]) / os.sysconf("SC_CLK_TCK")
