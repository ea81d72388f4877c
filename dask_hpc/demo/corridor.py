"""An act of its own (``dask hpc demo --only power``): two jobs under a power corridor that moves thrice.

What a node draws is a model: idle, or what the job draws whose task executes there. The draw is taken from
what the workers execute, on stock Dask, which knows no corridor, as under the policy.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from distributed import Client

from dask_hpc.demo.paced import paced
from dask_hpc.demo.parts import DemoRun, Row, Verdict
from dask_hpc.demo.stage import NODES, Stage

NAME = "power"
TITLE = "two jobs under a power corridor that moves thrice"
#: Watts of an idle node, and of one that executes a task of each job.
IDLE_W, WATTS = 71.0, {"pi": 170.0, "heat": 250.0}
#: Centres of the corridor one after the other, and how far its bounds are from them.
CENTRES_W, HALF_W = (1250.0, 750.0, 1050.0, 850.0), 100.0
#: How long the corridor stays in one place, a task takes, and a tick, at scale 1.
STEP_S, TASK_S, TICK_S = 3.0, 0.15, 0.25
_EVERY_S = 0.03
#: How long to wait for the jobs' nodes, and for the first corridor to be reached.
_PATIENCE_S = 20.0
#: Where stock Dask does less than this share of the tasks that there is time for the machine is too busy:
#: tasks that take twice as long end twice as late after each move.
_ENOUGH = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How the corridor was kept."""

    #: Watts outside over time, and the time.
    outside_ws: float
    outside_s: float
    energy_j: float
    tasks: int
    #: Whether the jobs had their nodes, and the draw was inside, before it began.
    begun: bool = True


class Watch(threading.Thread):
    """Takes the draw from what the workers execute, until `end`."""

    def __init__(self, client: Client) -> None:
        super().__init__(name="demo-watts", daemon=True)
        self._client, self._ends = client, threading.Event()
        #: Times and watts.
        self.samples: list[tuple[float, float]] = []

    def run(self) -> None:
        """Take samples."""
        while not self._ends.wait(_EVERY_S):
            doing = self._client.run_on_scheduler(_executing)
            watts = sum(WATTS.get(what, IDLE_W) * nodes for what, nodes in doing.items())
            self.samples.append((time.monotonic(), watts))

    def end(self) -> None:
        """Take no more."""
        self._ends.set()
        self.join()


def _executing(dask_scheduler: Any) -> dict[str, int]:
    """Workers by the job whose task they execute; idle ones under an empty name."""
    first = (next(iter(ws.processing), None) for ws in dask_scheduler.workers.values())
    return dict(Counter("" if task is None else str(task.key).partition("-")[0] for task in first))


def play(stage: Stage) -> Kept:
    """Have more work than can be done, move the corridor, look at the draw."""
    client, rt = stage.client, stage.runtime
    stage.fill()
    step_s, task_s = STEP_S * stage.scale, TASK_S * stage.scale
    rows = [(at * step_s, watts - HALF_W, watts + HALF_W) for at, watts in enumerate(CENTRES_W)]
    if rt is not None:
        rt.update(
            "power-aware",
            tick_s=TICK_S * stage.scale,
            power_model_idle_w=IDLE_W,
            power_model_busy_w=max(WATTS.values()),
        )
    futures, jobs = [], []
    # enough for the waits before it as well: what is left is cancelled
    count = int(NODES * (len(rows) * STEP_S + _PATIENCE_S / stage.scale) / TASK_S)
    for name, watts in WATTS.items():
        job = rt and rt.job(
            name, nodes=NODES // 2, min_nodes=1, max_nodes=NODES, min_power_w=watts, max_power_w=watts
        )
        with job or nullcontext():
            work = partial(paced, task_s, abs)
            futures += client.map(work, range(count), key=name, pure=False)
        jobs += [job] if job else []
    begun = True
    if rt is not None:
        begun = _until(lambda: sum(row["nodes"] for row in rt.jobs()) == NODES)
        rt.corridor(lower_w=rows[0][1], upper_w=rows[0][2])
        begun = _until(lambda: rows[0][1] <= (rt.power()["draw_w"] or 0.0) <= rows[0][2]) and begun
    watch = Watch(client)
    before = sum(future.done() for future in futures)
    begin_s = time.monotonic()
    if rt is not None:
        rt.corridor(schedule=rows)
    watch.start()
    for _, lower_w, upper_w in rows:
        stage.told["power"] = f"{lower_w:.0f} to {upper_w:.0f} W"
        time.sleep(step_s)
    watch.end()
    tasks = sum(future.done() for future in futures) - before
    if rt is not None:
        rt.corridor(clear=True)
    client.cancel(futures)
    for job in jobs:
        job.cancel()
    draw = [(t_s - begin_s, watts) for t_s, watts in watch.samples]
    return replace(kept(draw, rows, len(rows) * step_s, tasks), begun=begun)


