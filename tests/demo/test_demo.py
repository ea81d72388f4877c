"""The demo runs for real: results are right to the bit, nothing is lost, no process is left behind."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from command_line import refused, run
from distributed import LocalCluster
from distributed.comm import CommClosedError

from dask_hpc.demo import rounds, simulation, stepping
from dask_hpc.demo.progress import ProgressDisplay
from dask_hpc.demo.simulation import HEAT
from dask_hpc.demo.starts import counted_starts
from dask_hpc.demo.three_users import JOBS
from dask_hpc.demo.workloads import digest
from dask_hpc.sim.generators.toys import three_users
from dask_hpc.trace.files import read_trace
from dask_hpc.trace.records import JobEvent

ROOT = Path(__file__).resolve().parents[2]
#: The command as the entry point of dask's command line calls it, also from a bare checkout.
COMMAND = [sys.executable, "-c", "from dask_hpc.cli import hpc; hpc(prog_name='dask hpc')", "demo", "--fast"]


def environment() -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "policies"), str(ROOT / "widgets"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def session_processes(session: int) -> list[psutil.Process]:
    """Living processes of a session, whoever their parent is by now."""
    found = []
    for process in psutil.process_iter(["status"]):
        try:
            if os.getsid(process.pid) == session and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        except ProcessLookupError:
            continue
    return found


def wait_until_gone(session: int, deadline_s: float) -> list[psutil.Process]:
    """What is left of a session once it is empty or the deadline has passed."""
    end = time.monotonic() + deadline_s
    while (left := session_processes(session)) and time.monotonic() < end:
        time.sleep(0.1)
    return left


@pytest.fixture(scope="module")
def fast_run(tmp_path_factory):
    """One fast demo in a process of its own: its folder, and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    with subprocess.Popen(
        [*COMMAND, "--json", "--report", "report.html", "--trace", "trace.jsonl.gz", "--plot", "map.png"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        out, err = process.communicate(timeout=420)
    assert process.returncode == 0, err
    return folder, json.loads(out), err, wait_until_gone(process.pid, 10)


@pytest.mark.slow
def test_three_users_get_the_results_of_stock_dask(fast_run):
    _, summary, _, _ = fast_run
    found = summary["three-users"]
    assert found["results_equal"] is True
    assert [(job["user"], job["name"]) for job in found["jobs"]] == [(job.user, job.name) for job in JOBS]
    assert all(job["equal"] and len(job["sha256"]) == 64 for job in found["jobs"])
    assert len({job["sha256"] for job in found["jobs"]}) == len(JOBS)
    for job in found["jobs"]:
        assert 0 < job["turnaround_s"] < 300
        assert 0 < job["stock_turnaround_s"] < 300


@pytest.mark.slow
def test_a_simulation_that_is_resized_and_watched_gives_the_field_of_an_undisturbed_run(fast_run):
    _, summary, _, _ = fast_run
    heat = summary["stepping"]
    assert heat["steps"] == stepping.MIN_STEPS
    assert heat["resized"] == [sum(window["result"] == "done" for window in heat["windows"])]
    # a node leaves it, whatever the machine's speed
    assert heat["resized"][0] >= 1
    assert heat["walltime_ended"] is True
    assert heat["field_identical"] is True
    assert heat["sha256"] == digest(HEAT.undisturbed(heat["steps"]))
    assert heat["looks"] == heat["steps"] // simulation.LOOK_EVERY > 0
    assert heat["looks_in_situ"] is True
    assert (heat["coupled"], heat["coupled_identical"]) == (-(-heat["steps"] // simulation.LOOK_EVERY), True)
    # what stock repeats depends on the moment at which the walltime ends
    assert heat["repeated"] <= heat["stock_repeated"]


@pytest.mark.slow
def test_what_is_protected_is_there_again_when_a_worker_is_killed(fast_run):
    _, summary, _, _ = fast_run
    found = summary["killed"]
    assert (found["lost"], found["repeated"]) == ([0], [0])
    assert found["stock_lost"][0] > 0
    assert found["stock_repeated"][0] > 0


@pytest.mark.slow
def test_a_cluster_that_shrinks_loses_nothing_where_stock_does(fast_run):
    _, summary, _, _ = fast_run
    found = summary["shrinking"]
    assert (found["lost"], found["actor_answers"]) == ([0], [True])
    assert found["repeated"] == [0]
    assert found["stock_lost"][0] > 0
    assert found["stock_actor_answers"] == [False]


@pytest.mark.slow
def test_progress_and_files_are_written(fast_run):
    folder, summary, err, _ = fast_run
    assert "option running on" in err
    assert "\x1b" not in err
    assert {row["what"].split(":")[0] for row in summary["table"]} >= {
        "three users",
        "simulation",
        "worker killed",
        "shrinking",
    }
    assert (folder / "map.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(act.title in page for act in rounds.ACTS if act.usual)
    assert "all results equal to stock Dask in every bit" in page
    assert "identical to an undisturbed run" in page
    trace = read_trace(folder / "trace.jsonl.gz")
    assert trace.passes
    names = {record.name for record in trace.records if isinstance(record, JobEvent)}
    assert {"heat", "question", *(job.name for job in JOBS)} <= names


@pytest.mark.slow
def test_no_process_is_left_behind(fast_run):
    assert fast_run[3] == []


@pytest.mark.parametrize(
    "moment",
    [
        "1/2  stock Dask",
        "all work running",
        pytest.param("2/2  the same", marks=pytest.mark.slow),
        pytest.param("heat running on", marks=pytest.mark.slow),
    ],
)
def test_interrupt_leaves_no_process_behind(tmp_path, moment):
    with subprocess.Popen(
        COMMAND,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell that runs the tests in the background has them ignore interrupts
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        read = ""
        while moment not in read:
            line = process.stderr.readline()
            assert line, read
            read += line
        # As a terminal does: to all processes of the group.
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert wait_until_gone(process.pid, 10) == []
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "interrupted; all processes are stopped"
    assert "Traceback" not in err
    assert out == ""


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--report", "missing/report.html"], "missing/report.html"),
        (["--trace", "missing/trace.jsonl"], "missing/trace.jsonl"),
        (["--plot", "missing/map.png"], "missing/map.png"),
        (["--plot", "map.pictures"], "ends in .png, .svg or .pdf"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(tmp_path, monkeypatch, arguments, complaint):
    monkeypatch.chdir(tmp_path)
    refused(run("demo", "--fast", *arguments), 1, complaint)
    assert list(tmp_path.iterdir()) == []


def refuse(_: object) -> None:
    raise ArithmeticError("no such number")


def in_threads() -> LocalCluster:
    return LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0")


def test_an_act_that_fails_is_an_error_that_names_it(monkeypatch):
    monkeypatch.setattr(rounds, "stock_cluster", in_threads)
    monkeypatch.setattr(rounds, "ACTS", (replace(rounds.ACTS[0], play=refuse),))
    with pytest.raises(rounds.DemoError, match=r"three-users: ArithmeticError\('no such number'\)"):
        rounds.run_stock(0.1, ProgressDisplay(io.StringIO()))


def test_starts_are_counted_where_they_happen():
    tasks = 1_200  # more than the events that a scheduler keeps
    with in_threads() as cluster, cluster.get_client() as client, counted_starts(client, "test") as starts:
        futures = client.map(abs, range(tasks))
        assert client.gather(futures) == list(range(tasks))
        assert starts.repeated() == 0
        lost = len(client.has_what()[cluster.workers[1].address])
        assert lost > 0
        cluster.sync(cluster.workers[1].close, nanny=False)
        assert client.gather(futures) == list(range(tasks))
        assert starts.repeated() == lost

        async def goes(**_: object) -> None:
            raise CommClosedError("a worker has ended as it was told that nobody counts any more")

        cluster.workers[0].handlers["plugin-remove"] = goes


def test_the_three_users_are_those_of_the_simulator():
    simulated = three_users(seed=0).jobs
    assert [(job.user, job.submit_s, job.runtime_s * 6) for job in simulated] == [
        (job.user, job.at_s, job.work_node_s) for job in JOBS
    ]
