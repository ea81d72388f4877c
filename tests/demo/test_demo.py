"""The demo runs for real: results are right to the bit, nothing is lost, no process is left behind."""

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

from dask_hpc.demo import parts, rounds, run, simulation, stepping
from dask_hpc.demo.progress import JobProgress, ProgressDisplay, Tally
from dask_hpc.demo.shrinking import HELD, Shrunk
from dask_hpc.demo.simulation import HEAT, InSituLook, Simulated
from dask_hpc.demo.starts import counted_starts
from dask_hpc.demo.stepping import Stepped
from dask_hpc.demo.three_users import JOBS
from dask_hpc.demo.users import Served
from dask_hpc.demo.workloads import digest
from dask_hpc.sim.generators.toys import three_users
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
        out, err = process.communicate(timeout=420)
    assert process.returncode == 0, err
    return folder, json.loads(out), err, wait_until_gone(process.pid, 10)


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
    assert min(heat["stock_repeated"]) > 0


def test_a_cluster_that_shrinks_loses_nothing_where_stock_does(fast_run):
    _, summary, _, _ = fast_run
    found = summary["shrinking"]
    assert (found["lost"], found["actor_answers"]) == ([0], [True])
    assert found["repeated"] == [0]
    assert found["stock_lost"][0] > 0
    assert found["stock_repeated"][0] > 0
    assert found["stock_actor_answers"] == [False]


