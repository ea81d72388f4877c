"""A cluster on two hosts that goes on from its newest version, killed whole between any two of its writes.

Arguments: a folder in memory, levels, every how many writes. Prints at how many of them all were killed: of a
worker, then of the scheduler. Managers are killed with them; `session_hosts` kills at their own writes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import dask
import numpy as np
from distributed import Client
from session_hosts import kill_all, managers_of
from write_points import Points

import dask_hpc
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.verify import verify
from dask_hpc.client.known import workers_of
from dask_hpc.errors import UnknownCheckpoint

HOSTS = ("alpha", "beta")
BLOCKS = 4
_HOST = "DASK_HPC__NODE__HOST"


def content(version: int) -> list[np.ndarray]:
    return [np.arange(3000.0) + 10 * version + block for block in range(BLOCKS)]


def others(folder: str, group: int) -> list[int]:
    """All processes: managers, then those of the cluster."""
    return [*managers_of(Path(folder)), -group]


def arm(point: int, folder: str, group: int) -> None:
    """Kill all processes at a write of this one."""
    Points(point, lambda: others(folder, group)).wrap()


def newest(client: Client) -> int:
    """Number of the version that comes back, which is whole; 0: there is none."""
    try:
        found = client.gather(dask_hpc.restore("run", client))
    except (ValueError, UnknownCheckpoint):
        return 0
    number = round(float(found[0][0]) / 10)
    for block, expected in zip(found, content(number), strict=True):
        np.testing.assert_array_equal(block, expected)
    return number


def run(folder: str, levels: Sequence[str], who: str, point: int) -> None:
    """Go on for a version, and be killed."""
    settings = {"store": f"{folder}/store" if "L3" in levels else None, "linger": "5 min"}
    envs = [{_HOST: host, "DASK_HPC__CHECKPOINT__LINGER": "5 min"} for host in HOSTS]
    with (
        dask.config.set({"hpc.checkpoint": settings}),
        dask_hpc.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            dashboard_address=":0",
            env=envs[0],
            pools={"more": {"n_workers": 1, "env": envs[1]}},
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(len(HOSTS))
        rt = dask_hpc.install(client)
        number = newest(client)
        print(f"found {number}", flush=True)
        places = sorted(workers_of(client))
        data = [
            client.scatter([block], workers=[places[at % len(places)]], hash=False)[0]
            for at, block in enumerate(content(number + 1))
        ]
        if who == "worker":
            client.run(arm, point, folder, os.getpgid(0), workers=places[:1])
        elif who == "scheduler":
            arm(point, folder, os.getpgid(0))
        commit = rt.checkpoint(data, "run", levels=levels)
        assert commit.status()["levels"] == list(levels), commit.status()
        print(f"whole {number + 1}", flush=True)
        os.killpg(0, signal.SIGKILL)


def ended(folder: Path, levels: str, who: str, point: int) -> tuple[int, int]:
    """The version that a run has found, and the one that was whole when it was killed; 0: none."""
    command = [sys.executable, __file__, str(folder), levels, who, str(point)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        said = dict(line.split() for line in process.stdout)
        process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    kill_all(managers_of(folder))
    deadline_s = time.monotonic() + 30
    while managers_of(folder) and any(map(_lives, managers_of(folder))):
        assert time.monotonic() < deadline_s, "managers live on"
        time.sleep(0.02)
    assert "found" in said, (who, point, said)
    return int(said["found"]), int(said.get("whole", 0))


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def main(folder: Path, levels: str, every: int) -> None:
    store = Store(folder / "store")
    (folder / "store").mkdir()
    found, whole = ended(folder, levels, "nobody", 0)
    assert (found, whole) == (0, 1)
    for who in ("worker", "scheduler"):
        point = total = 0
        while True:
            point, least = point + every, whole
            found, whole = ended(folder, levels, who, point)
            # all that was whole is there; what was being written is there as a whole or not at all
            assert found in (least, least + 1), (who, point, found, least)
            for version in store.versions("run"):
                assert not version.complete or verify(version) == [], (who, point, version)
            if whole:
                assert whole == found + 1
                break
            whole, total = found, total + 1
        print(total, flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        os.environ["DASK_HPC__NODE__MEMORY_FOLDER"] = sys.argv[1]
        main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    else:
        run(sys.argv[1], sys.argv[2].split(","), sys.argv[3], int(sys.argv[4]))
