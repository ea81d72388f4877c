"""The power corridor on a live cluster: a moving corridor is followed, beside the same work without one.

Eight one-thread workers of this process, 71 W each, two malleable jobs of 170 and 250 W a node, tasks of
0.25 s, a tick of 0.5 s. Every 20 s the corridor, 100 W to both sides of its centre, moves between 950 and
1,750 W. The draw is found apart from the runtime, from what the workers execute, 50 times a second.
"""

from __future__ import annotations

import random
import threading
import time
from itertools import pairwise
from typing import Any

import harness
from distributed import LocalCluster

from harness import Row, main, percentile  # isort: skip
from counted import began, counted_nap  # isort: skip
from machine import SEED

import dask_hpc

NODES, TASK_S, TICK_S = 8, 0.25, 0.5
IDLE_W, WATTS = 71.0, {"pi": 170.0, "heat": 250.0}
#: Centres of the corridor, and how far it reaches to both sides.
CENTRES, HALF_W = (950.0, 1150.0, 1350.0, 1550.0, 1750.0), 100.0
RESERVE_W = (max(CENTRES) - min(CENTRES)) / 2
#: One node, for a tick.
NODE_TICK_WS = max(WATTS.values()) * TICK_S
#: A stretch inside counts when it holds for so long.
HOLDS_S = 0.2


class Watch(threading.Thread):
    """Takes the draw from what the workers execute."""

    def __init__(self, workers: Any) -> None:
        super().__init__(daemon=True)
        self._workers, self._ends = list(workers), threading.Event()
        self.samples: list[tuple[float, float]] = []

    def run(self) -> None:
        while not self._ends.wait(0.02):
            self.samples.append((time.monotonic(), sum(map(_watts, self._workers))))

    def end(self) -> None:
        self._ends.set()
        self.join()


def _watts(worker: Any) -> float:
    running = tuple(worker.state.executing)
    return WATTS[str(running[0].key).partition("-")[0]] if running else IDLE_W


def run(options: harness.Options) -> list[Row]:
    """All rows."""
    period_s, moves = options.pick((20.0, 10), (20.0, 5), (1.5, 2))
    centres = _centres(moves)
    bounds = [(number * period_s, centre) for number, centre in enumerate(centres)]
    free = _follow(bounds, period_s, False)
    held = _follow(bounds, period_s, True)
    away = sorted(abs(watts - centre) for _, watts, centre in held["draw"])
    outside = {name: _outside_ws(one["draw"]) for name, one in (("held", held), ("free", free))}
    moved_ws = [
        _outside_ws([one for one in held["draw"] if at_s <= one[0] < at_s + period_s]) for at_s, _ in bounds
    ]
    back = [_back_s(held["draw"], at_s, period_s) for at_s, _ in bounds[1:]]
    return [
        Row(name="without a corridor: outside", value=outside["free"], unit="W s"),
        Row(
            name="outside, of that without",
            value=100 * outside["held"] / outside["free"],
            unit="%",
            bar=5.0,
            note=f"{outside['held']:.0f} W s; the runtime counts {held['told']['outside_ws']:.0f}",
        ),
        Row(
            name="W s outside a move, most",
            value=max(moved_ws),
            unit="W s",
            bar=NODE_TICK_WS,
            note=f"a node of {max(WATTS.values()):g} W for a tick; of {len(moved_ws)}, "
            f"median {percentile(sorted(moved_ws), 0.5):.0f}",
        ),
        harness.row("back inside after a move", back, "s", bar=2 * TICK_S + TASK_S),
        Row(
            name="P90 of |centre - draw| over 400 W, ratio",
            value=percentile(away, 0.9) / RESERVE_W,
            unit="",
            bar=0.3,
        ),
        Row(name="tasks without a result", value=float(held["lost"]), unit="tasks", bar=0.0),
        Row(name="tasks executed twice", value=float(held["twice"]), unit="tasks", bar=0.0),
        Row(
            name="tasks without a corridor over tasks within it, ratio",
            value=free["done"] / max(1, held["done"]),
            unit="",
            note="the slowdown: a corridor below what the work would draw costs that much of it",
        ),
        Row(name="energy: parts against the whole", value=_apart(held["told"]), unit="%", bar=0.1),
    ]


