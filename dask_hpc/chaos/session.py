"""Several runs on one cluster, by their seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from distributed import Client
from distributed.exceptions import WorkerStartTimeoutError

import dask_hpc
from dask_hpc.chaos.clusters import kill_all, lose_controller, own
from dask_hpc.chaos.plan import plan
from dask_hpc.chaos.run import Outcome, run
from dask_hpc.client.known import workers_of

#: Workers have to be back by then, in seconds.
_BACK_S = 20


def rows(client: Client, seeds: Iterable[int], faults: Sequence[str], base: Path) -> Iterator[dict[str, Any]]:
    """A row for each seed; every run has a folder of its own below `base`."""
    rt = dask_hpc.install(client)
    workers = len(workers_of(client))
    for seed in seeds:
        chosen = plan(seed, faults)
        client.wait_for_workers(workers, timeout=_BACK_S)
        folder = base / str(seed)
        folder.mkdir()
        try:
            if "cluster" in chosen.faults:
                done = kill_all(client, chosen, folder)
            elif "controller" in chosen.faults:
                done = lose_controller(chosen, folder)
            else:
                done = run(client, rt, chosen, folder)
        except Exception as error:  # whatever a run raises is what was found
            done = Outcome(chosen, faults=[f"{type(error).__name__}: {error}"])
        yield {**done.row(), "good": done.good}


def rows_on_own(seeds: Iterable[int], faults: Sequence[str], base: Path) -> Iterator[dict[str, Any]]:
    """`rows` on a cluster of processes on this machine, or on several, one after the other."""
    left = list(seeds)
    while left:
        with own() as cluster, Client(cluster) as client:
            try:
                for row in rows(client, tuple(left), faults, base):
                    left.pop(0)
                    yield row
            except WorkerStartTimeoutError:
                # stock's nannies give up when their worker is killed while it starts
                continue
