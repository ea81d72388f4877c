"""Runs of one program on several hosts of this machine that are all killed, hosts among them, and begun anew.

Arguments: a folder in memory, and what is tried: ``losses SCHEME HOSTS``, ``points``, ``writes N`` (every
N-th point of them), or some of ``passed-over``, ``kept-once`` and ``left``. Prints how many cases there were,
or of each of these its name when it holds.
"""

from __future__ import annotations

import multiprocessing.forkserver
import os
import re
import shutil
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import crc32c  # noqa: F401  (what all processes load)
import cryptography.x509  # noqa: F401
import dask.array  # noqa: F401
import numpy as np
import xarray  # noqa: F401
from forked_managers import fork_managers
from write_points import Points

from dask_hpc import CheckpointSession
from dask_hpc.checkpoint.record import records
from dask_hpc.errors import CheckpointError
from dask_hpc.session import memory as session_memory
from dask_hpc.session.exchange import FolderExchange
from dask_hpc.worker import keeping, managers, parities
from dask_hpc.worker.host_process import HostProcess
from dask_hpc.worker.left_behind import MANAGER, TARGET

LENGTH = 30_000


def content(version: int) -> np.ndarray:
    return np.arange(float(LENGTH)) + version


def run(folder: Path, rank: int, hosts: Sequence[str], last: int, options: dict[str, Any]) -> None:
    """One process of a run that goes on for a version; it is killed at its call of the number `last`."""
    with (folder / "programs").open("a") as programs:
        programs.write(f"{os.getpid()} ")
    os.environ["DASK_HPC__NODE__HOST"] = hosts[rank]
    size = len(hosts)
    start, stop = rank * LENGTH // size, (rank + 1) * LENGTH // size
    exchange = FolderExchange(folder / "exchange", rank, size, 60.0)
    levels = options.get("levels", ("L1", "L2"))
    session = CheckpointSession(
        "run", rank=rank, size=size, exchange=exchange, levels=levels, store=options.get("store")
    )
    with session:
        field = session.add("field", np.full(stop - start, -1.0), start=start)
        number = session.add("number", np.zeros(3, int))
        version = session.restart_all(options.get("back")) or 0
        assert version == session.values.get("version", 0)
        assert version == 0 or np.array_equal(field, content(version)[start:stop])
        assert set(number) == {version}
        field[:] = content(version + 1)[start:stop]
        number[:] = version + 1
        if last and options.get("writes"):
            Points(last, lambda: managers_of(folder)).wrap()
        elif last:
            kill_at_call(last)
        if options.get("alone"):
            session_memory.protect = refused
        if options.get("kept_once"):
            keep_once()
        commit = session.commit(version=version + 1)
        assert commit.status()["levels"] == list(options.get("has", levels)), commit.status()
        if rank == 0:
            (folder / "newest").write_text(str(version + 1))
        if options.get("kill", True):
            os.kill(os.getpid(), signal.SIGKILL)


def kill_at_call(last: int) -> None:
    """Have this process end instead of asking a manager for the time of the number `last`."""
    done = [0]
    for module in (session_memory, managers, parities, keeping):
        real = module.ask

        async def ask(*args: Any, real: Any = real, **more: Any) -> Any:
            done[0] += 1
            if done[0] == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return await real(*args, **more)

        module.ask = ask


