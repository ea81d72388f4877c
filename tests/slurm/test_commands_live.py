"""Slurm's commands on a Slurm that runs."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from private_slurm import PrivateSlurm, poll

from dask_hpc.doctor import machine as doctor
from dask_hpc.errors import SlurmError
from dask_hpc.slurm import commands
from dask_hpc.slurm.notation import JobId, expand_hosts
from dask_hpc.slurm.rows import is_over

Asked = Callable[..., Awaitable[Any]]


def ask(cluster: PrivateSlurm, function: Asked, *arguments: Any, **named: Any) -> Any:
    return asyncio.run(function(*arguments, environment=cluster.environment, **named))


def test_a_job_from_submission_to_its_end(cluster: PrivateSlurm) -> None:
    job = cluster.submit(
        "sleep 600", "--job-name=a|b", "--time=1-02:03:00", "--nodes=2", "--partition=compute"
    )
    cluster.wait_for(job, "RUNNING")
    (queued,) = ask(cluster, commands.squeue, [job])
    assert (queued.id, queued.number, queued.name, queued.state) == (JobId(job), job, "a|b", "RUNNING")
    assert (queued.partition, queued.nodes, queued.time_limit_s) == ("compute", 2, 93_780)
    assert set(queued.hosts) <= set(cluster.compute_nodes)
    assert len(queued.hosts) == 2
    assert 93_700 < queued.time_left_s <= 93_780
    assert queued.end_s - queued.start_s == 93_780
    # points in time are those of this machine's clock, whatever zone it is in
    assert abs(queued.start_s - time.time()) < 120

    ask(cluster, commands.scancel, [JobId(job)])
    cluster.wait_for(job, "CANCELLED")
    (queued,) = ask(cluster, commands.squeue, [job])
    assert is_over(queued.state)
    # once more is no error
    ask(cluster, commands.scancel, [job])


def test_arrays_components_and_jobs_that_wait(cluster: PrivateSlurm) -> None:
    array = cluster.submit("sleep 600", "--array=1-70:3%2", "--time=5")
    held = cluster.submit("sleep 600", "--hold", "--time=UNLIMITED", "--partition=staging,compute")
    parts = cluster.run(
        "sbatch", "--parsable", "--time=5", ":", "--time=5", "--partition=staging", "--wrap", "sleep 600"
    )
    first = int(parts)
    rows = poll(
        lambda: {
            str(row.id): row
            for rows in [ask(cluster, commands.squeue, [array, held, first])]
            for row in rows
            if sum(row.state == "RUNNING" for row in rows) == 4
        },
        "two tasks of the array and two components to run",
    )
    assert set(rows) == {
        f"{array}_1",
        f"{array}_4",
        f"{array}_[7-70:3%2]",
        f"{held}",
        f"{first}+0",
        f"{first}+1",
    }
    assert rows[f"{array}_[7-70:3%2]"].reason == "JobArrayTaskLimit"
    assert (rows[f"{held}"].reason, rows[f"{held}"].time_limit_s) == ("JobHeldUser", math.inf)
    assert rows[f"{first}+1"].partition == "staging"

    ask(cluster, commands.scancel, [rows[f"{array}_1"].id, f"{array}_4"])
    poll(
        lambda: {"1", "4"}.isdisjoint(
            str(row.id.array_task)
            for row in ask(cluster, commands.squeue, [array])
            if row.state in ("RUNNING", "COMPLETING")
        ),
        "two tasks to end",
    )


def test_every_task_of_a_long_array_is_named(cluster: PrivateSlurm) -> None:
    tasks = ",".join(str(2 * number) for number in range(100, 200))
    array = cluster.submit("true", "--hold", f"--array={tasks}")
    (row,) = ask(cluster, commands.squeue, [array])
    # Slurm would cut it to 64 characters otherwise
    assert row.id.array_tasks in (tasks, "200-398:2")


def test_unknown_jobs_have_no_row(cluster: PrivateSlurm) -> None:
    job = cluster.submit("sleep 600")
    assert ask(cluster, commands.squeue, [999_999]) == ask(cluster, commands.squeue, []) == ()
    assert [row.number for row in ask(cluster, commands.squeue, [job, 999_999])] == [job]
    assert job in [row.number for row in ask(cluster, commands.squeue, user=psutil.Process().username())]
    assert ask(cluster, commands.squeue, user="nobody") == ()
    # the others are cancelled all the same
    ask(cluster, commands.scancel, [999_999, job])
    cluster.wait_for(job, "CANCELLED")
    ask(cluster, commands.scancel, [])


def test_a_signal_reaches_the_script_and_what_it_started(cluster: PrivateSlurm) -> None:
    job = cluster.submit(
        "trap 'touch noticed-$SLURM_JOB_ID' USR1; touch ready-$SLURM_JOB_ID; while :; do sleep 0.1; done"
    )
    poll((cluster.folder / f"ready-{job}").exists, "the script to run")
    ask(cluster, commands.scancel, [job], signal_name="USR1")
    poll((cluster.folder / f"noticed-{job}").exists, "the signal to come")
    assert cluster.state(job) == "RUNNING"


def test_what_slurm_refuses_is_told_in_its_words(cluster: PrivateSlurm) -> None:
    job = cluster.submit("sleep 600")
    with pytest.raises(SlurmError, match=r"scancel failed with exit code 1: .*[Ss]ignal"):
        ask(cluster, commands.scancel, [job], signal_name="NONSENSE")
    with pytest.raises(SlurmError, match="'--all' is no id of a job"):
        ask(cluster, commands.scancel, ["--all"])
    assert cluster.state(job) in ("RUNNING", "PENDING")


def test_a_controller_that_cannot_be_reached_is_told(cluster: PrivateSlurm, tmp_path: Path) -> None:
    configuration = (cluster.folder / "slurm.conf").read_text()
    lines = [
        line
        for line in configuration.splitlines()
        if not line.startswith(("SlurmctldPort", "MessageTimeout"))
    ]
    (tmp_path / "slurm.conf").write_text("\n".join([*lines, "SlurmctldPort=1", "MessageTimeout=2", ""]))
    environment = dict(cluster.environment, SLURM_CONF=str(tmp_path / "slurm.conf"))
    with pytest.raises(
        SlurmError, match=r"squeue failed with exit code 1: .*Unable to contact slurm controller"
    ):
        asyncio.run(commands.squeue(environment=environment))
    finding = doctor.check_slurm(environment=environment)
    assert finding.verdict == "warn"
    assert "Unable to contact slurm controller" in finding.text


def test_the_doctor_names_the_partitions(cluster: PrivateSlurm) -> None:
    finding = doctor.check_slurm(environment=cluster.environment)
    assert finding.verdict == "ok"
    assert finding.text.endswith("; partitions compute (default, 6 nodes), staging (2 nodes)")


def test_settings_of_the_user_change_nothing(cluster: PrivateSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    job = cluster.submit("sleep 600")
    hidden = {
        "SQUEUE_FORMAT": "%t", "SQUEUE_PARTITION": "staging", "SQUEUE_STATES": "S", "SQUEUE_USERS": "nobody",
        "SINFO_FORMAT": "%t", "SINFO_PARTITION": "nowhere", "SLURM_TIME_FORMAT": "relative",
        "SCANCEL_INTERACTIVE": "1", "SCANCEL_STATE": "SUSPENDED", "LC_ALL": "de_DE.UTF-8",
        "TZ": "Pacific/Apia",
    }  # fmt: skip
    for name, value in {**cluster.environment, **hidden}.items():
        monkeypatch.setenv(name, value)
    assert [row.number for row in asyncio.run(commands.squeue([job]))] == [job]
    assert "compute (default, 6 nodes), staging (2 nodes)" in doctor.check_slurm().text
    asyncio.run(commands.scancel([job]))
    cluster.wait_for(job, "CANCELLED")


def test_a_job_finds_its_own_end(cluster: PrivateSlurm) -> None:
    limited, unlimited = (cluster.submit("sleep 600", f"--time={limit}") for limit in ("7", "UNLIMITED"))
    for job in (limited, unlimited):
        cluster.wait_for(job, "RUNNING")

    def end_s(**changed: str) -> float | None:
        return asyncio.run(commands.own_job_end_s({**cluster.environment, **changed}))

    (row,) = ask(cluster, commands.squeue, [limited])
    assert end_s(SLURM_JOB_ID=str(limited)) == row.end_s == row.start_s + 420
    assert end_s(SLURM_JOB_ID=str(unlimited)) is None
    assert end_s() is None
    assert end_s(SLURM_JOB_ID="999999") is None
    assert end_s(SLURM_JOB_ID=str(limited), SLURM_JOB_END_TIME="1795200000") == 1_795_200_000


def test_a_process_in_a_job_finds_how_long_slurm_waits_before_it_kills(cluster: PrivateSlurm) -> None:
    def wait_s(**changed: str) -> float | None:
        return asyncio.run(commands.own_kill_wait_s({**cluster.environment, **changed}))

    [line] = [line for line in (cluster.folder / "slurm.conf").read_text().splitlines() if "KillWait" in line]
    assert wait_s(SLURM_JOB_ID="1") == float(line.partition("=")[2])
    assert wait_s() is None
    assert wait_s(SLURM_JOB_ID="1", PATH="") is None


def test_a_process_in_a_job_finds_its_end(cluster: PrivateSlurm, repository: Path) -> None:
    """As a worker would: within the job, with the environment that Slurm gives it."""
    script = cluster.folder / "end.py"
    script.write_text(
        "import asyncio, os\nfrom dask_hpc.slurm.commands import own_job_end_s\n"
        "end_s = asyncio.run(own_job_end_s())\n"
        "with open('end.part', 'w') as stream:\n    stream.write(repr(end_s))\n"
        "os.rename('end.part', 'end-' + os.environ['SLURM_JOB_ID'])\n"
    )
    roots = f"{repository}:{repository / 'policies'}"
    job = cluster.submit(f"PYTHONPATH={roots} {sys.executable} {script}", "--array=3", "--time=9")
    (row,) = ask(cluster, commands.squeue, [job])
    written = cluster.folder / f"end-{row.number}"
    poll(written.exists, "the job to write its end")
    (row,) = ask(cluster, commands.squeue, [job])
    assert float(written.read_text()) == row.start_s + 540


def test_hosts_are_expanded_as_slurm_does(cluster: PrivateSlurm) -> None:
    for hosts in ("n[1-3,7],gpu[01-02],x", "n[098-103]", "n[5,3,4],n5", "login"):
        assert cluster.run("scontrol", "show", "hostnames", hosts).split() == list(expand_hosts(hosts))


def test_commands_run_in_the_loop_of_any_thread(cluster: PrivateSlurm) -> None:
    job = cluster.submit("sleep 600")

    async def elsewhere() -> Any:
        return await asyncio.to_thread(ask, cluster, commands.squeue, [job])

    assert [row.number for row in asyncio.run(elsewhere())] == [job]
