"""Runs of a program that goes on from its newest version, each killed at another point of its writing.

Arguments: a folder. Prints how many points there were with one process, and with two and three in turns.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
from write_points import Points

from dask_hpc import CheckpointSession
from dask_hpc.checkpoint.opening import open_checkpoint
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.verify import verify

LENGTH = 12


def content(version: int) -> np.ndarray:
    return np.arange(float(LENGTH)) + version


def run(folder: Path, rank: int, size: int, last: int) -> None:
    """One process of a run that goes on for a step; it is killed at its write of the number `last`."""
    start, stop = rank * LENGTH // size, (rank + 1) * LENGTH // size
    with CheckpointSession("run", store=folder, rank=rank, size=size, timeout=60) as session:
        field = session.add("field", np.full(stop - start, -1.0), start=start)
        number = session.add("number", np.zeros(3, int))
        version = session.restart_all() or 0
        assert version == session.values.get("version", 0)
        assert version == 0 or np.array_equal(field, content(version)[start:stop])
        assert set(number) == {version}
        field[:] = content(version + 1)[start:stop]
        number[:] = version + 1
        if last:
            Points(last).wrap()
        session.commit(version=version + 1)


def forked(folder: Path, rank: int, size: int, last: int) -> int:
    child = os.fork()
    if child == 0:
        try:
            run(folder, rank, size, last)
            os._exit(0)
        except BaseException as error:
            print(f"rank {rank} of {size}: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
    return child


def killed(folder: Path, size: int, victim: int, point: int) -> bool:
    """Whether a run was killed at a point of one of its processes, the others like by a batch system."""
    children = [forked(folder, rank, size, point if rank == victim else 0) for rank in range(size)]
    _, status = os.waitpid(children[victim], 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
    for child in children[:victim] + children[victim + 1 :]:
        if os.WIFSIGNALED(status):
            os.kill(child, signal.SIGKILL)
        _, ended = os.waitpid(child, 0)
        # one that was faster has ended by itself
        assert not os.WIFEXITED(ended) or os.WEXITSTATUS(ended) == 0
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def main(folder: Path, ranks: int) -> int:
    store, total = Store(folder), 0
    run(folder, 0, 1, 0)  # what it loads, all others have
    for victim in range(ranks):
        point = 0
        while True:
            # of several processes the first one writes most: every fifth of its points
            point += 5 if ranks > 1 and victim == 0 else 1
            size = 1 if ranks == 1 else 2 + total % 2
            before = max([each.version for each in store.versions("run") if each.complete], default=0)
            was_killed = killed(folder, size, victim, point)
            whole = [each for each in store.versions("run") if each.complete]
            newest = max([each.version for each in whole], default=0)
            assert newest in (before, before + 1), (victim, point, before, newest)
            assert was_killed or newest == before + 1
            for version in whole:
                assert not (problems := verify(version)), (victim, point, version, problems)
                found = open_checkpoint(version.path).compute(scheduler="sync")
                assert np.array_equal(found["field"].values, content(version.version))
                assert found.attrs == {"version": version.version}
            store.collect(keep=2, older_than_s=0)
            assert all(each.complete for each in store.versions("run"))
            if not was_killed:
                break
            total += 1
    return total


if __name__ == "__main__":
    print(*(main(Path(sys.argv[1], str(ranks)), ranks) for ranks in (1, 2)))