def kept(
    draw: list[tuple[float, float]], rows: list[tuple[float, float, float]], lasts_s: float, tasks: int
) -> Kept:
    """Sums of a draw, each sample of which holds until the next one, against bounds from when on."""
    outside_ws = outside_s = energy_j = 0.0
    for (t_s, watts), (end_s, _) in pairwise([*(one for one in draw if one[0] < lasts_s), (lasts_s, 0.0)]):
        _, lower_w, upper_w = [row for row in rows if row[0] <= max(t_s, 0.0)][-1]
        out_w = max(0.0, lower_w - watts, watts - upper_w)
        energy_j += watts * (end_s - t_s)
        outside_ws += out_w * (end_s - t_s)
        outside_s += (end_s - t_s) if out_w else 0.0
    return Kept(outside_ws=outside_ws, outside_s=outside_s, energy_j=energy_j, tasks=tasks)


def _until(holds: Callable[[], bool]) -> bool:
    """Wait for it; whether it holds."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while not holds():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def _busy(pairs: Sequence[tuple[Kept, Kept]]) -> str:
    """Why this machine was too busy to keep anything; empty: it was not."""
    # stock Dask executes on all nodes all the time, and the length of the act goes with that of a task
    most = NODES * len(CENTRES_W) * STEP_S / TASK_S
    done = min(stock.tasks for stock, _ in pairs) / most
    return "" if done >= _ENOUGH else f"stock Dask did {done:.0%} of the tasks that there was time for"


def verdict(run: DemoRun) -> Verdict:
    """What was outside, and the energy."""
    pairs = run.pairs(NAME)
    outside = Row.of("power: outside the corridor", pairs, lambda one: one.outside_ws, "{:.0f} W s".format)
    energy = Row.of("power: energy", pairs, lambda one: one.energy_j / 1000, "{:.1f} kJ".format)
    tasks = Row.of("power: tasks done", pairs, lambda one: one.tasks)
    less = max(outside.ours) < outside.stock_median
    last_stock, last = pairs[-1]
    told = {"stock Dask": _told(last_stock), "dask-hpc": _told(last)}
    unpaid = []
    if not less:
        why = _busy(pairs)
        what = "this machine was too busy for the power corridor" if why else ""
        what = what or "the power corridor was kept no better than by chance"
        if not why and not all(ours.begun for _, ours in pairs):
            why = f"its jobs had no nodes, or the draw was not inside, after {_PATIENCE_S:.0f} s"
        unpaid = [f"{what}: {outside.change}{f'; {why}' if why else ''}"]
    return Verdict(
        results=told,
        notes={TITLE: f"{told['dask-hpc']}; stock Dask: {told['stock Dask']}"},
        summary={
            NAME: {
                **outside.as_data("outside_ws"),
                **energy.as_data("energy_kj"),
                **tasks.as_data("tasks"),
            }
        },
        table=[outside, energy, tasks],
        quote=f"{outside.change} outside a power corridor that moves" if less else "",
        unpaid=unpaid,
    )


def _told(one: Kept) -> str:
    return (
        f"{one.outside_ws:.0f} W s in {one.outside_s:.1f} s outside the power corridor, "
        f"{one.energy_j / 1000:.1f} kJ, {one.tasks} tasks done"
    )
