"""A cluster that is to be killed: ``python -m dask_hpc.chaos.victim LEVELS STORE ELEMENTS``.

It computes and writes one version after another, each with its number in the values, and says what it does on
lines of their own (``computes N``, ``writes N``, ``whole N``) until it is ended.
"""

from __future__ import annotations

import sys

import dask
from distributed import Client

import dask_hpc
from dask_hpc.chaos import work
from dask_hpc.chaos.clusters import WORKERS, own, say


def main(levels: str, store: str, elements: int) -> None:
    """Write versions without an end."""
    asked = levels.split(",")
    settings = {"hpc.checkpoint.store": store} if "L3" in asked else {}
    with dask.config.set(settings), own(WORKERS) as cluster, Client(cluster) as client:
        rt = dask_hpc.runtime(client)
        version = 0
        while True:
            version += 1
            say(f"computes {version}")
            numbers = [100 * version + block for block in range(work.BLOCKS)]
            made = client.map(work.slowly, numbers, elements=elements, pure=False)
            data = client.scatter(client.gather(made), hash=False)
            say(f"writes {version}")
            rt.checkpoint(data, "versions", levels=asked)
            say(f"whole {version}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
