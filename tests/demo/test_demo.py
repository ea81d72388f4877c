"""The demo runs for real: jobs are resized, results are right to the bit, nothing is left behind."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from click import unstyle
from distributed import LocalCluster

from dask_hpc.demo import parts, run, scenario, simulation
from dask_hpc.demo.progress import JobProgress, ProgressDisplay, Tally
from dask_hpc.demo.scenario import Finished
from dask_hpc.demo.simulation import HEAT, InSituLook, Simulated
from dask_hpc.demo.workloads import digest
from dask_hpc.trace.files import read_trace
from dask_hpc.trace.records import Header, JobEvent

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
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return folder, json.loads(out), err, wait_until_gone(process.pid, 10)


def test_results_equal_those_of_stock_dask(fast_run):
    _, summary, _, _ = fast_run
    assert summary["results_equal"] is True
    assert {workload["name"] for workload in summary["workloads"]} == {
        "primes",
        "monte-carlo",
        "el-nino",
        "climate-field",
    }
    assert all(workload["equal"] and len(workload["sha256"]) == 64 for workload in summary["workloads"])


def test_jobs_wait_run_and_are_resized_within_their_bounds(fast_run):
    _, summary, _, _ = fast_run
    jobs = {job["name"]: job for job in summary["jobs"] if job["name"] != "default"}
    assert set(jobs) == {"heat", "monte-carlo", "el-nino", "climate-field"}
    for job in jobs.values():
        assert job["state"] == "completed"
        assert job["submit_s"] <= job["start_s"] < job["end_s"]
    sizes = {name: {n for _, n in job["nodes"] if n} for name, job in jobs.items()}
    assert sizes["el-nino"] == {3}
    assert sizes["climate-field"] <= {1, 2, 4}
    assert jobs["monte-carlo"]["nodes"][0][1] == 2
    assert sizes["heat"] <= {1, 2, 3, 4}
    # those that arrive next take what it would grow into, or do not, by the machine's speed
    assert sizes["monte-carlo"] <= {1, 2, 3, 4, 5, 6}
    for key in ("makespan_s", "mean_wait_s", "mean_turnaround_s", "mean_bounded_slowdown"):
        assert summary[key] >= 0
    assert 0.3 < summary["utilization"] <= 1


def test_a_simulation_that_is_resized_and_watched_gives_the_field_of_an_undisturbed_run(fast_run):
    _, summary, _, _ = fast_run
    heat = summary["heat"]
    # two arrivals that it has to shrink for, and an end after each: whatever the machine's speed
    assert heat["resized"] >= 3
    assert heat["resized"] == sum(window["result"] == "done" for window in heat["windows"])
    assert all(window["indices_moved"] > 0 for window in heat["windows"] if window["result"] == "done")
    assert {window["before"] < window["after"] for window in heat["windows"]} == {True, False}
    assert heat["field_identical"] is True
    assert heat["stock_field_identical"] is True
    assert heat["sha256"] == digest(HEAT.undisturbed(heat["steps"]))
    assert heat["looks"] == heat["steps"] // simulation.LOOK_EVERY > 0
    assert heat["looks_in_situ"] is True


def test_progress_and_files_are_written(fast_run):
    folder, _, err, _ = fast_run
    assert "monte-carlo running on" in err
    assert "\x1b" not in err
    assert (folder / "map.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "monte-carlo" in page
    assert "equal to stock Dask in every bit" in page
    assert "identical to an undisturbed run" in page
    trace = read_trace(folder / "trace.jsonl.gz")
    assert trace.passes
    names = {record.name for record in trace.records if isinstance(record, JobEvent)}
    assert {"heat", "monte-carlo", "el-nino", "climate-field"} <= names


def test_no_process_is_left_behind(fast_run):
    assert fast_run[3] == []


@pytest.mark.parametrize(
    "moment",
    [
        "1/2  stock Dask",
        "all workloads 2 active",
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
        (["--policy", "no-such-policy"], "no-such-policy"),
        (["--report", "missing/report.html"], "missing/report.html"),
        (["--trace", "missing/trace.jsonl"], "missing/trace.jsonl"),
        (["--plot", "missing/map.png"], "missing/map.png"),
        (["--plot", "map.pictures"], "ends in .png, .svg or .pdf"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(tmp_path, arguments, complaint):
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert complaint in done.stderr
    assert "1/2" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def simulated(*, steps: int = 3, in_situ: bool = True) -> Simulated:
    """A simulation that took three steps and says that it took `steps`."""
    windows = [{"result": "done"}, {"result": "aborted"}, {"result": "done"}]
    return Simulated(HEAT.undisturbed(3), steps, (InSituLook(2, 0.1, 0.9, in_situ),), tuple(windows))


def finished(heat: Simulated, **results) -> dict[str, Finished]:
    return {name: Finished(result, 0.0, 1.0) for name, result in {"heat": heat, **results}.items()}


@pytest.mark.parametrize(
    ("managed", "complaint"),
    [
        (finished(simulated(), primes=5), None),
        (finished(simulated(), primes=6), "the results of primes differ"),
        (finished(simulated(steps=4), primes=5), "field DIFFERENT from that of an undisturbed run of 4"),
        (finished(simulated(in_situ=False), primes=5), "1 in situ looks NOT on its nodes"),
    ],
)
def test_exit_code_tells_whether_results_are_right(tmp_path, monkeypatch, capsys, managed, complaint):
    monkeypatch.setattr(run, "run_stock", lambda *_: finished(simulated(), primes=5))
    monkeypatch.setattr(run, "run_managed", lambda *_: (managed, [Header()]))
    differs = managed["primes"].result != 5
    for as_json in (False, True):
        assert run.main(report=tmp_path / "r.html", as_json=as_json) == (1 if complaint else 0)
        out, err = capsys.readouterr()
        assert complaint in err if complaint else not err.count("Error")
        assert ("DIFFERS" in out) == (differs and not as_json)
        assert as_json or "resized 2 times" in out
    assert json.loads(out)["results_equal"] is not differs
    assert json.loads(out)["heat"]["resized"] == 2
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert ("NOT equal to stock Dask" in page) == differs


def test_a_part_of_the_demo_is_one_registration(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(parts, "_parts", list(parts._parts))
    monkeypatch.setattr(run, "run_stock", lambda *_: finished(simulated(), primes=5))
    monkeypatch.setattr(run, "run_managed", lambda *_: (finished(simulated(), primes=5), [Header()]))

    def energy(ran: parts.DemoRun) -> parts.Verdict:
        text = f"{len(ran.managed)} workloads, 7 J"
        return parts.Verdict(
            results={"energy": text},
            notes={"Energy": text},
            summary={"energy_j": 7},
            errors=["energy: too much"],
        )

    parts.register(energy)
    assert run.main(report=tmp_path / "r.html") == 1
    out, err = capsys.readouterr()
    assert "  energy         2 workloads, 7 J\n" in out
    assert f"Error: energy: too much; the report {tmp_path / 'r.html'} shows the run\n" in err
    assert "<strong>Energy</strong>: 2 workloads, 7 J" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert run.main(report=tmp_path / "r.html", as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["energy_j"] == 7


def refuse() -> None:
    raise ArithmeticError("no such number")


def test_failed_workload_is_an_error_that_names_it(monkeypatch):
    monkeypatch.setattr(scenario, "ARRIVALS", (scenario.Arrival(workload="primes", at_s=0.0, request=None),))
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        cluster.get_client() as client,
        pytest.raises(scenario.DemoError, match="primes ended as error: ArithmeticError"),
    ):
        scenario.play(0.1, lambda *_: client.submit(refuse), lambda *_: ())


def test_simulation_ends_a_number_of_steps_after_it_is_needed_no_more():
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        cluster.get_client() as client,
    ):
        heat = simulation.Simulation().start_stock(client)
        until(lambda: heat.steps >= simulation.LAST_STEPS + 5)
        assert not heat.done()
        before = heat.steps
        heat.needed = False
        after = heat.steps
        until(heat.done)
        result = heat.result()
        # it asked last before the step that was the last one seen
        assert before - 1 <= result.steps - simulation.LAST_STEPS <= after
        assert result.identical
        assert [look.step for look in result.looks] == [
            step for step in range(1, result.steps + 1) if step % simulation.LOOK_EVERY == 0
        ]


def until(condition, timeout_s: float = 60.0) -> None:
    """Poll until `condition` is true."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_tally_counts_tasks_that_arrive_in_batches():
    tally = Tally()
    seen = []
    for unfinished in (0, 10, 7, 7, 12, 0):
        tally.see(unfinished)
        seen.append((tally.done, tally.total))
    assert seen == [(0, 0), (0, 10), (3, 10), (3, 10), (3, 15), (15, 15)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_over_all_tasks_that_are_known(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    progress = ProgressDisplay(stream)
    heat = JobProgress(name="heat", state="running", nodes=2, done=1, total=4)
    step = JobProgress(name="solver", state="running", nodes=None, done=0, total=0, text="step 7")
    progress.show(0.0, [])
    progress.show(1.0, [heat, step])
    # all that was known was done, and then more came
    progress.show(2.0, [replace(heat, done=4)])
    progress.show(3.0, [replace(heat, done=4, total=8)])
    progress.say("done")
    lines = [unstyle(line) for line in stream.getvalue().split("\r") if "tasks" in line][1:]
    assert [" ".join(re.sub(r"[#-]{24}", "", line).split()) for line in lines] == [
        "tasks [] 0/1 0 s nothing submitted",
        "tasks [] 1/4 1 s heat running on 2 1/4 | solver running step 7",
        "tasks [] 4/4 2 s heat running on 2 4/4",
        "tasks [] 4/8 3 s heat running on 2 4/8 done",
    ]
    assert [line.count("#") for line in lines] == [0, 6, 24, 12]


def test_other_streams_get_a_line_when_something_changes_or_time_has_passed():
    stream = io.StringIO()
    progress = ProgressDisplay(stream)
    job = JobProgress(name="heat", state="running", nodes=2, done=1, total=4)
    for now_s in (0.0, 0.1, 4.9, 5.0, 5.1):
        progress.show(now_s, [job])
    progress.show(5.2, [JobProgress(name="heat", state="running", nodes=3, done=1, total=4)])
    assert stream.getvalue().splitlines() == [
        "    0.0 s  heat running on 2 1/4",
        "    5.0 s  heat running on 2 1/4",
        "    5.2 s  heat running on 3 1/4",
    ]
