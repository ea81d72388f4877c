"""Act 4: a cluster becomes smaller while it computes, with results, scattered data and an actor on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from distributed import Future, wait

from dask_hpc.demo.paced import paced
from dask_hpc.demo.parts import DemoRun, Row, Verdict
from dask_hpc.demo.stage import NODES, Stage
from dask_hpc.demo.starts import counted_starts

NAME = "shrinking"
#: Nodes that are left.
LEFT = 2
TITLE = f"{NODES} nodes become {LEFT} under load, with results, scattered data and an actor"
#: Results that are there already, scattered objects, and tasks of the load; half of those have ended.
RESULTS = SCATTERED = 30
HELD = RESULTS + SCATTERED
LOAD = 60
#: What a task of the load takes, at scale 1.
LOAD_S = 0.2
#: How long to wait for what may be lost, and for nodes to leave.
PATIENCE_S = 60.0
_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """What was left of everything."""

    #: Objects that were there before and cannot be had any more.
    lost: int
    #: Values that are not what they should be.
    wrong: int
    #: Starts of tasks beyond the first one of each.
    repeated: int
    actor_answers: bool
    #: From the call until the last node had left, and nodes that were there then.
    shrink_s: float
    nodes: int


class Ledger:
    """An actor: its state is nowhere else."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, amount: int) -> int:
        """Add and give the total."""
        self.total += amount
        return self.total


def payload(number: int) -> bytes:
    """A value of ten kilobytes that tells which one it is."""
    return number.to_bytes(4, "little") * 2_500


def play(stage: Stage) -> Shrunk:
    """Put everything on the cluster, make it smaller half-way through the load, ask for everything."""
    client = stage.client
    stage.fill()
    stage.told["shrinking"] = f"{NODES} nodes"
    with counted_starts(client, NAME) as starts:
        scattered = client.scatter([payload(number) for number in range(SCATTERED)], hash=False)
        results = client.map(payload, range(RESULTS), pure=False)
        wait(results)
        # that of the last name is among those that stock Dask closes
        host = max(stage.workers().items(), key=lambda item: (len(item[0]), item[0]))[1]
        actor: Any = client.submit(Ledger, actor=True, workers=[host], pure=False).result()
        actor.add(1).result()
        slow = partial(paced, LOAD_S * stage.scale, payload)
        load = client.map(slow, range(LOAD), pure=False)
        wait(load[: LOAD // 2])
        stage.told["shrinking"] = f"{NODES} nodes become {LEFT}"
        begin_s = time.monotonic()
        stage.cluster.scale(LEFT)
        wait(load, timeout=PATIENCE_S)
        while (nodes := len(stage.workers())) > LEFT and time.monotonic() - begin_s < PATIENCE_S:
            time.sleep(0.1)
        shrink_s = time.monotonic() - begin_s
        found = [*values(scattered), *values(results), *values(load)]
        expected = [payload(number) for number in [*range(SCATTERED), *range(RESULTS), *range(LOAD)]]
        lost = sum(value is None for value in found)
        return Shrunk(
            lost=lost,
            wrong=sum(value != right for value, right in zip(found, expected, strict=True)) - lost,
            repeated=starts.repeated(),
            actor_answers=_answers(actor),
            shrink_s=shrink_s,
            nodes=nodes,
        )


def values(futures: Sequence[Future]) -> list[Any]:
    """The values, None for each that cannot be had."""
    return [_value(future) for future in futures]


def _value(future: Future) -> Any:
    try:
        return future.result(timeout=_ANSWER_S)
    except (Exception, asyncio.CancelledError):
        return None


def _answers(actor: Any) -> bool:
    try:
        return bool(actor.add(1).result(timeout=_ANSWER_S) == 2)
    except (Exception, asyncio.CancelledError):
        return False


def verdict(run: DemoRun) -> Verdict:
    """What was lost, what was computed twice, and whether the actor answers."""
    pairs = run.pairs(NAME)
    lost = Row.of(
        "shrinking: results and data lost", pairs, lambda one: one.lost, lambda n: f"{n:g} of {HELD}"
    )
    repeated = Row.of("shrinking: tasks computed twice", pairs, lambda one: one.repeated)
    actor = Row.of(
        "shrinking: the actor",
        pairs,
        lambda one: one.actor_answers,
        lambda alive: "answers" if alive else "is lost",
    )
    ours = [ours for _, ours in pairs]
    errors = []
    if most := max(one.lost for one in ours):
        errors.append(f"{most} of {HELD} results and scattered objects were lost when the cluster shrank")
    if wrong := max(one.wrong for one in ours):
        errors.append(f"{wrong} results are wrong after the cluster shrank")
    if not all(one.actor_answers for one in ours):
        errors.append("the actor was lost when the cluster shrank")
    unpaid = []
    if most := max(one.repeated for one in ours):
        unpaid.append(f"{most} tasks were computed twice when the cluster shrank")
    if max(one.nodes for one in ours) > LEFT:
        unpaid.append(f"the cluster kept more than {LEFT} nodes for {PATIENCE_S:.0f} s")
    if not (lost.stock_median or repeated.stock_median):
        unpaid.append("stock Dask lost nothing and repeated nothing either when its cluster shrank")
    last_stock, last = pairs[-1]
    told = {"stock Dask": _told(last_stock), "dask-hpc": _told(last)}
    return Verdict(
        results=told,
        notes={TITLE: f"{told['dask-hpc']}; stock Dask: {told['stock Dask']}"},
        summary={
            NAME: {
                **lost.as_data("lost"),
                **repeated.as_data("repeated"),
                **actor.as_data("actor_answers"),
                **Row.of("", pairs, lambda one: one.shrink_s).as_data("shrink_s"),
                "held": HELD,
            }
        },
        table=[lost, repeated, actor],
        quote=_quote(lost, repeated),
        unpaid=unpaid,
        errors=errors,
    )


def _quote(lost: Row, repeated: Row) -> str:
    """Only what every round has gained."""
    if max(lost.ours) >= lost.stock_median:
        return ""
    gained = f"{lost.shown(max(lost.ours))} results lost where stock loses {lost.stock_median:g}"
    if not max(repeated.ours) and repeated.stock_median:
        gained += f" and repeats {repeated.stock_median:g} tasks"
    return gained


def _told(one: Shrunk) -> str:
    return (
        f"{one.lost} of {HELD} results and scattered objects lost, {one.repeated} tasks computed twice, "
        f"the actor {'answers' if one.actor_answers else 'is lost'}, {one.nodes} nodes after "
        f"{one.shrink_s:.1f} s"
    )