def forked(folder: Path, rank: int, hosts: Sequence[str], last: int, options: dict[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        # it runs, and is no child of this one, which could not ask
        multiprocessing.forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]
        try:
            run(folder, rank, hosts, last, options)
            os._exit(0)
        except CheckpointError as error:
            (folder / f"error-{rank}").write_text(str(error))
            os._exit(2)
        except BaseException as error:
            print(f"rank {rank} on {hosts}: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
    return child


def ended(folder: Path, hosts: Sequence[str], last: int = 0, **options: Any) -> list[int]:
    """How the processes of a run have ended; the first one may be killed, the others then are, too."""
    children = [forked(folder, rank, hosts, last if rank == 0 else 0, options) for rank in range(len(hosts))]
    found = []
    for child in children:
        _, status = os.waitpid(child, 0)
        if last and os.WIFSIGNALED(status):
            for other in children[len(found) + 1 :]:
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
        found.append(os.waitstatus_to_exitcode(status))
    return found


def lose(host: str) -> None:
    """A host with all that it holds."""
    process = HostProcess(MANAGER, TARGET, "session run", host)
    pid = process.pid
    shutil.rmtree(process.folder)
    process.stop()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


def newest(folder: Path) -> int:
    return int((folder / "newest").read_text())


def losses(folder: Path, hosts: Sequence[str], parity: int) -> int:
    """Lose as many hosts as are promised, in all ways, between two runs; then one more."""
    count = 0
    assert ended(folder, hosts) == [-signal.SIGKILL] * len(hosts)
    for lost in combinations(hosts, parity):
        for host in lost:
            lose(host)
        # on fewer hosts first, then on all: each goes on from what the one before has written
        left = [host for host in hosts if host not in lost]
        for there in (left, list(hosts)) if len(left) > parity else (list(hosts),):
            before = newest(folder)
            assert ended(folder, there) == [-signal.SIGKILL] * len(there), (lost, there)
            assert newest(folder) == before + 1
        count += 1
    for host in hosts[: parity + 1]:
        lose(host)
    assert ended(folder, hosts[::-1]) == [2] * len(hosts)
    assert "is not in memory any more: too many of the hosts" in (folder / "error-0").read_text()
    return count


def managers_of(folder: Path) -> list[int]:
    """Processes of all managers."""
    told = [path.read_text() for path in folder.glob(f"dask-hpc-*/{MANAGER}.lock")]
    return [int(text) for text in told if text.isdigit()]


#: What wraps a manager's calls as it is started: at one of them it ends, and all else with it.
AT_START = """
import os, sys
from pathlib import Path
folder = Path({folder!r})
if str(folder) in "".join(sys.orig_argv) and (folder / "point").exists():
    with open(folder / "taken", "a") as taken:
        taken.write("one ")
    # the manager of one host alone
    if (folder / "taken").read_text() == "one ":
        sys.path[:0] = {path!r}
        from session_hosts import managers_of
        from write_points import Points
        def others():
            own = os.getpid()
            return [*map(int, (folder / "programs").read_text().split()),
                    *(each for each in managers_of(folder) if each != own)]
        Points(int((folder / "point").read_text()), others).wrap()
"""


def writes(folder: Path, every: int) -> int:
    """Kill all processes between any two writes of one of them: there are whole versions only."""
    hosts, total = ("alpha", "beta"), 0
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(AT_START.format(folder=str(folder), path=sys.path))
    sys.path.insert(0, str(folder / "site"))
    assert ended(folder, hosts, kill=False) == [0, 0]
    for of_manager in (False, True):
        point = 0
        while True:
            point, before = point + every, newest(folder)
            if of_manager:
                kill_all(managers_of(folder))
                (folder / "taken").unlink(missing_ok=True)
                (folder / "programs").unlink(missing_ok=True)
                (folder / "point").write_text(str(point))
            found = ended(folder, hosts, last=0 if of_manager else point, kill=False, writes=True)
            (folder / "point").unlink(missing_ok=True)
            if found == [0, 0]:
                break  # it has not come to that point yet
            assert -signal.SIGKILL in found, (of_manager, point, found)
            # the next run finds it as it was, or the next one, and says so
            assert ended(folder, hosts, kill=False) == [0, 0], (of_manager, point)
            assert newest(folder) in (before + 1, before + 2), (of_manager, point)
            total += 1
    return total


def kill_all(processes: Sequence[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


async def refused(*_: Any) -> Any:
    raise CheckpointError("no parities can be made")


def passed_over(folder: Path) -> int:
    """A version without parities does not take the place of one that has some; the next one that has does."""
    hosts = ("alpha", "beta")
    assert ended(folder, hosts, kill=False) == [0, 0]
    for _ in range(2):
        assert ended(folder, hosts, kill=False, alone=True, has=["L1"]) == [0, 0]
    lose("beta")
    (folder / "newest").write_text("1")
    assert ended(folder, hosts, kill=False) == [0, 0]
    assert newest(folder) == 2
    count = {len(records(str(place))) for place in folder.glob("dask-hpc-*")}
    assert count == {1}, count
    return 1


def keep_once() -> None:
    """Have all managers but the first one refuse to keep the record of a version."""
    real, asked = keeping.ask, []

    async def ask(*args: Any, **more: Any) -> Any:
        asked.append(args)
        if len(asked) > 1:
            raise OSError("no room for a record")
        return await real(*args, **more)

    keeping.ask = ask


def kept_once(folder: Path) -> int:
    """A version that one host alone knows is none, though its parities make up for the loss of the other."""
    hosts = ("alpha", "beta")
    assert ended(folder, hosts, kill=False) == [0, 0]
    assert ended(folder, hosts, kill=False, kept_once=True) == [2, 2]
    told = (folder / "error-0").read_text()
    assert re.search("1 of the 2 hosts that fail apart keep .*: no room for a record", told), told
    # nothing of it is left, and the one before is where it was
    assert [len(records(str(place))) for place in folder.glob("dask-hpc-*")] == [1, 1]
    assert newest(folder) == 1
    return 1


def left(folder: Path) -> int:
    """A version that was left does not stay for its parities beside one that has none."""
    hosts, options = ("alpha", "beta"), {"kill": False, "store": folder / "store"}
    levels = ("L1", "L2", "L3")
    for _ in range(2):
        assert ended(folder, hosts, **options, levels=levels) == [0, 0]
    assert ended(folder, hosts, **options, levels=levels, back=1, alone=True, has=["L1", "L3"]) == [0, 0]
    assert [len(records(str(place))) for place in folder.glob("dask-hpc-*")] == [1, 1]
    return 1


def points(folder: Path) -> int:
    """Kill the first process before every call of a commit: the newest whole version is there."""
    hosts, point = ("alpha", "beta"), 0
    assert ended(folder, hosts, kill=False) == [0, 0]
    before = 1
    while True:
        point += 1
        found = ended(folder, hosts, last=point, kill=False)
        # the next run finds it as it was, or the next one, and says so
        assert ended(folder, hosts, kill=False) == [0, 0], point
        assert newest(folder) in (before + 1, before + 2), point
        before = newest(folder)
        if found == [0, 0]:
            return point - 1
        assert found[0] == -signal.SIGKILL, (point, found)


def holds(place: Path, name: str) -> bool:
    """Try one in a folder of its own; what breaks is told."""
    (folder := place / name).mkdir()
    os.environ["DASK_HPC__NODE__MEMORY_FOLDER"] = str(folder)
    try:
        return TRIED[name](folder) == 1
    except Exception:
        traceback.print_exc()
        return False
    finally:
        kill_all(managers_of(folder))


TRIED = {"passed-over": passed_over, "kept-once": kept_once, "left": left}

if __name__ == "__main__":
    place = Path(sys.argv[1])
    os.environ |= {"DASK_HPC__NODE__MEMORY_FOLDER": str(place), "DASK_HPC__CHECKPOINT__LINGER": "30s"}
    if sys.argv[2] != "writes":  # which are those of a manager that is started anew
        multiprocessing.forkserver.set_forkserver_preload(["session_hosts", "dask_hpc.worker.manager"])
        multiprocessing.forkserver.ensure_running()
        fork_managers()
    if sys.argv[2] == "points":
        print(points(place))
    elif sys.argv[2] == "writes":
        print(writes(place, int(sys.argv[3])))
    elif sys.argv[2] in TRIED:
        print(*(name for name in sys.argv[2:] if holds(place, name)))
    else:
        scheme, hosts = sys.argv[3], sys.argv[4].split(",")
        os.environ |= {"DASK_HPC__CHECKPOINT__REDUNDANCY": scheme}
        os.environ |= {"DASK_HPC__CHECKPOINT__SET_SIZE": str(max(3, len(hosts)))}
        print(losses(place, hosts, 2 if scheme == "reed-solomon" else 1))
    # with them the last that hold what this one writes to
    kill_all(managers_of(place))
