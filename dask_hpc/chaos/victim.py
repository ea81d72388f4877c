"""A cluster that is to be killed: ``python -m dask_hpc.chaos.victim STORE ELEMENTS``.

It writes one version after another, each with its number in the values, and says ``whole N`` on a line of its
own once version N is whole, until it is ended.
"""

from __future__ import annotations

import sys

from distributed import Client

import dask_hpc
from dask_hpc.chaos import work
from dask_hpc.chaos.clusters import WORKERS, own


def main(store: str, elements: int) -> None:
    """Write versions without an end."""
    with own(WORKERS) as cluster, Client(cluster) as client:
        rt = dask_hpc.runtime(client)
        version = 0
        while True:
            version += 1
            data = [work.values(100 * version + block, elements) for block in range(work.BLOCKS)]
            rt.checkpoint(client.scatter(data, hash=False), "versions", store=store)
            sys.stdout.write(f"whole {version}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
