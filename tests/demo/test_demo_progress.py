"""The demo's progress: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import re
from dataclasses import replace

from click import unstyle

from dask_hpc.demo.progress import JobProgress, ProgressDisplay, Tally


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
