"""Work beside a loop: told in the loop, ended when asked, and nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from types import SimpleNamespace

import pytest

from dask_hpc_widgets.base import background
from dask_hpc_widgets.base.background import Cancelled, Work
from dask_hpc_widgets.base.link import Link
from dask_hpc_widgets.live import questions

#: A thread that takes longer to end than this hangs.
PATIENCE_S = 60


def threads():
    return [one for one in threading.enumerate() if one.name == "dask-hpc-simulation"]


def ended(before=()):
    """Wait for the threads of works; none is left afterwards."""
    for thread in threads():
        if thread not in before:
            thread.join(PATIENCE_S)
    return not [one for one in threads() if one not in before]


def in_a_loop(begin):
    """What `begin` tells when it is done, from a loop that runs meanwhile."""

    async def wait():
        told = asyncio.get_running_loop().create_future()
        begin(told.set_result)
        return await asyncio.wait_for(told, PATIENCE_S)

    return asyncio.run(wait())


def test_progress_and_outcome_are_told_in_the_thread_of_the_loop():
    seen = []

    def function(progress):
        seen.append(("works", threading.get_ident()))
        progress(0.25)
        return 7

    def begin(tell):
        def done(outcome):
            seen.append((outcome, threading.get_ident()))
            tell(outcome)

        Work(function, lambda share: seen.append((share, threading.get_ident())), done)

    assert in_a_loop(begin) == 7
    here = threading.get_ident()
    assert [what for what, _ in seen] == ["works", 0.25, 7]
    assert [ident == here for _, ident in seen] == [False, True, True]
    assert ended()


def test_what_is_raised_is_the_outcome():
    outcome = in_a_loop(lambda tell: Work(lambda progress: 1 / 0, print, tell))
    assert isinstance(outcome, ZeroDivisionError)
    assert ended()


def test_work_ends_when_it_is_cancelled():
    steps = []

    def function(progress):
        while True:
            steps.append(1)
            progress(0.5)

    def begin(tell):
        # cancelled from the loop, once it has shown that it is under way
        works = []
        works.append(Work(function, lambda share: works[0].cancel(), tell))

    outcome = in_a_loop(begin)
    assert isinstance(outcome, Cancelled)
    assert ended()
    assert steps


def test_what_cancelled_work_had_so_far_is_given_up():
    class Large:
        pass

    made = []

    def function(progress):
        large = Large()
        made.append(weakref.ref(large))
        while True:
            progress(0.5)

    def begin(tell):
        works = []
        works.append(Work(function, lambda share: works[0].cancel(), tell))

    outcome = in_a_loop(begin)
    assert ended()
    gc.collect()
    assert isinstance(outcome, Cancelled)
    assert made[0]() is None


def test_a_loop_that_is_closed_meanwhile_ends_the_work():
    before = threads()
    go, told, outcomes = threading.Event(), [], []

    def function(progress):
        go.wait(PATIENCE_S)
        try:
            # the first one finds the loop closed, the next one ends it
            for _ in range(2):
                progress(0.5)
        except Cancelled as error:
            outcomes.append(error)
            raise

    async def begin():
        Work(function, told.append, told.append)

    asyncio.run(begin())
    go.set()
    assert ended(before)
    assert len(outcomes) == 1
    assert told == []


def test_without_a_loop_it_is_done_at_once_and_here():
    seen = []
    Work(lambda progress: (progress(0.5), threading.get_ident())[1], seen.append, seen.append)
    assert seen == [0.5, threading.get_ident()]


def test_progress_is_told_ten_times_a_second_at_most(monkeypatch):
    # a step takes 1/16 s: every other one is late enough
    clock = iter(100 + i / 16 for i in range(1000))
    monkeypatch.setattr(background, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    told = []

    def function(progress):
        for i in range(20):
            progress(i / 20)

    Work(function, told.append, lambda outcome: None)
    assert told == [i / 20 for i in range(0, 20, 2)]


def test_threads_take_turns_sooner_while_any_work_goes_on_and_as_before_afterwards():
    before_s = sys.getswitchinterval()
    first, second = threading.Event(), threading.Event()
    found = []

    def begin(tell):
        def turns(event):
            event.wait(PATIENCE_S)
            return sys.getswitchinterval()

        def done(turn_s):
            found.append(turn_s)
            second.set()
            if len(found) == 2:
                tell(None)

        for event in (first, second):
            Work(lambda progress, event=event: turns(event), lambda share: None, done)
        first.set()

    in_a_loop(begin)
    assert ended()
    # the second goes on when the first has ended
    assert max(found) <= 0.001 < before_s
    assert sys.getswitchinterval() == before_s


@pytest.mark.parametrize("of", ["work", "a cluster in the same process"])
def test_what_is_told_comes_to_its_turn_soon(rt, of):
    before_s = sys.getswitchinterval()

    def begin(tell):
        def told(outcome):
            tell(sys.getswitchinterval())

        if of == "work":
            Work(lambda progress: None, lambda share: None, told)
        else:
            Link(rt.client).ask(lambda: questions.at_work(rt), told)

    assert in_a_loop(begin) <= 0.001 < before_s
    assert ended()
    assert sys.getswitchinterval() == before_s
