"""A cluster inside one allocation: the script that ``srun`` runs in every task of a job."""

from __future__ import annotations

import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import dask
import pytest
from outside import PATHS, until

import dask_hpc
from dask_hpc.deploy.arguments import with_preload
from dask_hpc.deploy.slurm import stock
from dask_hpc.deploy.slurm.runner import AGENT

SCRIPT = """
import dask_hpc
from distributed import Client

with dask_hpc.SLURMRunner(
    scheduler_options={"host": "127.0.0.1", "dashboard_address": ":0"},
    worker_options={"host": "127.0.0.1", "nthreads": 1},
) as runner, Client(runner) as client:
    client.wait_for_workers(runner.n_workers)
    assert all(client.run(lambda dask_worker: "dask-hpc" in dask_worker.plugins).values())
    runtime = dask_hpc.runtime(client)
    with runtime.job("sum", nodes=2) as job:
        total = client.submit(sum, client.map(abs, range(-10, 0))).result()
    job.wait(30)
    print("total", total, "nodes", runtime.status()["pool_nodes"], flush=True)
"""
#: The client waits for a file; a notice comes meanwhile.
NOTICE = """
import time
import dask_hpc
from distributed import Client

with dask_hpc.SLURMRunner(
    scheduler_options={"host": "127.0.0.1", "dashboard_address": ":0"},
    worker_options={"host": "127.0.0.1", "nthreads": 1},
) as runner, Client(runner) as client:
    client.wait_for_workers(runner.n_workers)
    kept = client.submit(abs, -1, key="only-here")
    kept.result()
    print("ready", flush=True)
    while client.sync(client.scheduler.identity, n_workers=-1)["workers"]:
        time.sleep(0.1)
    events = [event for rows in client.get_events().values() for _, event in rows if isinstance(event, dict)]
    left = [list(event["lost"]) for event in events if event.get("action") == "hpc-departure"]
    expected = {event["expected"] for event in events if event.get("action") == "remove-worker"}
    print("announced", left, "expected", expected, flush=True)
"""


def job(cluster: Any, folder: Path, script: str, *options: str) -> int:
    """Submit a job that runs `script` in four tasks; its number."""
    (folder / "script.py").write_text(textwrap.dedent(script))
    command = f"srun --output={folder}/output {sys.executable} {folder}/script.py"
    environment = f"--export=ALL,PYTHONPATH={PATHS},DASK_HPC__WALLTIME__NOTICE=2s"
    return int(cluster.submit(command, "-n", "4", f"--chdir={folder}", environment, *options))


def output(folder: Path) -> str:
    """What the tasks have printed."""
    path = folder / "output"
    return path.read_text() if path.exists() else ""


@pytest.mark.slow
def test_a_script_in_an_allocation_has_a_cluster_with_the_runtime(cluster: Any, tmp_path: Path) -> None:
    number = job(cluster, tmp_path, SCRIPT)
    assert cluster.wait_for(number, "COMPLETED", "FAILED", "TIMEOUT") == "COMPLETED", output(tmp_path)
    assert "total 55 nodes 2" in output(tmp_path)


@pytest.mark.slow
def test_a_notice_empties_all_workers_and_names_what_is_lost(cluster: Any, tmp_path: Path) -> None:
    number = job(cluster, tmp_path, NOTICE)
    until(lambda: "ready" in output(tmp_path) or cluster.state(number) == "FAILED", "the script computes")
    cluster.run("scancel", "--signal=USR1", str(number))
    assert cluster.wait_for(number, "COMPLETED", "FAILED", "TIMEOUT") == "COMPLETED", output(tmp_path)
    assert "announced [['only-here']] expected {True}" in output(tmp_path)


def test_outside_of_a_job_it_says_so(monkeypatch: Any) -> None:
    for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="SLURM_PROCID, SLURM_NTASKS, and SLURM_JOB_ID must be present"):
        dask_hpc.SLURMRunner()


def test_workers_have_the_agent_and_do_not_wait_for_a_scheduler_that_is_gone(monkeypatch: Any) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(stock.Runner, "__init__", lambda _self, **kwargs: given.update(kwargs))
    monkeypatch.setattr(stock, "exit_on_interrupt", lambda: None)
    monkeypatch.setenv("SLURM_STEP_ID", "3")
    before = signal.getsignal(signal.SIGUSR1)
    try:
        dask_hpc.SLURMRunner(worker_class="distributed.Nanny", worker_options={"nthreads": 1})
        assert given["worker_options"] == {
            "nthreads": 1, "death_timeout": 60.0, "preload": [AGENT], "preload_nanny": [AGENT],
        }  # fmt: skip
        assert given["scheduler_file"] == "scheduler-{job_id}-3-0.json"
        dask_hpc.SLURMRunner(worker_options={"death_timeout": 5})
        assert given["worker_options"] == {"death_timeout": 5, "preload": [AGENT]}
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_is_preloaded_beside_the_agent_may_be_one_or_several() -> None:
    for preload in ("mine.py", ["mine.py", "other"]):
        loaded = {"preload": [*([preload] if isinstance(preload, str) else preload), "dask_hpc.agent"]}
        assert with_preload({"preload": preload}, "worker", "preload", AGENT) == loaded
        with dask.config.set({"distributed.nanny.preload": preload}):
            assert with_preload({}, "nanny", "preload_nanny", AGENT) == {"preload_nanny": loaded["preload"]}
    # arguments are for all of them, or for each
    given = {"preload": ["mine.py"], "preload_argv": ["--all"]}
    assert "preload_argv" not in with_preload(given, "worker", "preload", AGENT)
    given["preload_argv"] = [["--mine"]]  # type: ignore[list-item]
    assert with_preload(given, "worker", "preload", AGENT)["preload_argv"] == [["--mine"], []]