def test_progress_and_files_are_written(fast_run):
    folder, summary, err, _ = fast_run
    assert "option running on" in err
    assert "\x1b" not in err
    assert {row["what"].split(":")[0] for row in summary["table"]} >= {
        "three users",
        "simulation",
        "shrinking",
    }
    assert (folder / "map.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(act.title in page for act in rounds.ACTS)
    assert "all results equal to stock Dask in every bit" in page
    assert "identical to an undisturbed run" in page
    trace = read_trace(folder / "trace.jsonl.gz")
    assert trace.passes
    names = {record.name for record in trace.records if isinstance(record, JobEvent)}
    assert {"heat", "question", *(job.name for job in JOBS)} <= names


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


STEPPED = Stepped(
    simulated=simulated(), simulation_s=5.0, answer=25, turnaround_s=1.0, repeated=0, killed=False
)
SHRUNK = Shrunk(lost=0, wrong=0, repeated=0, actor_answers=True, shrink_s=1.0, nodes=2)


def served(result: int = 5, turnaround_s: float = 4.0) -> dict[str, Served]:
    """All jobs of the three users, with the same result and turnaround."""
    return {
        job.name: Served(
            user=job.user,
            name=job.name,
            at_s=job.at_s,
            submitted_s=job.at_s,
            end_s=job.at_s + turnaround_s,
            results=(described(job.workload, result),),
        )
        for job in JOBS
    }


def described(workload: str, number: int):
    """A result that the workload can describe."""
    if workload == "option":
        return {"price": float(number), "standard_error": 0.1, "paths": 2}
    if workload == "el-nino":
        return {"trend": float(number), "lower": 0.1, "upper": 0.2, "replicates": 2}
    return number


def given(served=None, stepped=None, shrunk=None) -> dict[str, object]:
    """What three acts have given."""
    return {"three-users": served or SERVED, "stepping": stepped or STEPPED, "shrinking": shrunk or SHRUNK}


SERVED = served()
STOCK = given(
    served(turnaround_s=10.0),
    replace(STEPPED, repeated=60, turnaround_s=2.0, simulation_s=9.0, killed=True),
    replace(SHRUNK, lost=20, repeated=61, actor_answers=False),
)


@pytest.fixture
def faked(monkeypatch, tmp_path):
    """Runs a demo whose acts give what is given; gives its exit code."""

    def fake(stock, managed, **options) -> int:
        if isinstance(managed, dict):
            stock, managed = [stock], [managed]
        stock, managed = iter(stock), iter(managed)
        monkeypatch.setattr(run, "run_stock", lambda *_: next(stock))
        monkeypatch.setattr(run, "run_managed", lambda *_: (next(managed), [Header()]))
        return run.main(report=tmp_path / "r.html", **options)

    return fake


@pytest.mark.parametrize(
    ("managed", "complaint"),
    [
        (given(), None),
        (given(served(6)), "the results of el-nino, option, primes-1, primes-2, primes-3 differ"),
        (given(stepped=replace(STEPPED, answer=26)), "the answer beside the simulation differs"),
        (
            given(stepped=replace(STEPPED, simulated=simulated(steps=4))),
            "field DIFFERENT from that of an undisturbed run of 4",
        ),
        (
            given(stepped=replace(STEPPED, simulated=simulated(in_situ=False))),
            "1 in situ looks NOT on its nodes",
        ),
        (given(shrunk=replace(SHRUNK, lost=1)), f"1 of {HELD} results and scattered objects were lost"),
        (given(shrunk=replace(SHRUNK, wrong=2)), "2 results are wrong after the cluster shrank"),
        (given(shrunk=replace(SHRUNK, actor_answers=False)), "the actor was lost"),
    ],
)
def test_exit_code_tells_whether_something_differs_or_was_lost(faked, tmp_path, capsys, managed, complaint):
    differs = managed["three-users"] is not SERVED
    for as_json in (False, True):
        assert faked(STOCK, managed, as_json=as_json) == (1 if complaint else 0)
        out, err = capsys.readouterr()
        assert complaint in err if complaint else not err.count("Error")
        assert ("DIFFERS" in out) == (differs and not as_json)
        assert as_json or "resized 2 times" in out
    assert json.loads(out)["three-users"]["results_equal"] is not differs
    assert json.loads(out)["stepping"]["resized"] == [2]
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert ("NOT equal to stock Dask" in page) == differs


def test_the_last_lines_are_the_table_and_what_a_newcomer_quotes(faked, capsys):
    assert faked(STOCK, given()) == 0
    out = capsys.readouterr().out
    assert "Did not pay" not in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[-13:] == [
        "",
        "stock Dask dask-hpc",
        "three users: mean turnaround 10.0 s 4.0 s",
        "three users: makespan 28.0 s 22.0 s",
        "simulation: resized while it steps 2 2",
        "simulation: time for its steps 9.0 s 5.0 s",
        "simulation: a question beside it 2.0 s 1.0 s",
        "walltime ends: tasks computed twice 60 0",
        "shrinking: results and data lost 20 of 60 0 of 60",
        "shrinking: tasks computed twice 61 0",
        "shrinking: the actor is lost answers",
        "",
        "mean turnaround 10.0 to 4.0 s, makespan 28.0 to 22.0 s, 0 tasks computed twice when a walltime "
        "ends where stock repeats 60, 0 of 60 results lost where stock loses 20 and repeats 61 tasks",
    ]


def test_several_rounds_give_medians_and_spread(faked, capsys):
    ours = [given(served(turnaround_s=seconds)) for seconds in (3.0, 5.0, 4.0)]
    assert faked([STOCK] * 3, ours, repeat=3) == 0
    out = capsys.readouterr().out
    assert "median of 3 (spread)" in out
    assert "three users: mean turnaround" in out
    assert " 10.0 s  " in out
    assert " 4.0 s (3.0 s to 5.0 s)" in out
    # one round in which something was lost is enough
    ours[1] = given(shrunk=replace(SHRUNK, lost=1))
    assert faked([STOCK] * 3, ours, repeat=3, as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["shrinking"]["lost"] == [0, 1, 0]


@pytest.mark.parametrize(
    ("managed", "told"),
    [
        (given(served(turnaround_s=11.0)), "the mean turnaround of three users did not fall: 10.0 to 11.0 s"),
        (given(served(turnaround_s=13.0)), "the makespan of three users grew: 28.0 to 31.0 s"),
        (given(stepped=replace(STEPPED, simulation_s=10.0)), "the simulation took longer: 9.0 to 10.0 s"),
        (given(stepped=replace(STEPPED, turnaround_s=3.0)), "the question beside the simulation took longer"),
        (given(stepped=replace(STEPPED, repeated=4)), "4 tasks were computed twice when a walltime ended"),
        (given(shrunk=replace(SHRUNK, repeated=3)), "3 tasks were computed twice when the cluster shrank"),
        (given(shrunk=replace(SHRUNK, nodes=3)), "the cluster kept more than 2 nodes"),
    ],
)
def test_what_did_not_pay_is_said_and_is_no_error(faked, capsys, managed, told):
    assert faked(STOCK, managed) == 0
    assert told in capsys.readouterr().out.split("Did not pay on this machine:")[1]


def test_no_advantage_is_claimed_where_stock_loses_nothing(faked, capsys):
    assert faked(given(), given()) == 0
    out = capsys.readouterr().out
    assert "stock Dask lost nothing and repeated nothing either when its cluster shrank" in out
    assert "stock Dask repeated nothing either when a walltime ended" in out


def test_a_part_of_the_demo_is_one_registration(faked, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(parts, "_parts", list(parts._parts))

    def energy(ran: parts.DemoRun) -> parts.Verdict:
        text = f"{len(ran.managed[-1])} acts, 7 J"
        return parts.Verdict(
            results={"energy": text},
            notes={"Energy": text},
            summary={"energy_j": 7},
            errors=["energy: too much"],
        )

    parts.register(energy)
    assert faked(STOCK, given()) == 1
    out, err = capsys.readouterr()
    assert "  energy      3 acts, 7 J\n" in out
    assert f"Error: energy: too much; the report {tmp_path / 'r.html'} shows the run\n" in err
    assert "<strong>Energy</strong>: 3 acts, 7 J" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert faked(STOCK, given(), as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["energy_j"] == 7


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


def test_the_three_users_are_those_of_the_simulator():
    simulated = three_users(seed=0).jobs
    assert [(job.user, job.submit_s, job.runtime_s * 6) for job in simulated] == [
        (job.user, job.at_s, job.work_node_s) for job in JOBS
    ]


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
