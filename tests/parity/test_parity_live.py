"""Workloads whose events cause one another or lie far apart, live and simulated; and the command."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import pytest
from click.testing import CliRunner, Result
from distributed import Client, LocalCluster

import dask_hpc
from dask_hpc.cli import hpc
from dask_hpc.errors import InstallError, WorkloadError
from dask_hpc.parity import live as parity_live
from dask_hpc.parity import run as parity_run
from dask_hpc.parity.compare import Change, compare
from dask_hpc.parity.live import ParityError
from dask_hpc.parity.run import Parity, check, simulate
from dask_hpc.parity.tasks import scaled
from dask_hpc.sim.model.job import Job, power_law
from dask_hpc.sim.model.workload import Workload
from dask_hpc.sim.workloads.sources import load
from dask_hpc_policies import registry

#: One job gives half of its nodes to another one that comes while it runs, and has them back afterwards.
JOBS = (
    Job(id="a", submit_s=0.0, start_nodes=4, min_nodes=2, max_nodes=4, kind="malleable", runtime_s=2.0),
    Job(id="b", submit_s=0.6, start_nodes=2, min_nodes=2, max_nodes=2, runtime_s=0.6),
)
SAME = [
    "submit a", "start a 0 -> 4", "submit b", "shrink a 4 -> 2", "start b 0 -> 2", "finish b 2 -> 0",
    "expand a 2 -> 4", "finish a 4 -> 0",
]  # fmt: skip


def run(*arguments: str) -> Result:
    return CliRunner().invoke(hpc, ["parity", *arguments], prog_name="dask hpc")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Of a cluster of four nodes that others have set up in their way."""
    with (
        dask.config.set({"distributed.worker.profile.enabled": False}),
        dask_hpc.LocalCluster(
            n_workers=4,
            threads_per_worker=1,
            processes=False,
            memory_limit=0,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as made,
    ):
        dask_hpc.runtime(made).update("easy", tick_s=0.7, lock="job")
        yield made


def compared(client: Client, jobs: tuple[Job, ...], **options: Any) -> Parity:
    given = {"nodes": 4, "task_length_s": 0.05, "tick_s": 0.05, **options}
    return check(client, Workload(name="two", jobs=jobs), "pwma-fpsma", **given)


def test_a_job_that_gives_nodes_and_has_them_back_does_so_in_both(client: Client) -> None:
    told: list[str] = []
    found = compared(client, JOBS, progress=told.append)
    assert [str(change) for change in found.simulated] == SAME
    assert found.comparison.same, found.to_json()
    # nothing sleeps less than it was asked to
    assert found.overrun > 0
    assert found.ratio > 0.99
    assert found.comparison.ordered_pairs == 2 * 6 + 3 * 3 + 2
    assert told[0].startswith("2 jobs, 184 tasks; the simulated run takes 2.3 s")
    assert found.live[0].t_s == found.simulated[0].t_s == 0.0
    # the cluster is as it was
    status = dask_hpc.runtime(client).status()
    assert status["policy"]["policy"] == "easy"
    assert (status["settings"]["tick_s"], status["settings"]["lock"]) == (0.7, "job")
    assert status["settings"]["trace_keep"] == 5000


def test_tasks_of_a_model_that_is_not_linear_take_longer_on_more_nodes(client: Client) -> None:
    [job] = [replace(JOBS[0], runtime_s=0.6, speed=power_law(0.0), min_nodes=1, max_nodes=4, start_nodes=2)]
    found = compared(client, (job,))
    assert found.comparison.same, found.to_json()
    assert str(found.live[2]) == "expand a 2 -> 4"
    # twice the nodes make nothing faster
    assert found.live_makespan_s > 0.59


def test_jobs_that_start_together_start_at_one_moment(client: Client) -> None:
    # a policy that looks at how long they have run must not tell them apart
    runtime = dask_hpc.runtime(client)
    with runtime.job("wide", nodes=4):
        with runtime.job("one", nodes=1, exclusive=True) as one:
            first = client.submit(abs, -1)
        with runtime.job("two", nodes=2, exclusive=True) as two:
            second = client.submit(abs, -2)
        # then the scheduler knows of both
        assert client.submit(abs, -3).result() == 3
    assert client.gather([first, second]) == [1, 2]
    rows = [job.wait(30) for job in (one, two)]
    assert rows[0]["start_s"] == rows[1]["start_s"] > rows[1]["submit_s"] > rows[0]["submit_s"]


def test_a_cluster_that_does_not_fit_is_refused(client: Client) -> None:
    with pytest.raises(ParityError, match="4 workers with 1 threads; needed: 3 workers with one thread each"):
        compared(client, (JOBS[1],), nodes=3)
    with dask_hpc.runtime(client).job("other", nodes=1) as other:
        # then the scheduler knows of it
        assert client.submit(abs, -1).result() == 1
        with pytest.raises(ParityError, match="jobs are active on the cluster"):
            compared(client, JOBS)
    other.wait(30)


def fails(length_s: float) -> None:
    if length_s:
        raise ValueError("this task fails")


def test_a_live_job_that_fails_ends_the_comparison(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity_live, "occupy", fails)
    with pytest.raises(ParityError, match=r"did not end well: job b-\d+ failed: task 'occupy-b-"):
        compared(client, JOBS[1:])
    assert dask_hpc.runtime(client).status()["policy"]["policy"] == "easy"


def test_another_cluster_is_used_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(
        "machine: {nodes: 2}\njobs:\n- {name: a, nodes: 2, runtime: 20, walltime: 30}\n"
    )
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with (
        dask.config.set({"distributed.worker.profile.enabled": False}),
        LocalCluster(protocol="tcp", silence_logs=logging.CRITICAL, **options) as cluster,
        Client(cluster) as client,
    ):
        where = ("--cluster", cluster.scheduler_address)
        result = run(str(tmp_path / "one.yaml"), "--policy", "fcfs", "--speed", "100", *where, "--json")
        found = json.loads(result.stdout)
        assert found["same_sequence"], result.stdout
        assert [change["action"] for change in found["live"]] == ["submit", "start", "finish"]
        with pytest.raises(InstallError, match="not installed"):
            dask_hpc.runtime(client)


def test_a_workload_that_never_ends_is_refused(client: Client) -> None:
    class Never:
        name = "never"

        def initial_state(self) -> None:
            return None

        def decide(self, view: Any, state: Any) -> Any:
            from dask_hpc_policies.decision import Decision

            return Decision(), state

    with pytest.raises(WorkloadError, match="not every job ends in the simulator under 'never'"):
        check(client, Workload(name="two", jobs=JOBS), Never(), nodes=4, task_length_s=0.05, tick_s=0.05)


def test_easy_starts_the_jobs_of_figure_5_1_live_as_simulated() -> None:
    result = run("builtin:figure-5-1", "--policy", "easy", "--speed", "5", "--json")
    found = json.loads(result.stdout)
    assert found["same_sequence"], result.stdout
    starts = {change["job"]: change["t_s"] for change in found["simulated"] if change["action"] == "start"}
    assert starts == {"J1": 0.0, "J2": 0.8, "J3": 0.0, "J4": 1.6}
    assert found["policy"]["policy"] == "easy"
    assert (found["tasks"], found["tick_s"], found["gap_s"]) == (176, 0.1, 0.5)
    assert found["swaps"] == found["missing"] == found["extra"] == []
    assert (result.exit_code == 0) is found["holds"]
    # which is not what another policy does
    live = [Change(**change) for change in found["live"]]
    workload = scaled(load("builtin:figure-5-1"), 5.0)
    other = simulate(workload, registry.create("fcfs"), nodes=10, tick_s=0.1, lock="system")
    assert not compare(other, live, 0.5).same


def made_up(live: list[Change], makespan_s: float) -> Parity:
    simulated = [
        Change(0.0, "submit", "a", 0, 0),
        Change(0.0, "start", "a", 0, 2),
        Change(0.2, "submit", "b", 0, 0),
        Change(5.0, "expand", "a", 2, 4),
        Change(9.0, "finish", "a", 4, 0),
        Change(10.0, "finish", "b", 4, 0),
    ]
    return Parity(
        workload="made-up", policy={"policy": "fcfs"}, nodes=4, task_length_s=0.1, tasks=10, tick_s=0.1,
        lock="job", simulated=tuple(simulated), live=tuple(live), comparison=compare(simulated, live, 0.5),
        simulated_makespan_s=10.0, live_makespan_s=makespan_s, overrun=0.012,
    )  # fmt: skip


@pytest.mark.parametrize("makespan_s", [10.4, 11.2])
def test_differences_are_shown_side_by_side_and_are_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, makespan_s: float
) -> None:
    live = [
        Change(0.0, "submit", "a", 0, 0),
        Change(0.1, "start", "a", 0, 2),
        Change(0.2, "submit", "b", 0, 0),
        Change(5.1, "expand", "a", 2, 3),
        Change(10.2, "finish", "b", 4, 0),
        Change(10.4, "finish", "a", 4, 0),
    ]
    monkeypatch.setattr(parity_run, "check", lambda *args, **kwargs: made_up(live, makespan_s))
    result = run("builtin:figure-5-1", "--policy", "fcfs", "--speed", "4")
    assert result.exit_code == 1
    assert "only simulated  5.00 s expand a 2 -> 4   -\n" in result.stdout
    assert "only live       -                        5.10 s expand a 2 -> 3" in result.stdout
    assert "other order     9.00 s finish a 4 -> 0   10.20 s finish b 4 -> 0" in result.stdout
    assert "                10.00 s finish b 4 -> 0  10.40 s finish a 4 -> 0" in result.stdout
    assert "10 of at most 0.1 s; they took 1.2% longer" in result.stdout
    assert "submit a and submit b (0.20 s) are 2.0 task lengths apart" in result.stdout
    close = "within" if makespan_s < 11 else "NOT within"
    assert f"DIFFERS: the sequences differ, makespans {close} 10 %" in result.stdout


