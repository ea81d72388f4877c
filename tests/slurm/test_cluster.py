"""`SLURMCluster` on a real Slurm: jobs with several workers, jobs that fail, commands that fail.

What ends jobs of one worker is in `test_loss_matrix`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dask
import pytest
from outside import PATIENCE_S, environment, until, workers
from slurm_dask import Work, dask_on

import dask_hpc

pytestmark = pytest.mark.slow


def test_scaling_down_releases_whole_jobs_and_loses_nothing(cluster: Any, tmp_path: Path) -> None:
    with dask_on(cluster, tmp_path, processes=2) as (made, client):
        made.scale(jobs=3)
        client.wait_for_workers(6, timeout=PATIENCE_S)
        work = Work(client, tmp_path)
        plan = made.scale(jobs=1, dry_run=True)
        assert {len(workers) for workers in plan["release"].values()} == {2}
        assert (len(plan["release"]), plan["add"], plan["refused"]) == (2, 0, {})
        ids = {spec: int(job.job_id) for spec, job in made.workers.items()}
        made.scale(jobs=1)
        until(lambda: len(set(workers(client))) == 2 and len(made.workers) == 1, "one job is left")
        work.check()
        [left] = made.workers
        for spec, id in ids.items():
            states = ("RUNNING",) if spec == left else ("COMPLETED", "CANCELLED", "FAILED", "")
            cluster.wait_for(id, *states)


@pytest.mark.parametrize("how", ["scancel", "notice"])
def test_a_job_with_several_workers_that_is_ended_from_outside_loses_nothing_and_is_replaced(
    cluster: Any, tmp_path: Path, how: str
) -> None:
    with dask_on(cluster, tmp_path, processes=2) as (made, client):
        made.scale(jobs=2)
        client.wait_for_workers(4, timeout=PATIENCE_S)
        work = Work(client, tmp_path)
        victim, job = next(iter(made.workers.items()))
        before = set(workers(client))
        signal = () if how == "scancel" else ("--signal=USR1", "--full")
        cluster.run("scancel", *signal, job.job_id)
        gone = {name for name in before if name.startswith(victim)}
        until(lambda: not gone & set(workers(client)), "it has left")
        until(lambda: len(set(workers(client))) == 4, "it has been replaced")
        work.check()
        assert victim not in made.worker_spec


def test_a_job_that_dies_is_replaced_although_it_had_several_workers(cluster: Any, tmp_path: Path) -> None:
    with dask_on(cluster, tmp_path, processes=2) as (made, client):
        made.scale(jobs=1)
        client.wait_for_workers(2, timeout=PATIENCE_S)
        [(victim, job)] = made.workers.items()
        cluster.run("scancel", "--signal=KILL", "--full", job.job_id)
        until(lambda: len(set(workers(client))) == 2 and victim not in made.workers, "another job has come")
        assert client.submit(sum, [1, 2]).result() == 3


def test_what_the_only_job_holds_comes_back_on_its_successor_when_it_is_cancelled(
    cluster: Any, tmp_path: Path
) -> None:
    spill = tmp_path / "spill"
    with dask.config.set({"hpc.spill.directory": str(spill)}), dask_on(cluster, tmp_path) as (made, client):
        made.scale(jobs=1)
        client.wait_for_workers(1, timeout=PATIENCE_S)
        work = Work(client, tmp_path)
        [(victim, job)] = made.workers.items()
        cluster.run("scancel", job.job_id)
        until(lambda: victim not in workers(client), "it has left")
        until(lambda: workers(client), "it has been replaced")
        work.check()
        until(lambda: not list(spill.iterdir()), "nothing is left on disk")


@pytest.mark.errors("could not be started")
def test_what_slurm_refuses_is_one_clear_message_and_the_cluster_goes_on(
    cluster: Any, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    with dask_on(cluster, tmp_path) as (made, client):
        made.scale(jobs=1)
        client.wait_for_workers(1, timeout=PATIENCE_S)
        monkeypatch.setitem(made.new_spec["options"], "queue", "no-such-partition")
        made.scale(jobs=2)
        until(lambda: "could not be started" in caplog.text, "the refusal")
        assert "invalid partition" in caplog.text
        until(lambda: len(made.worker_spec) == 1, "it is asked for no more")
        monkeypatch.setitem(made.new_spec["options"], "queue", "compute")
        made.scale(jobs=2)
        client.wait_for_workers(2, timeout=PATIENCE_S)


@pytest.mark.errors("in a row without a worker")
def test_jobs_that_never_have_a_worker_are_not_asked_for_again_and_again(
    cluster: Any, tmp_path: Path, caplog: Any
) -> None:
    with dask_on(cluster, tmp_path, job_script_prologue=["exit 3"]) as (made, _):
        made.scale(jobs=1)
        until(lambda: "3 in a row without a worker" in caplog.text, "it gives up")
        assert str(tmp_path / "logs") in caplog.text
        until(lambda: not made.worker_spec, "no job is asked for")
        asked = made.asked
        until(lambda: made.asked > asked + 2, "it looks again")
        assert not made.worker_spec


def test_a_squeue_that_fails_is_said_once_and_nothing_is_replaced(
    cluster: Any, tmp_path: Path, caplog: Any
) -> None:
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "squeue").write_text("#!/bin/sh\necho slurm_load_jobs error: Unable to contact >&2\nexit 1\n")
    (broken / "squeue").chmod(0o755)
    with dask_on(cluster, tmp_path) as (made, client):
        made.scale(jobs=1)
        client.wait_for_workers(1, timeout=PATIENCE_S)
        [spec] = made.worker_spec
        with environment({"PATH": f"{broken}{os.pathsep}{os.environ['PATH']}"}):
            until(lambda: "What has become of the jobs is not known" in caplog.text, "it is said")
            asked = made.asked
            until(lambda: made.asked > asked + 2, "it is asked again")
            assert caplog.text.count("What has become of the jobs is not known") == 1
            assert list(made.worker_spec) == [spec]
            assert client.submit(sum, [1, 2]).result() == 3


def test_the_demo_runs_on_slurm(cluster: Any, tmp_path: Path) -> None:
    settings = {
        "CORES": "1",
        "PROCESSES": "1",
        "MEMORY": "1 GB",
        "JOB_MEM": "0",
        "INTERFACE": "lo",
        "LOG_DIRECTORY": str(tmp_path),
        "LOCAL_DIRECTORY": str(tmp_path),
    }
    variables = {f"DASK_JOBQUEUE__SLURM__{name}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "dask", "hpc", "demo", "--slurm", "--fast", "--json"]
    with environment({**cluster.environment, **variables}):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert all(job["state"] == "completed" for job in summary["jobs"]), summary
    assert (tmp_path / "dask-hpc-demo.html").stat().st_size > 10_000


def test_walltime_that_is_left_is_what_squeue_says_and_pools_have_their_roles(
    cluster: Any, tmp_path: Path
) -> None:
    pools = {"staging": {"queue": "staging", "role": "staging"}}
    with dask_on(cluster, tmp_path, pools=pools) as (made, client):
        made.scale(jobs=1)
        made.scale(jobs=1, pool="staging")
        client.wait_for_workers(2, timeout=PATIENCE_S)
        runtime = dask_hpc.runtime(client)
        until(lambda: len(_left_s(runtime)) == 2, "both tell how long they have")
        specs = {str(job.job_id): str(spec) for spec, job in made.workers.items()}
        said = dict(
            line.split() for line in cluster.run("squeue", "--noheader", "--format=%i %L").splitlines()
        )
        left_s = _left_s(runtime)
        for id, spec in specs.items():
            minutes, seconds = map(int, said[id].split(":"))
            assert left_s[spec] == pytest.approx(60 * minutes + seconds, abs=5)
        roles = {node["id"]: node.get("role", "compute") for node in runtime.status()["nodes"]}
        assert sorted(roles.values()) == ["compute", "staging"]
        assert all(("staging" in name) == (role == "staging") for name, role in roles.items())
        places = client.gather(client.map(_place, range(20), pure=False))
        assert not any("staging" in place for place in places)


def test_walltime_left_follows_a_time_limit_that_is_changed_while_the_job_runs(
    cluster: Any, tmp_path: Path
) -> None:
    short = {"hpc.walltime.notice": "35 s", "hpc.walltime.margin": "5 s"}
    pools = {"staging": {"queue": "staging", "role": "staging", "walltime": "00:30:00"}}
    with (
        dask.config.set(short),
        dask_on(cluster, tmp_path, walltime="00:01:00", pools=pools) as (made, client),
    ):
        made.scale(jobs=1)
        made.scale(jobs=1, pool="staging")
        until(lambda: len(made.workers) == 2, "two jobs")
        ids = {str(spec): str(job.job_id) for spec, job in made.workers.items()}
        [extended] = [name for name in ids if "staging" not in name]
        [lowered] = [name for name in ids if "staging" in name]
        cluster.wait_for(int(ids[extended]), "RUNNING")
        # its agent knows when it ends, and has it emptied 20 s after its start: there is no time to lose
        until(lambda: extended in workers(client), "a worker that knows its end")
        began_s = time.monotonic()
        cluster.run("scontrol", "update", f"JobId={ids[extended]}", "TimeLimit=12")
        client.wait_for_workers(2, timeout=PATIENCE_S)
        cluster.run("scontrol", "update", f"JobId={ids[lowered]}", "TimeLimit=10")
        runtime = dask_hpc.runtime(client)

        def as_squeue_says() -> bool:
            rows = cluster.run("squeue", "--noheader", "--format=%i %L").splitlines()
            said = dict(line.split() for line in rows)
            left_s = _left_s(runtime)
            for name, id in ids.items():
                minutes, seconds = map(int, said[id].split(":"))
                if abs(left_s.get(name, 0.0) - (60 * minutes + seconds)) > 5:
                    return False
            return True

        until(as_squeue_says, "walltime left is what squeue says")
        # the agent of the first would have had it emptied 20 s after its start
        until(lambda: time.monotonic() > began_s + 25, "the first end has been passed")
        assert extended in workers(client)
        assert client.submit(_place, 0, pure=False).result() == extended
        assert as_squeue_says()
        assert 600 < _left_s(runtime)[extended] < 720
        until(lambda: len(made.workers) == 2, "no job is to follow it any more")
        assert extended in workers(client)
        # a minute more than it has run: less than it takes to empty it is left soon
        cluster.run("scontrol", "update", f"JobId={ids[lowered]}", "TimeLimit=1")
        until(lambda: lowered not in workers(client), "it has been emptied")


def _place(_: int) -> str:
    from distributed import get_worker

    return str(get_worker().name)


def _left_s(runtime: Any) -> dict[str, float]:
    nodes = runtime.status()["nodes"]
    return {node["id"]: node["walltime_left_s"] for node in nodes if node["walltime_left_s"] is not None}
