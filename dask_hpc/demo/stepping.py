"""Act 2: a simulation is resized while it steps, and the walltime of a node ends under it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from distributed import Client, Future

from dask_hpc.demo import simulation
from dask_hpc.demo.parts import DemoRun, Row, Verdict
from dask_hpc.demo.simulation import Simulated, simulate, simulate_plainly
from dask_hpc.demo.stage import NODES, Stage, in_background
from dask_hpc.demo.starts import counted_starts
from dask_hpc.demo.walltime import NOTICE_S, can_end, end_walltime
from dask_hpc.demo.workloads import WORKLOADS, digest

NAME = "stepping"
TITLE = "A simulation is resized while it steps, and the walltime of a node ends"
#: At scale 1: steps, and when a question arrives beside the simulation and the walltime ends, in seconds
#: after the first step.
STEPS = 80
QUESTION_S = 1.5
WALLTIME_S = 7.0
#: The notice before the end of the walltime takes its time also in a fast run: it comes when the question is
#: about to be answered, and has to find the simulation there. Its steps alone last as long as that.
MIN_STEPS = 24
MIN_WALLTIME_S = 2.6
#: As many steps as the longest of the first few fit into the notice.
STEPS_TIMED, NOTICE_STEPS = 4, 5
#: The question: its tasks, and what each of them takes at scale 1.
TASKS = 24
TASK_S = 0.4
_QUESTION = "primes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """What came of the simulation and of the question."""

    simulated: Simulated
    #: Seconds that the simulation took.
    simulation_s: float
    answer: Any
    turnaround_s: float
    #: Starts of tasks beyond the first one of each.
    repeated: int
    #: Whether a process was killed when its walltime was over; None: no walltime ended.
    killed: bool | None


def play(stage: Stage) -> Stepped:
    """Let the simulation step; the question and the end of the walltime come when it is time."""
    client, runtime, scale = stage.client, stage.runtime, stage.scale
    stage.fill()
    # workers import what they need before anything is timed
    client.run(warm_up)
    ask = WORKLOADS[_QUESTION].prepare(0, TASKS, TASK_S * scale)
    steps = max(MIN_STEPS, round(STEPS * scale))
    steps_s: list[float] = []
    first_step, known = threading.Event(), threading.Event()

    def told(step: int) -> None:
        stage.told[simulation.NAME] = f"step {step}"
        steps_s.append(time.monotonic())
        first_step.set()
        if len(steps_s) == STEPS_TIMED:
            known.set()

    with counted_starts(client, NAME) as starts:
        if runtime is None:
            stepping = in_background(_timed, simulate_plainly, client, NODES, steps, told)
        else:
            stepping = in_background(_timed, simulate, runtime, steps, told)
        # also when it fails before
        stepping.add_done_callback(lambda _: first_step.set())
        stepping.add_done_callback(lambda _: known.set())
        first_step.wait()
        begin_s = time.monotonic()
        time.sleep(QUESTION_S * scale)
        asking = in_background(_timed, _answer, stage, ask)
        killed = None
        if can_end(stage):
            at_s = max(MIN_WALLTIME_S, WALLTIME_S * scale)
            known.wait()
            notice_s = notice_of(steps_s[:STEPS_TIMED])
            killed = end_walltime(stage, at_s - (time.monotonic() - begin_s), notice_s)
        simulated, simulation_s = stepping.result()
        answer, turnaround_s = asking.result()
        return Stepped(
            simulated=simulated,
            simulation_s=simulation_s,
            answer=answer,
            turnaround_s=turnaround_s,
            repeated=starts.repeated(),
            killed=killed,
        )


def notice_of(steps_s: Sequence[float]) -> float:
    """Seconds before the end of the walltime at which a worker is told, given when the first steps were done.

    Nodes leave a simulation between two steps. A notice that a slow machine's steps outlast would come too
    late for that, as none does that a batch system gives.
    """
    longest_s = max((after - before for before, after in pairwise(steps_s)), default=0.0)
    return max(NOTICE_S, NOTICE_STEPS * longest_s)


def warm_up() -> None:
    """Called on each worker: unpickling this function imports what the simulation needs."""


def _answer(stage: Stage, ask: Any) -> Any:
    if stage.runtime is None:
        return _result(stage.client, ask)
    with stage.runtime.job("question"):
        return _result(stage.client, ask)


def _result(client: Client, ask: Any) -> Any:
    future: Future = ask(client)
    return future.result()


def _timed(function: Any, *args: Any) -> tuple[Any, float]:
    begin_s = time.monotonic()
    return function(*args), time.monotonic() - begin_s


def verdict(run: DemoRun) -> Verdict:
    """The fields beside those of undisturbed runs, and what a walltime that ends has cost."""
    pairs = run.pairs(NAME)
    stock, ours = pairs[-1]
    identical = all(one.simulated.identical for pair in pairs for one in pair)
    coupled = all(one.simulated.coupled_identical for _, one in pairs)
    told = simulation.describe(ours.simulated, ours.simulated.identical)
    errors = []
    if not (identical and coupled):
        errors.append(f"{simulation.NAME}: {told}")
    if any(digest(left.answer) != digest(right.answer) for left, right in pairs):
        errors.append("the answer beside the simulation differs from that of stock Dask")
    resizes = Row.of("simulation: resized while it steps", pairs, lambda one: one.simulated.resizes)
    question = Row.of("simulation: a question beside it", pairs, lambda one: one.turnaround_s, _seconds)
    length = Row.of("simulation: time for its steps", pairs, lambda one: one.simulation_s, _seconds)
    repeated = Row.of("walltime ends: tasks computed twice", pairs, lambda one: one.repeated)
    ended = all(one.killed is not None for pair in pairs for one in pair)
    unpaid = []
    if not all(one.simulated.in_situ for _, one in pairs):
        unpaid.append("the simulation's analytics did not all run on the nodes of its blocks")
    if not min(resizes.ours):
        unpaid.append("the simulation was not resized")
    if ended and (most := max(repeated.ours)):
        unpaid.append(f"{most:g} tasks were computed twice when a walltime ended")
    if ended and not repeated.stock_median:
        unpaid.append("stock Dask repeated nothing either when a walltime ended")
    if length.ours_median > 1.05 * length.stock_median:
        unpaid.append(f"the simulation took longer: {length.change}")
    if question.ours_median > 1.05 * question.stock_median:
        unpaid.append(f"the question beside the simulation took longer: {question.change}")
    results = {
        simulation.NAME: told,
        "question": f"{question.change} with stock Dask and dask-hpc",
    }
    if ended:
        results["walltime"] = (
            f"tasks computed twice: {stock.repeated} with stock Dask, {ours.repeated} with dask-hpc"
        )
    return Verdict(
        results=results,
        notes={TITLE: "; ".join([told, *list(results.values())[1:]])},
        summary={
            NAME: {
                "steps": ours.simulated.steps,
                "field_identical": identical,
                "sha256": digest(ours.simulated.field),
                "looks": len(ours.simulated.looks),
                "coupled": len(ours.simulated.coupled),
                "coupled_identical": coupled,
                "looks_in_situ": ours.simulated.in_situ,
                "windows": [dict(window) for window in ours.simulated.windows],
                "walltime_ended": ended,
                "resized": list(resizes.ours),
                **length.as_data("simulation_s"),
                **question.as_data("question_s"),
                **repeated.as_data("repeated"),
            }
        },
        table=[resizes, length, question, *([repeated] if ended else [])],
        quote=(
            f"{repeated.ours_median:g} tasks computed twice when a walltime ends where stock repeats "
            f"{repeated.stock_median:g}"
            if ended and max(repeated.ours) < repeated.stock_median
            else ""
        ),
        unpaid=unpaid,
        errors=errors,
    )


def _seconds(value: float) -> str:
    return f"{value:.1f} s"
