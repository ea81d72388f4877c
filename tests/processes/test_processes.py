"""Work in processes of its own: answers, errors, budgets, endings, and nothing of the caller's script."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from distributed.utils_test import gen_test

from dask_hpc.processes import OverBudget, Process, ProcessError, call_all
from dask_hpc.scheduler.core import answers as of_answers
from dask_hpc.scheduler.core.answers import Answers

#: What the processes of these tests call.
CALLED = """
import os, sys, time

def same(arguments, tell):
    print("printed by what is called")
    return arguments

def steps(arguments, tell):
    for step in range(arguments["steps"]):
        tell(step)
    return os.getpid()

def fails(arguments, tell):
    raise ValueError("size is 0; allowed: 1 or more")

def not_json(arguments, tell):
    return {1, 2}

def spins(arguments, tell):
    tell(os.getpid())
    while True:
        pass

def spins_in_compiled_code(arguments, tell):
    tell(os.getpid())
    sum(range(10**13))

def half(arguments, tell):
    [say] = [each.cell_contents for each in tell.__closure__]
    [answers] = [each.cell_contents for each in say.__closure__]
    answers.write('{"result": [1, 2')
    answers.flush()
    time.sleep(60)

def modules(arguments, tell):
    return sorted(sys.modules)

def priority(arguments, tell):
    return [os.nice(0), os.sched_getscheduler(0), len(os.sched_getaffinity(0))]
