"""A power corridor on a live cluster: set, kept over any policy, replayed, cleared; and what cannot be."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Worker
from distributed.utils_test import captured_logger
from helpers import PATIENCE_S, Gate, asleep, engine, live, record, started, traces_of_ours, until, within

import dask_hpc
from dask_hpc.errors import CorridorError
from dask_hpc.report.power import power_report
from dask_hpc.trace.files import parse_trace
from dask_hpc.trace.records import Pass, decode_line
from dask_hpc_policies.combine.arbitrate import arbitrate
from dask_hpc_policies.combine.corridor import enforced, guards
from dask_hpc_policies.power.view import seen
from dask_hpc_policies.registry import create

WATTS: dict[str, Any] = {"power_model_idle_w": 70, "power_model_busy_w": 200, "tick_s": 0.05}


def in_parts(bill: Any) -> float:
    """Energy of all who are on a bill."""
    parts = [*bill["jobs"].values(), bill["idle"], bill["plain"], bill["earlier_jobs"]]
    return sum(use["energy_j"] or 0.0 for use in parts)


def nap(number: int) -> int:
    time.sleep(0.02)
    return number


def size(s: Any, job: Any) -> int:
    return engine(s).state.nodes_up(record(s, job))


def upper(s: Any) -> float:
    """The upper bound that the trace has seen last."""
    (row,) = [one.data for one in engine(s).state.records if getattr(one, "kind", "") == "corridor"][-1:]
    return row["upper_w"]


def busy(s: Any) -> int:
    """Workers on which something executes."""
    return sum(bool(ws.processing) for ws in s.workers.values())


def last_power(s: Any) -> Any:
    """What the last decision saw of power."""
    return seen([one for one in engine(s).state.records if isinstance(one, Pass)][-1].snapshot)


async def settled(s: Any, job: Any, nodes: int) -> None:
    await until(lambda: size(s, job) == nodes and record(s, job).state == "running", f"{job.id} on {nodes}")


@pytest.mark.parametrize("policy", ["power-aware", "prma-fpsma"])
@live(workers=4)
async def test_jobs_are_resized_into_the_corridor_and_the_trace_replays(c, s, *workers, policy):
    rt = await dask_hpc.install(c, policy=policy, **WATTS)
    async with rt.job("heat", nodes=4, min_nodes=1, max_nodes=4, min_power_w=250, max_power_w=250) as job:
        futures = c.map(nap, range(1500))
        await started(s, job, 4)
        # 4 x 250 = 1,000 W; 2 x 250 + 2 x 70 = 640 W, 3 x 250 + 70 = 820 W
        await rt.corridor(lower_w=600, upper_w=700)
        await settled(s, job, 2)
        await rt.corridor(lower_w=750, upper_w="0.9 kW")
        await settled(s, job, 3)
        found = (await rt.status())["power"]
        assert (found["lower_w"], found["upper_w"], found["mode"]) == (750, 900, "enforce")
        assert found["label"] == "modelled"
        await until(lambda: last_power(s).max_w == 820, "the picture has the new sizes")
        shrink = [row for row in await rt.decisions() if row["action"] == "shrink"]
        assert {row["reason_code"] for row in shrink} == {"corridor"}
        assert "600 to 700 W" in shrink[0]["reason"]
        await c.cancel(futures)
    await rt.corridor(clear=True)
    await asleep(s)
    assert not traces_of_ours(s)
    lines = [decode_line(line) for line in await rt.trace()]
    again, state, amended = create(policy), create(policy).initial_state(), 0
    for one in lines:
        if isinstance(one, Pass):
            decision, state = again.decide(one.snapshot, state)
            assert decision == one.decision
            held = enforced(one.snapshot, arbitrate(one.snapshot, decision, guards(one.snapshot)))
            assert held == (one.arbitrated or one.decision)
            power = seen(one.snapshot)
            amended += power is not None and power.plan is not None
    assert amended
    moved = [json.loads(line) for line in await rt.trace() if '"kind":"corridor"' in line]
    assert [row["upper_w"] for row in moved] == [700, 900, None]


@live(workers=3)
async def test_what_would_leave_the_corridor_is_refused_or_waits(c, s, *workers):
    rt = await dask_hpc.install(c, policy="fcfs", **WATTS)
    await rt.corridor(upper_w=400)  # 3 x 70 = 210 W idle, 340 W with one busy node, 470 W with two
    async with rt.job("a", nodes=1, min_nodes=1, max_nodes=3) as first:
        gate = Gate()
        mine = c.submit(gate.wait, 1)
        await started(s, first, 1)
        answer = await first.resize(2)
        assert answer["result"] == "refused"
        assert "corridor, upper bound" in answer["reason"]
        async with rt.job("b", nodes=1) as second:
            await until(lambda: "corridor" in record(s, second).reason, "it is told why it waits")
            assert record(s, second).state == "pending"
            await rt.corridor(upper_w=480)
            await started(s, second, 1)
        gate.open()
        assert await mine == 1
    await rt.corridor(clear=True)


@live(workers=2)
async def test_nothing_is_changed_by_bounds_that_cannot_be(c, s, *workers):
    rt = await dask_hpc.install(c, tick_s=0.05)
    with pytest.raises(CorridorError, match=r"set hpc\.power\.model\.idle and hpc\.power\.model\.busy"):
        await rt.corridor(lower_w=100, upper_w=200)
    assert (await rt.power())["label"] == "unavailable"
    assert (await rt.power())["draw_w"] is None
    await rt.update(power_model_idle_w=70, power_model_busy_w="200 W")
    for arguments, text in (
        ({"lower_w": 300, "upper_w": 200}, "lower_w is 300 W, above upper_w, which is 200 W"),
        ({"upper_w": 1e12}, "upper_w is 1e.12 W; allowed: 0 to 1e.09 W"),
        ({"lower_w": "much"}, "lower_w: 'much' is not a power"),
        ({"lower_w": float("nan")}, "lower_w: nan is not a power"),
        ({"upper_w": 100, "mode": "hold"}, "mode is 'hold'; allowed: enforce, advise, monitor"),
        ({"upper_w": 100, "over": 1e-6}, "and 0.001 s to 86400 s"),
        ({"upper_w": 100, "over": "2 weeks"}, "over: '2 weeks' is not a duration"),
        ({"schedule": [[0, 1]]}, "step 1 is .0, 1.; give .t_s, lower_w, upper_w"),
        ({"schedule": [[9, 1, 2], [5, 1, 2]]}, "schedule, step 2: t_s is 5 s, not after 9 s; times rise"),
        ({"upper_w": 10**400}, "upper_w: inf is not a power"),
        ({"schedule": [[0, -(10**30), 2]]}, "step 1: lower_w: -inf is not a power"),
        ({"schedule": [[0, 1, 2], b"abc"]}, "schedule, step 2 is b'abc'; give"),
        ({"schedule": 5}, "schedule is 5; allowed: 1 to 100000 rows"),
        ({"file": "relative.yaml"}, "allowed: an absolute path"),
        ({"file": "/a\0b"}, "is no name of a file"),
        ({"series": __file__, "rules": [{"above": 10**30, "upper_w": 1}]}, "line 1: the heading has"),
        ({"file": "/nowhere/at/all"}, "cannot be read: No such file"),
        ({}, "no bounds"),
        ({"clear": True, "upper_w": 1}, "clear=True stands alone"),
        ({"clear": "no"}, "clear is 'no'; allowed: True, False"),
    ):
        with pytest.raises(CorridorError, match=text):
            await rt.corridor(**arguments)
        assert not engine(s).awake
    await rt.corridor(upper_w=np.int64(1000))
    with pytest.raises(CorridorError, match="above upper_w"):
        await rt.corridor(lower_w=2, upper_w=1)
    assert (await rt.power())["upper_w"] == 1000
    assert engine(s).awake
    await rt.corridor(clear=True)
    await asleep(s)
    assert not traces_of_ours(s)


@live(workers=3)
async def test_energy_is_that_of_its_parts(c, s, *workers):
    rt = await dask_hpc.install(c, policy="fcfs", **WATTS)
    await rt.corridor(mode="monitor", lower_w=0, upper_w=150)
    plain = c.map(nap, range(60))
    async with rt.job("a", nodes=1, min_power_w=100, max_power_w=100) as job:
        mine = c.map(nap, range(100, 160))
        await c.gather(mine)
    await job.wait()
    await c.gather(plain)
    found = await rt.power()
    parts = found["idle_j"] + found["plain_j"] + found["earlier_jobs_j"]
    parts += sum(row["energy_j"] for row in found["jobs"])
    assert found["energy_j"] == pytest.approx(parts, rel=1e-3)
    assert found["energy_j"] > 0.9 * 210 * found["accounted_s"]
    assert found["plain_j"] > 0
    assert {row["job"] for row in found["jobs"]} == {job.id}
    bill = found["bill"]
    assert bill["total"]["energy_j"] == pytest.approx(found["energy_j"])
    assert bill["jobs"][job.id]["energy_j"] == found["jobs"][0]["energy_j"]
    assert {bill[who]["label"] for who in ("total", "idle", "plain")} == {"modelled"}
    assert bill["total"]["cost"] is bill["total"]["carbon_g"] is None
    await rt.update(power_price=250, power_carbon=400)
    bill = (await rt.power())["bill"]
    kwh = bill["plain"]["energy_kwh"]
    assert bill["plain"]["cost"] == pytest.approx(0.25 * kwh)
    assert bill["plain"]["carbon_g"] == pytest.approx(400 * kwh)
    # 3 nodes draw 210 W and more
    assert found["outside_s"] == pytest.approx(found["accounted_s"])
    assert found["outside_ws"] == pytest.approx(found["energy_j"] - 150 * found["accounted_s"])
    assert (await rt.status())["power"]["energy_j"] >= found["energy_j"]
    await rt.corridor(clear=True)
    # the trace has the same sums
    told = power_report(parse_trace(await rt.trace()))
    assert told["energy_j"] == pytest.approx(found["energy_j"], rel=0.1)
    assert told["outside_s"] == pytest.approx(told["accounted_s"])
    assert told["energy_j"] >= found["energy_j"]
    (last,) = told["bills"]
    assert last["total"]["energy_j"] >= bill["total"]["energy_j"]
    assert last["jobs"][job.id]["most_w"] == pytest.approx(100)
    assert in_parts(last) == pytest.approx(last["total"]["energy_j"], rel=1e-3)
    assert (await rt.power())["bill"]["total"] == dict.fromkeys(last["total"]) | {"label": "unavailable"}
    assert len([one for one in engine(s).state.records if getattr(one, "kind", "") == "draw"]) < 20


@live(workers=3)
async def test_energy_is_that_of_its_parts_also_when_workers_are_lost_and_come(c, s, *workers):
    rt = await dask_hpc.install(c, policy="fcfs", **WATTS)
    await rt.corridor(mode="monitor", lower_w=0, upper_w=150)
    async with rt.job("a", nodes=2, min_nodes=1, min_power_w=100, max_power_w=100) as job:
        mine = c.map(nap, range(100, 180))
        with dask.annotate(hpc_job=None):
            plain = c.map(nap, range(40))
        for lost in workers[:2]:
            done = sum(future.done() for future in mine)
            await until(lambda done=done: sum(each.done() for each in mine) > done, "it computes")
            await lost.close()
            async with Worker(s.address, nthreads=1) as late:
                await until(lambda late=late: late.address in engine(s).state.nodes.at, "another has come")
        await within(c.gather(mine))
    # nothing is lent here: the job may have had the last node
    await within(c.gather(plain))
    await within(job.wait())
    found = await rt.power()
    parts = found["idle_j"] + found["plain_j"] + found["earlier_jobs_j"]
    parts += sum(row["energy_j"] for row in found["jobs"])
    assert found["energy_j"] == pytest.approx(parts, rel=1e-3)
    assert found["jobs"][0]["energy_j"] > 0


@pytest.mark.errors("The corridor stays as it is")
@live(workers=2)
async def test_a_schedule_and_a_watched_file_move_the_bounds(c, s, *workers, tmp_path):
    rt = await dask_hpc.install(c, **WATTS)
    found = await rt.corridor(lower_w=1, upper_w=500, schedule=[(0.2, 2, 600), ("1 h", 3, 700)], over="10 s")
    assert (found["lower_w"], found["upper_w"], found["over_s"]) == (1, 500, 10)
    await until(lambda: upper(s) == 600, "the second step holds")
    found = await rt.power()
    assert found["next_step"] == [pytest.approx(3600, abs=PATIENCE_S), 3, 700]
    path = tmp_path / "corridor.yaml"
    path.write_text("upper_w: 800 W\nmode: advise\n")
    await rt.corridor(file=path)
    assert (await rt.power())["mode"] == "advise"
    with captured_logger("dask_hpc.scheduler.power.corridor") as log:
        path.write_text("upper_w: 5\nlower_w: 800\n")
        await until(lambda: "above upper_w" in log.getvalue(), "it is refused")
    assert upper(s) == 800
    assert "above upper_w" in (await rt.power())["problem"]
    path.write_text("schedule: [[0, 10, 900], [60, 10, 950]]\n")
    await until(lambda: upper(s) == 900, "it is taken again")
    assert (await rt.power())["problem"] == ""
    await rt.corridor(clear=True)
    await asleep(s)


@pytest.mark.errors("The corridor stays as it is")
@live(workers=2)
async def test_prices_and_rules_make_the_bounds_and_a_series_is_watched(c, s, *workers, tmp_path):
    rt = await dask_hpc.install(c, **WATTS)
    series = tmp_path / "prices.csv"
    series.write_text("time,price\n2020-01-01T00:00Z,30\n2020-06-01T00:00Z,150\n2999-01-01T00:00Z,20\n")
    rules = [{"above": 100, "upper_w": "0.5 kW"}, {"upper_w": 900}]
    with pytest.raises(CorridorError, match=r"rule 1 has 'abov'.*did you mean 'above'"):
        await rt.corridor(series=series, rules=[{"abov": 100, "upper_w": 5}])
    with pytest.raises(CorridorError, match=r"series is 'prices\.csv'; allowed: an absolute path"):
        await rt.corridor(series="prices.csv", rules=rules)
    with pytest.raises(CorridorError, match="stands in place of"):
        await rt.corridor(series=series, rules=rules, upper_w=5)
    with pytest.raises(CorridorError, match="rules say what a series means"):
        await rt.corridor(upper_w=5, rules=rules)
    assert (await rt.power())["mode"] is None
    found = await rt.corridor(series=series, rules=rules)
    assert found["upper_w"] == 500
    assert found["next_step"][0] > 3e10
    series.write_text("time,price\n2020-01-01T00:00Z,15\n")
    await until(lambda: upper(s) == 900, "another price")
    with captured_logger("dask_hpc.scheduler.power.corridor") as log:
        series.write_text("time,price\nsoon,15\n")
        await until(lambda: "prices.csv, line 2: time is 'soon'" in log.getvalue(), "it is refused")
    assert "line 2" in (await rt.power())["problem"]
    assert upper(s) == 900
    # the same as a file, with bounds that change slowly: 2 idle nodes draw 140 W
    series.write_text("t_s;upper_w\n0;100\n")
    path = tmp_path / "corridor.yaml"
    path.write_text(f"series: {series}\nramp_w_s: 0.01\nmode: monitor\n")
    found = await rt.corridor(file=path)
    assert found["ramp_w_s"] == 0.01
    assert found["upper_w"] == pytest.approx(140, abs=1)
    series.write_text("t_s;upper_w\n0;1000\n")
    await until(lambda: upper(s) == 1000, "the series that the file names is watched")
    with captured_logger("dask_hpc.scheduler.power.corridor") as log:
        path.write_text("upper_w: &a 5\nlower_w: *a\n")
        await until(lambda: "aliases are not allowed" in log.getvalue(), "it is refused")
    await rt.corridor(clear=True)
    await asleep(s)


@live(workers=4, lend="5 s")
async def test_nodes_that_the_corridor_keeps_idle_are_lent_to_nobody(c, s, *workers):
    rt = await dask_hpc.install(c, policy="power-aware", **WATTS)
    async with rt.job("heat", nodes=4, min_nodes=1, max_nodes=4, min_power_w=250, max_power_w=250) as job:
        futures = c.map(nap, range(2000))
        await started(s, job, 4)
        await rt.corridor(lower_w=600, upper_w=700)
        await settled(s, job, 2)
        await until(lambda: busy(s) <= 2, "what was lent before has ended")
        most = 0
        for _ in range(60):
            most = max(most, busy(s))
            await asyncio.sleep(0.01)
        assert most == 2
        assert (await rt.power())["draw_w"] == 640
        await rt.corridor(clear=True)
        await until(lambda: busy(s) == 4, "idle nodes are lent again")
        await c.cancel(futures)


@live(workers=2)
async def test_what_workers_have_measured_counts_in_place_of_the_model(c, s, a, b):
    rt = await dask_hpc.install(c, **WATTS)

    def say(worker: Any, watts: float, label: str = "measured") -> None:
        section = {"watts": watts, "label": label, "at_s": asyncio.get_running_loop().time(), "host": "h"}
        ws = s.workers[worker.address]
        ws.metrics = {**ws.metrics, "hpc": {"power": section}}

    for worker in (a, b):
        worker.periodic_callbacks["heartbeat"].stop()
    say(a, 123)
    say(b, 0, "unavailable")
    found = await rt.power()
    assert (found["draw_w"], found["label"], found["measured_nodes"]) == (193, "modelled", 1)
    say(b, 77)
    found = await rt.power()
    assert (found["draw_w"], found["label"], found["measured_nodes"]) == (200, "measured", 2)
    await rt.corridor(mode="monitor", upper_w=1000)
    async with rt.job("heat", nodes=2, min_nodes=2, max_nodes=2) as job:
        await started(s, job, 2)
        account, gate = s.extensions["hpc-corridor"]._books.account, Gate()
        began_s = account.last.t_s
        await until(lambda: account.last.t_s > began_s + 0.3, "more samples than are enough")
        assert record(s, job).request.power_by_nodes == (), "idle nodes say nothing of it"
        tasks = [c.submit(gate.wait, number) for number in range(8)]

        def heard() -> bool:
            # the same of both: one may end its tasks before the other
            say(a, 100)
            say(b, 100)
            return record(s, job).request.power_by_nodes == ((2, 100.0),)

        await until(heard, "it is measured")
        gate.open()
        await c.gather(tasks)
    # the next one of its name is known as it comes: it may start before there is a tick
    async with rt.job("heat", nodes=2) as again:
        await started(s, again, 2)
        views = [one for row in engine(s).state.records if isinstance(row, Pass) for one in row.snapshot.jobs]
        assert next(one for one in views if one.id == again.id).power_by_nodes == ((2, 100.0),)
    await rt.corridor(clear=True)


def sampled(s: Any) -> set[str]:
    """Workers whose last heartbeat carried what their host draws."""
    return {address for address, ws in s.workers.items() if "power" in ws.metrics.get("hpc", {})}


@live(workers=2)
async def test_workers_sample_while_a_corridor_is_set_and_what_they_measure_counts(c, s, *workers):
    series = Path(workers[0].local_directory) / "watts.csv"
    series.write_text("t_s,watts\n0,300\n1,300\n")
    rt = await dask_hpc.install(c, policy="fcfs", **WATTS)
    with dask.config.set({"hpc.power.source": "replay", "hpc.power.file": str(series)}):
        await until(lambda: all("hpc_power" in worker.handlers for worker in workers), "workers are equipped")
        assert not sampled(s)
        await rt.corridor(upper_w=900, mode="monitor")
        await until(lambda: sampled(s) == set(s.workers), "all sample")
        late = await Worker(s.address, nthreads=1)
        try:
            await until(lambda: sampled(s) == set(s.workers) and len(s.workers) == 3, "who joins, too")
            await until(lambda: engine(s).state.nodes.at.get(late.address) is not None, "it is known")
            found = {}
            end_s = time.monotonic() + PATIENCE_S
            # until all have told again, parts of one that has joined come twice
            while found.get("draw_w") != pytest.approx(300, abs=1) and time.monotonic() < end_s:
                found = await rt.power()
                await asyncio.sleep(0.05)
            # one host: what its workers draw adds up to it
            assert (found["label"], found["draw_w"]) == ("measured", pytest.approx(300, abs=1))
            await rt.corridor(clear=True)
            await until(lambda: not sampled(s), "none samples any more")
        finally:
            await late.close()