def test_the_same_in_other_makespans_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    live = list(made_up([], 1.0).simulated)
    monkeypatch.setattr(parity_run, "check", lambda *args, **kwargs: made_up(live, 11.1))
    result = run("builtin:figure-5-1", "--policy", "fcfs")
    assert result.exit_code == 1
    assert "DIFFERS: the same sequence, makespans NOT within 10 %" in result.stdout
    monkeypatch.setattr(parity_run, "check", lambda *args, **kwargs: made_up(live, 10.9))
    result = run("builtin:figure-5-1", "--policy", "fcfs")
    assert result.exit_code == 0
    assert "holds: the same sequence, makespans within 10 %" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["builtin:io-aware", "--policy", "fcfs"], "has an application model"),
        (["builtin:figure-5-1", "--policy", "fcfs", "--task-length", "1 ms"], "from 10 ms"),
        (["builtin:figure-5-1", "--policy", "fcfs", "--speed", "0"], "--speed"),
        (["builtin:figure-5-1", "--policy", "nobody"], "nobody"),
        (["builtin:figure-5-1", "--policy", "fcfs", "--nodes", "4"], "needs 8 nodes"),
        (["builtin:node-stealing", "--policy", "sfsj"], "its nodes fail"),
        (["builtin:figure-5-1", "--policy", "fcfs", "--task-length", "soon"], "--task-length"),
        (["builtin:esp-10", "--policy", "fcfs", "--option", "malleable"], "is not NAME=VALUE"),
        (["builtin:esp-10", "--policy", "fcfs", "--processes", "--cluster", "tcp://a:1"], "--processes"),
    ],
)
def test_what_cannot_be_compared_is_one_line(arguments: list[str], part: str) -> None:
    result = run(*arguments)
    assert result.exit_code in (1, 2)
    assert result.stdout == ""
    [line] = [line for line in result.stderr.splitlines() if not line.startswith("Note:")]
    assert part in line
