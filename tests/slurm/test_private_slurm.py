"""The clusters that these tests start: several at once, and nothing is left of them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import private_slurm
import pytest
from private_slurm import PrivateSlurm, PrivateSlurmError, poll

from dask_hpc.slurm import commands


def test_several_clusters_live_beside_one_another_and_leave_nothing(slurm: PrivateSlurm) -> None:
    with PrivateSlurm(nodes=2, staging_nodes=1) as other:
        job = other.submit("trap '' TERM; sleep 600 & sleep 600", "--nodes=1")
        other.wait_for(job, "RUNNING")
        assert len(asyncio.run(commands.squeue(environment=other.environment))) == 1
        assert job not in {
            row.number
            for row in asyncio.run(commands.squeue(environment=slurm.environment))
            if row.state == "RUNNING"
        }
        # a job is said to run before its script does
        wanted = {"munged", "slurmctld", "slurmd", "slurmstepd", "sleep"}
        poll(lambda: wanted <= {process.name() for process in other.processes()}, "the script runs")
    assert other.processes() == []
    assert not other.folder.exists()
    assert slurm.run("sinfo", "--noheader")


def test_a_cluster_that_does_not_start_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, slurm: PrivateSlurm
) -> None:
    made: list[PrivateSlurm] = []

    def fails(self: PrivateSlurm) -> bool:
        made.append(self)
        raise PrivateSlurmError("on purpose")

    monkeypatch.setattr(PrivateSlurm, "_up", fails)
    with pytest.raises(PrivateSlurmError, match="on purpose"):
        PrivateSlurm(nodes=2, staging_nodes=1)
    (failed,) = made
    assert failed.processes() == []
    assert not failed.folder.exists()


def test_a_process_that_is_killed_leaves_no_cluster(slurm: PrivateSlurm) -> None:
    code = (
        "import os, private_slurm as p; c = p.PrivateSlurm(nodes=2, staging_nodes=1); "
        "c.wait_for(c.submit('sleep 600'), 'RUNNING'); print(c.folder, flush=True); os.kill(os.getpid(), 9)"
    )
    here = Path(private_slurm.__file__).parent
    done = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, timeout=120)
    folder = Path(done.stdout.strip())
    assert folder.name.startswith("slurm-"), done.stderr
    poll(lambda: not folder.exists(), "the cluster to be gone", 30)
    assert private_slurm.processes(folder) == []


def test_without_the_packages_there_is_a_reason_and_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_slurm, "NEEDED", {"no-such-daemon": "slurm-elsewhere", "sh": "dash"})
    reason = "no Slurm to test with; apt-get install slurm-elsewhere"
    assert private_slurm.missing() == reason
    with pytest.raises(PrivateSlurmError, match=reason):
        PrivateSlurm()
