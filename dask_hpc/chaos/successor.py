"""The cluster after one that was killed: ``python -m dask_hpc.chaos.successor LEVELS STORE [killed]``.

It says ``reads`` once it begins to have the newest version back, and ``found`` with what it has found. Then
it ends, and with it what it has in memory; one that is to be ``killed`` waits for that.
"""

from __future__ import annotations

import json
import sys
import time

import dask
from distributed import Client

import dask_hpc
from dask_hpc.chaos import work
from dask_hpc.chaos.clusters import WORKERS, own, say


def main(levels: str, store: str, then: str = "") -> None:
    """Have the newest version back."""
    settings = {"hpc.checkpoint.store": store} if "L3" in levels.split(",") else {}
    with dask.config.set(settings), own(WORKERS) as cluster, Client(cluster) as client:
        dask_hpc.runtime(client)
        say("reads")
        found = client.gather(dask_hpc.restore("versions", client))
        say(f"found {json.dumps(work.told(found))}")
        while then == "killed":
            time.sleep(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