"""


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of an installed module with functions to call."""
    (tmp_path / "called_by_tests.py").write_text(CALLED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "called_by_tests"


@pytest.fixture
def process() -> Iterator[Process]:
    with Process() as made:
        yield made


def until(true: Callable[[], Any], what: str, within_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline_s, f"not in {within_s} s: {what}"
        time.sleep(0.01)


def test_what_goes_in_comes_back_to_the_last_bit_whatever_is_printed(called: str, process: Process) -> None:
    given = {"whole": 2**60, "share": 0.1 + 0.2, "text": "é\n", "list": [None, True, {"x": -0.0}]}
    assert process.call(f"{called}:same", given) == given


def test_progress_is_told_in_order_and_calls_share_one_process(called: str, process: Process) -> None:
    told: list[Any] = []
    first = process.call(f"{called}:steps", {"steps": 3}, progress=told.append)
    assert told == [0, 1, 2]
    assert process.call(f"{called}:steps", {"steps": 0}) == first != os.getpid()


def test_an_error_is_told_in_words_and_the_process_goes_on(called: str, process: Process) -> None:
    first = process.call(f"{called}:steps", {"steps": 0})
    with pytest.raises(ProcessError, match="ValueError: size is 0; allowed: 1 or more"):
        process.call(f"{called}:fails", {})
    with pytest.raises(ProcessError, match="not JSON"):
        process.call(f"{called}:not_json", {})
    with pytest.raises(ProcessError, match="no_such_function"):
        process.call(f"{called}:no_such_function", {})
    assert process.call(f"{called}:steps", {"steps": 0}) == first


@pytest.mark.parametrize("function", ["spins", "spins_in_compiled_code"])
def test_a_call_ends_with_its_budget_and_the_next_one_has_its_own(
    function: str, called: str, process: Process
) -> None:
    before_s = time.process_time()
    with pytest.raises(OverBudget, match=r"0\.2 s of processor time"):
        process.call(f"{called}:{function}", {}, cpu_s=0.2)
    assert time.process_time() - before_s < 1.0, "the caller waits and does not compute"
    assert process.call(f"{called}:same", {"x": 1}, cpu_s=5.0) == {"x": 1}


def test_what_comes_back_to_python_is_stopped_at_its_budget_and_its_process_goes_on(
    called: str, process: Process
) -> None:
    pids: list[int] = []
    with pytest.raises(OverBudget):
        process.call(f"{called}:spins", {}, cpu_s=0.2, progress=pids.append)
    # the limit of the system, for what hears no signal, would have ended the process
    assert process.call(f"{called}:steps", {"steps": 0}) == pids[0]


def test_a_call_can_be_cancelled_and_the_next_one_is_answered(called: str, process: Process) -> None:
    pids: list[int] = []
    said: list[str] = []

    def call() -> None:
        try:
            process.call(f"{called}:spins", {}, progress=pids.append)
        except ProcessError as error:
            said.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    until(lambda: pids, "the call is under way")
    process.cancel()
    thread.join(20)
    assert said
    assert "ended" in said[0]
    assert process.call(f"{called}:same", {}) == {}
    assert not psutil.pid_exists(pids[0])


def test_one_that_is_ended_amid_its_answer_is_told_of_as_any_other(called: str, process: Process) -> None:
    first = process.call(f"{called}:steps", {"steps": 0})
    with pytest.raises(ProcessError, match=r"did not answer within 0\.5 s"):
        process.call(f"{called}:half", {}, wall_s=0.5)
    assert not psutil.pid_exists(first)
    assert process.call(f"{called}:steps", {"steps": 0}) != first


def test_a_request_longer_than_a_pipe_is_answered_and_a_process_that_reads_none_of_it_is_ended(
    called: str, process: Process
) -> None:
    long = {"text": "\u00e4" * 300_000}
    assert process.call(f"{called}:same", long, wall_s=60) == long
    pid = process.call(f"{called}:steps", {"steps": 0})
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ProcessError, match=r"did not answer within 0\.5 s"):
        process.call(f"{called}:same", long, wall_s=0.5)
    assert not psutil.pid_exists(pid)
    assert process.call(f"{called}:same", long) == long


def test_a_closed_process_is_gone_and_takes_no_call(called: str) -> None:
    process = Process()
    pid = process.call(f"{called}:steps", {"steps": 0})
    process.close()
    assert not psutil.pid_exists(pid)
    with pytest.raises(ProcessError, match="closed"):
        process.call(f"{called}:same", {})


def test_nothing_of_the_script_and_of_its_folder_is_imported(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            print("imported", __name__)
            from dask_hpc.processes import Process
            with Process() as process:
                assert process.call("called_by_tests:modules", {})
            """
        )
    )
    (tmp_path / "json.py").write_text("raise SystemExit('the json of the working directory')")
    apart = tmp_path / "installed"
    apart.mkdir()
    (apart / "called_by_tests.py").write_text(CALLED)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(apart), *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, "-P", str(script)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "imported __main__\n"


def test_a_process_ends_with_the_one_that_started_it(called: str, tmp_path: Path) -> None:
    script = f"""
from dask_hpc.processes import Process
Process().call("{called}:spins", {{}}, progress=lambda pid: print(pid, flush=True))
"""
    path = os.pathsep.join([os.environ["PYTHONPATH"], *filter(None, sys.path)])
    starter = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", "it has ended")


def test_all_are_called_and_told_with_their_place(called: str) -> None:
    found: dict[int, Any] = {}
    todo = [{"place": place} for place in range(7)]
    call_all(f"{called}:same", todo, 3, lambda place, result: found.setdefault(place, result))
    assert found == dict(enumerate(todo))


def test_one_that_fails_is_told_as_such_and_the_others_are_done(called: str) -> None:
    found: dict[int, Any] = {}
    call_all(f"{called}:steps", [{"steps": 0}, {}, {"steps": 0}], 1, found.__setitem__)
    assert isinstance(found[1], ProcessError)
    assert "steps" in str(found[1])
    assert isinstance(found[0], int)
    assert isinstance(found[2], int)


def test_an_error_of_the_caller_ends_all(called: str) -> None:
    children = set(psutil.Process().children())

    def stop(place: int, result: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_all(f"{called}:same", [{}] * 20, 2, stop)
    assert set(psutil.Process().children()) <= children


def test_the_lowest_priority_lets_whoever_wakes_up_go_first_and_leaves_half_of_the_cores_alone(
    called: str,
) -> None:
    cores, mine = len(os.sched_getaffinity(0)), os.nice(0)
    for niceness, scheduler, most in ((1, os.SCHED_OTHER, cores), (19, os.SCHED_IDLE, (cores + 1) // 2)):
        with Process(niceness) as process:
            found = process.call(f"{called}:priority", {})
            assert found == [min(mine + niceness, 19), scheduler, most]


@gen_test(timeout=10)
async def test_an_answer_holds_until_there_is_a_newer_one_and_a_failure_is_none():
    came, closed = [], []
    made = iter([1, ProcessError("it has ended"), 3])

    def call(function: str, question: Any, cpu_s: float | None = None) -> int:
        found = next(made)
        if isinstance(found, ProcessError):
            raise found
        return found

    process = SimpleNamespace(call=call, close=lambda: closed.append("process"))
    answers = Answers(SimpleNamespace(now_s=lambda: 0.0), lambda: came.append(answers.last("who").result))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_answers, "Process", lambda niceness: process)
        for _ in range(3):
            answers.ask("who", "package:function", {})
            await answers._tasks["who"]
    assert came == [1, 3]
    answers.unwrap()
    assert closed == ["process"]


@gen_test(timeout=10)
async def test_what_is_still_to_be_asked_when_the_runtime_leaves_is_asked_nobody():
    began, goes_on, made = threading.Event(), threading.Event(), []

    def call(function: str, question: Any, cpu_s: float | None = None) -> None:
        began.set()
        goes_on.wait(5)

    def process(niceness: int) -> Any:
        made.append(niceness)
        return SimpleNamespace(call=call, close=goes_on.set)

    answers = Answers(SimpleNamespace(now_s=lambda: 0.0), lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_answers, "Process", process)
        answers.ask("who", "package:function", {})
        await asyncio.to_thread(began.wait, 5)
        answers.ask("who", "package:function", {"later": True})
        asking = answers._tasks["who"]
        answers.unwrap()
        await asking
    assert len(made) == 1


@gen_test(timeout=10)
async def test_a_question_that_is_withdrawn_is_asked_no_more_and_its_process_stopped():
    goes_on, asked, told = threading.Event(), [], []

    def call(function: str, question: Any, cpu_s: float | None = None) -> int:
        asked.append(question)
        goes_on.wait(5)
        return 1

    process = SimpleNamespace(call=call, close=lambda: None, cancel=lambda: told.append("cancel"))
    answers = Answers(SimpleNamespace(now_s=lambda: 0.0), lambda: None)
    assert answers.section() == {}
    answers.cancel("who")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_answers, "Process", lambda niceness: process)
        answers.ask("who", "package:function", {})
        asking = answers._tasks["who"]
        while not asked:
            await asyncio.sleep(0)
        answers.ask("who", "package:function", {"later": True})
        answers.cancel("who")
        goes_on.set()
        await asking
    assert (asked, told) == ([{}], ["cancel"])
    assert answers.section()["answers"]["who"]["result"] == 1
