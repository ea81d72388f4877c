"""What the draw of a node is taken to be when its worker says what cannot be, or its clock is set."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from distributed import Event
from helpers import engine, live, until

import dask_hpc
from dask_hpc.scheduler.power.draw import Draw
from dask_hpc.wire import HEARTBEAT
from dask_hpc_policies.power.load_curve import LoadCurve

CURVE = LoadCurve(((0.0, 70.0), (1.0, 200.0)))
GOOD = {"watts": 80.0, "label": "measured", "at_s": 1000.0, "host": "a", "fresh_s": 5.0}


@live(workers=1)
async def test_absurd_figures_and_clocks_that_jump_leave_the_model_or_the_last_figure(c, s, a):
    rt = await dask_hpc.install(c, power_model_idle_w=70, power_model_busy_w=200)
    await rt.corridor(upper_w=500)
    draw, ws = Draw(engine(s).state), s.workers[a.address]

    def said(now_s: float, **changes: Any) -> tuple[float, str]:
        """The sample right after a heartbeat with that section."""
        ws.metrics = {**ws.metrics, HEARTBEAT: {"power": {**GOOD, **changes}}}
        found = draw.sample(now_s, CURVE)
        return found.total_w, found.label

    assert said(0.0) == (80.0, "measured")
    bad: tuple[Any, ...] = (1e12, -5.0, 0.0, float("nan"), float("inf"), "80", None, True, [80.0], 10**400)
    for watts in bad:
        assert said(0.0, watts=watts) == (70.0, "modelled"), watts
    for at_s in ("now", None, float("nan"), {}):
        assert said(0.0, at_s=at_s) == (70.0, "modelled"), at_s
    assert said(0.0, fresh_s="long", host=7) == (80.0, "measured")
    # a clock that is set back, or far ahead, says something new all the same
    for number, at_s in enumerate((900.0, -1e9, 1e12), start=1):
        assert said(100.0 * number, at_s=at_s, watts=90.0 + number) == (90.0 + number, "measured")
    # but what says nothing new grows old, whatever it holds itself to be good for
    assert said(302.0, at_s=1e12) == (80.0, "measured")
    assert said(310.0, at_s=1e12) == (70.0, "modelled")
    assert said(310.0, at_s=1e13, fresh_s=1e9) == (80.0, "measured")
    assert said(1_000.0, at_s=1e13, fresh_s=1e9) == (70.0, "modelled")
    found = await rt.power()
    assert (found["upper_w"], found["problem"]) == (500, "")


@live(workers=2, config={"hpc.tick": "50 ms"})
async def test_a_node_draws_by_what_it_does(c, s, a, b):
    """Watts of the card while it is in use, those of the switch always, and each state by its sum."""
    model = {"power_model_idle_w": 70, "power_model_busy_w": 200, "power_model_switch_w": 5}
    rt = await dask_hpc.install(c, **model, power_model_nic_w=12)
    await rt.corridor(upper_w=5_000)
    state = engine(s).state
    assert (await rt.power())["draw_w"] == 2 * 75, "the share of the switch"
    writes: set[str] = set()
    draw, curve = Draw(state, lambda: writes, lambda: 12.0), LoadCurve(((0.0, 75.0), (1.0, 205.0)))

    def states() -> dict[str, float]:
        found = draw.sample(1.0, curve)
        assert sum(found.states_w.values()) == sum(found.nodes_w) == found.total_w
        return dict(found.states_w)

    def transfers(ws: Any, count: int) -> None:
        ws.metrics = {**ws.metrics, "transfer": {**ws.metrics["transfer"], "incoming_count": count}}

    first = s.workers[a.address]
    transfers(s.workers[b.address], 0)
    transfers(first, 1)
    assert states() == {"communicate": 87.0, "idle": 75.0}
    go, transfer = Event("go"), first.metrics
    blocked = c.submit(go.wait, workers=[a.address], pure=False, key="made-again")
    await until(lambda: first.processing, "it executes")
    transfers(first, 1)
    assert states() == {"compute": 205.0, "idle": 75.0}, "what executes counts before what is moved"
    state.missing.add("made-again")
    assert states() == {"recovery": 205.0, "idle": 75.0}
    state.read_back.add("made-again")
    assert states() == {"restart": 217.0, "idle": 75.0}
    writes.add(b.address)
    assert states() == {"restart": 217.0, "checkpoint": 87.0}
    state.missing.clear()
    state.read_back.clear()
    first.metrics = transfer

    async def told() -> bool:
        bill = (await rt.power())["bill"]
        if not bill["total"]["known_s"]:
            return False
        parts = [sum(use["energy_j"] for use in bill[by].values()) for by in ("states", "nodes")]
        assert parts == [pytest.approx(bill["total"]["energy_j"])] * 2
        assert set(bill["nodes"]) <= {str(ws.name) for ws in s.workers.values()}
        return {"idle", "compute"} <= set(bill["states"])

    while not await told():  # the test has a deadline
        await asyncio.sleep(0.02)
    await go.set()
    await blocked