def _centres(moves: int) -> list[float]:
    """Where the corridor is: both ends and whatever is between them, in an order that no two steps share."""
    chance, found = random.Random(SEED), list[float]()
    while len(found) < moves:
        more = chance.sample(CENTRES, len(CENTRES))
        found += more if not found or more[0] != found[-1] else more[::-1]
    return found[:moves]


def _follow(bounds: list[tuple[float, float]], period_s: float, keep: bool) -> dict[str, Any]:
    """The jobs' work while the corridor moves, or as if it did; draw with the centre of each moment."""
    began.clear()
    lasts_s = len(bounds) * period_s
    with (
        LocalCluster(
            n_workers=NODES, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        cluster.get_client() as client,
    ):
        policy = "power-aware"
        rt = dask_hpc.install(
            client, policy=policy, tick_s=TICK_S, power_model_idle_w=IDLE_W, power_model_busy_w=200
        )
        jobs, futures = [], []
        for name, watts in WATTS.items():
            job = rt.job(name, nodes=4, min_nodes=1, max_nodes=NODES, min_power_w=watts, max_power_w=watts)
            jobs.append(job)
            with job:
                # more than can be done: the rest is cancelled
                count = int(NODES * lasts_s / TASK_S) + 50
                keys = [f"{name}-{number}" for number in range(count)]
                futures += client.map(counted_nap, keys, [TASK_S] * count, key=keys)
        while sum(row["nodes"] for row in rt.jobs()) < NODES:
            time.sleep(0.01)
        rows = [(at_s, centre - HALF_W, centre + HALF_W) for at_s, centre in bounds]
        if keep:
            # the solver is loaded, and the first corridor reached, before anything is counted
            rt.corridor(lower_w=rows[0][1], upper_w=rows[0][2])
            deadline_s = time.monotonic() + 20
            while not rows[0][1] <= (rt.power()["draw_w"] or 0) <= rows[0][2]:
                if time.monotonic() > deadline_s:
                    break
                time.sleep(0.05)
        watch = Watch(cluster.workers.values())
        watch.start()
        done = sum(future.done() for future in futures)
        begin_s = time.monotonic()
        told: dict[str, Any] = rt.corridor(schedule=rows, mode="enforce" if keep else "monitor")
        time.sleep(lasts_s)
        before, told = told, rt.power()
        watch.end()
        told["outside_ws"] -= before["outside_ws"]
        done = sum(future.done() for future in futures) - done
        started = dict(began)
        rt.corridor(clear=True)
        # what executes ends; what never began is dropped
        client.cancel([future for future in futures if future.key not in started])
        waiting = [future for future in futures if future.key in started]
        results = client.gather(waiting, errors="skip")
        for job in jobs:
            job.cancel()
        twice = sum(count > 1 for count in began.values())
    return {
        "draw": [
            (t_s - begin_s, watts, _centre(bounds, t_s - begin_s))
            for t_s, watts in watch.samples
            if t_s - begin_s <= lasts_s
        ],
        "told": told,
        "done": done,
        "lost": len(waiting) - len(results),
        "twice": twice,
    }


def _centre(bounds: list[tuple[float, float]], t_s: float) -> float:
    return [centre for at_s, centre in bounds if at_s <= max(t_s, 0.0)][-1]


def _outside_ws(draw: list[tuple[float, float, float]]) -> float:
    return sum(
        max(0.0, abs(watts - centre) - HALF_W) * (later[0] - t_s)
        for (t_s, watts, centre), later in pairwise(draw)
    )


def _back_s(draw: list[tuple[float, float, float]], at_s: float, period_s: float) -> float:
    """Seconds from a move until the draw is inside, and stays there for a while."""
    since_s: float | None = None
    for t_s, watts, centre in draw:
        if not at_s <= t_s < at_s + period_s:
            continue
        if abs(watts - centre) > HALF_W:
            since_s = None
        elif since_s is None:
            since_s = t_s
        elif t_s - since_s >= HOLDS_S:
            return since_s - at_s
    return period_s


def _apart(told: dict[str, Any]) -> float:
    """How far the energy of the parts is from that of all, in %."""
    parts = told["idle_j"] + told["plain_j"] + told["earlier_jobs_j"]
    parts += sum(row["energy_j"] for row in told["jobs"])
    return 100 * abs(parts - told["energy_j"]) / told["energy_j"]


if __name__ == "__main__":
    main("corridor_live", "Power corridor: a live cluster follows one that moves", run)
