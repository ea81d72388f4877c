"""What parts of the runtime tell about themselves reaches whoever reads the status, by name."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import ClassVar

import pytest
from click.testing import CliRunner
from distributed.utils_test import captured_logger
from helpers import live, started

import dask_hpc
from dask_hpc.cli import hpc
from dask_hpc.scheduler.rpc import status
from dask_hpc.scheduler.tables import parts
from dask_hpc.trace.files import parse_trace, read_trace
from dask_hpc.trace.records import DRAW, LENDING, JobEvent, Other, decode_line, encode_line
from dask_hpc_policies import registry
from dask_hpc_widgets import static, views
from dask_hpc_widgets.views import Picture, View


class Meter:
    """A part of another capability."""

    def __init__(self, engine):
        self.engine = engine

    def status(self):
        return {"power": {"measured_w": 42.5, "nodes": self.engine.state.nodes.up()}}


class Broken:
    def __init__(self, engine):
        pass

    def status(self):
        raise OSError("no sensor")


def drawn(picture):
    return f"{picture.section('power')['measured_w']} W"


@pytest.mark.errors("Broken has no section of the status to give")
@live(2)
async def test_a_part_adds_a_section_and_one_that_fails_says_so_once(c, s, a, b, monkeypatch):
    with parts.registered(Meter), parts.registered(Broken), captured_logger(status.logger) as log:
        rt = await dask_hpc.install(c)
        found = await rt.status()
        again = await rt.channel.ask("picture", ended=0, decisions=0)
    assert found["sections"] == ["losses", "power"]
    assert found["power"] == {"measured_w": 42.5, "nodes": 0}
    assert found["section_failures"] == {"Broken": "OSError: no sensor"}
    assert log.getvalue().count("no section of the status") == 1
    picture = Picture(**again)
    assert picture.section("power") == found["power"]
    assert picture.section("nothing") is None
    assert (await rt.update(tick="1 s"))["sections"] == ["losses", "power"]

    monkeypatch.setattr(views, "_views", dict(views._views))
    watts = View(name="watts", title="Power drawn", section="power", html=drawn)
    views.register(watts)
    assert watts.is_in(picture)
    twin = static.runtime_html("here", {"status": found, "jobs": []})
    assert "Power drawn" in twin
    assert "42.5 W" in twin
    command = ["status", "--address", s.address]
    shown = await c.loop.run_in_executor(None, lambda: CliRunner().invoke(hpc, command))
    assert "power:\n  measured w  42.50\n  nodes       0\n" in shown.output


def test_who_watches_gets_what_nodes_and_jobs_have_done_since_or_all_that_is_known():
    records, state = deque(maxlen=3), SimpleNamespace(records=(), recorded=0)
    methods = status.StatusMethods(SimpleNamespace(state=state), None, None)
    state.records = records

    def happens(record):
        records.append(record)
        state.recorded += 1

    def told(since):
        found = methods.happened(since)
        assert found["number"] == methods.happened()["number"]
        return [decode_line(line) for line in found["lines"]], found["whole"]

    begun = methods.happened()["number"]
    drawn_by = {"t_s": 2.0, "drawn_w": 50.0, "bill": {"heat-1": 50.0}}
    one, two = (JobEvent(t_s=t_s, job="heat-1", state="running") for t_s in (1.0, 3.0))
    happens(one)
    assert told(0) == ([one], True)
    seen = methods.happened()["number"]
    assert told(seen) == ([], False)
    happens(Other(kind=LENDING, data={"job": "heat-1"}))
    happens(Other(kind=DRAW, data=drawn_by))
    shown = Other(kind=DRAW, data={"t_s": 2.0, "drawn_w": 50.0})
    assert told(seen) == ([shown], False)
    assert told(begun) == ([one, shown], False), "all of it is kept"
    happens(two)
    assert told(seen) == ([shown, two], False)
    assert told(begun) == ([shown, two], True), "the first is not kept any more"
    assert told(seen + 100) == ([shown, two], True), "of an earlier installation"
    assert drawn_by["bill"], "who has drawn it is still in the trace"


class Odd:
    """A part that tells what neither a message nor JSON holds."""

    def __init__(self, engine):
        pass

    def section(self):
        return {"odd": {"now_w": float("nan"), "count": 10**30, "by": {"a": [float("inf"), object]}}}

    def status(self):
        return {"odd": {"now_w": float("nan"), "count": 10**30, "text": "\udc80", "by": {3: (1, 2)}}}


class Wide:
    """A part that tells what no message has room for."""

    told: ClassVar = {"wide": {"of": 10**400, "below": -(10**400), "by": {10**30: 1, "\udc80": 2, (3, 4): 5}}}

    def __init__(self, engine):
        pass

    def status(self):
        return self.told


class Large:
    """A policy of a user with a parameter that no message holds."""

    name, params, state_type = "large", {"limit": 10**30}, type(None)

    def initial_state(self):
        return None

    def decide(self, view, state):
        return registry.create("fcfs").decide(view, state)


@live(2)
async def test_what_cannot_be_sent_is_told_in_another_form_and_all_else_as_it_is(c, s, a, b, tmp_path):
    path = tmp_path / "trace.jsonl"
    with parts.registered(Odd):
        rt = await dask_hpc.install(c, Large(), trace_path=str(path))
        async with rt.job("main", nodes=1) as job:
            await started(s, job, 1)
            found = await rt.status()
            assert found["odd"] == {"now_w": "nan", "count": 1e30, "text": "'\\udc80'", "by": {3: [1, 2]}}
            assert found["policy"]["params"] == {"limit": 1e30}
            told = {"now_w": "nan", "count": 1e30, "by": {"a": ["inf", str(object)]}}
            assert (await rt.snapshot()).sections["odd"] == told
            [first, *_] = parse_trace(await rt.trace()).passes
            assert first.snapshot.sections["odd"] == {**told, "count": 10**30}
            assert (await rt.timeline()).note
        await rt.uninstall()
    assert read_trace(path).passes[0] == first


@pytest.mark.errors("Wide has no section of the status to give")
@live(1)
async def test_a_part_that_tells_what_has_no_end_keeps_the_status_from_nobody(c, s, a, monkeypatch):
    with parts.registered(Wide):
        rt = await dask_hpc.install(c)
        told = {"of": "inf", "below": "-inf", "by": {1e30: 1, "'\\udc80'": 2, (3, 4): 5}}
        assert (await rt.status())["wide"] == told
        endless = {}
        endless["wide"] = endless
        monkeypatch.setattr(Wide, "told", endless)
        found = await rt.status()
        assert (found["sections"], [*found["section_failures"]]) == (["losses"], ["Wide"])
        with pytest.raises(ValueError, match="nested too deeply"):
            encode_line(Other(kind="endless", data=endless))
