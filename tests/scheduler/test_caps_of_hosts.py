"""What hosts are asked for while the draw is above the bound, and what is made of what they answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dask_hpc.scheduler.power import caps
from dask_hpc.scheduler.power.caps import HostCaps
from dask_hpc.scheduler.power.draw import Host

READY = {"state": "ready", "least_w": 50.0, "most_w": 180.0, "silence_s": 30.0}
WRITTEN, RELEASED = {**READY, "state": "written"}, {"state": "released"}
REFUSED = {"state": "refused", "reason": "no leave", "remedy": "ask for it"}


class World:
    """Hosts that answer as they are told to, a clock, and what was asked and noted."""

    scheduler = None

    def __init__(self) -> None:
        self.at_s = 0.0
        self.asked: list[tuple[str, float | None, bool]] = []
        self.answers: dict[str, Any] = {}
        self.held = asyncio.Event()
        self.held.set()
        self.noted: list[str] = []
        self.recorded: list[Any] = []
        self.caps = HostCaps(self, lambda job, code, text: self.noted.append(text))  # type: ignore[arg-type]

    def now_s(self) -> float:
        return self.at_s

    def record(self, other: Any) -> None:
        self.recorded.append(other.data["state"])

    async def ask(
        self, scheduler: Any, address: str, handler: str, timeout_s: float, *, watts: Any, look: bool
    ) -> Any:
        self.asked.append((address, watts, look))
        await self.held.wait()
        said = self.answers.get(address) or (READY if look else RELEASED if watts is None else WRITTEN)
        if isinstance(said, Exception):
            raise said
        return said

    async def look(
        self, upper_w: float, draw_w: float, **hosts: Host
    ) -> list[tuple[str, float | None, bool]]:
        """What is asked at a look, once it is answered."""
        self.asked = []
        self.caps.look(upper_w, draw_w, hosts)
        for _ in range(4):
            await asyncio.sleep(0)
        return self.asked


def host(watts: float = 150.0, *addresses: str) -> Host:
    return Host(watts, addresses=list(addresses or ("tcp://a",)))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(caps.remote, "ask", made.ask)
    return made


def test_nobody_is_asked_below_the_bound_and_then_each_one_first_what_it_can_be_capped_at(world) -> None:
    async def go() -> None:
        assert await world.look(150.0, 150.0, one=host()) == []
        two = host(100.0, "tcp://b")
        assert await world.look(200.0, 250.0, one=host(), two=two) == [
            ("tcp://a", None, True), ("tcp://b", None, True),
        ]  # fmt: skip
        assert await world.look(200.0, 250.0, one=host(), two=two) == [
            ("tcp://a", 100.0, False), ("tcp://b", 100.0, False),
        ]  # fmt: skip
        assert world.noted == ["one is capped at 100 W", "two is capped at 100 W"]
        assert [(row["host"], row["watts"], row["state"]) for row in world.caps.told()] == [
            ("one", 100.0, "written"), ("two", 100.0, "written"),
        ]  # fmt: skip
        # below it the caps go
        assert await world.look(500.0, 250.0, one=host(), two=two) == [
            ("tcp://a", None, False), ("tcp://b", None, False),
        ]  # fmt: skip
        assert world.recorded == ["written", "written", "released", "released"]
        assert await world.look(500.0, 250.0, one=host(), two=two) == []

    asyncio.run(go())


def test_a_host_is_asked_one_thing_at_a_time(world) -> None:
    async def go() -> None:
        world.held.clear()
        assert len(await world.look(120.0, 150.0, one=host())) == 1
        world.at_s = 50.0
        assert await world.look(120.0, 150.0, one=host()) == []
        assert world.caps.told() == []
        world.held.set()
        await world.look(120.0, 150.0, one=host())
        world.held.clear()
        assert await world.look(120.0, 150.0, one=host()) == [("tcp://a", 120.0, False)]
        assert await world.look(100.0, 150.0, one=host()) == []
        world.held.set()

    asyncio.run(go())


def test_a_cap_is_asked_for_again_in_time_and_when_it_is_another_one(world) -> None:
    async def go() -> None:
        await world.look(120.0, 150.0, one=host())
        assert await world.look(120.0, 150.0, one=host()) == [("tcp://a", 120.0, False)]
        held = host(119.0)
        world.at_s = 9.9
        assert await world.look(121.0, 119.0, one=held) == [], "it is the same one to 2 %"
        # a third of the time after which it would end
        world.at_s = 10.0
        assert await world.look(120.0, 119.0, one=held) == [("tcp://a", 120.0, False)]
        assert await world.look(110.0, 119.0, one=held) == [("tcp://a", 110.0, False)]
        assert world.noted == ["one is capped at 120 W"], "it is said once"

    asyncio.run(go())


@pytest.mark.parametrize("answer", [REFUSED, OSError("gone")])
def test_who_refuses_is_asked_again_after_a_minute_and_that_is_said_once(world, answer: Any) -> None:
    async def go() -> None:
        world.answers["tcp://a"] = answer
        assert await world.look(120.0, 150.0, one=host()) == [("tcp://a", None, True)]
        world.at_s = 59.9
        assert await world.look(120.0, 150.0, one=host()) == []
        world.at_s = 60.0
        assert await world.look(120.0, 150.0, one=host()) == [("tcp://a", None, True)]
        assert world.recorded == ["refused"]
        (said,) = world.noted
        assert ("no leave; ask for it" if answer is REFUSED else "tcp://a does not answer") in said
        assert not said.endswith("; ")
        assert world.caps.told()[0]["watts"] is None

    asyncio.run(go())


def test_what_refuses_a_cap_has_none_and_is_looked_at_anew(world) -> None:
    async def go() -> None:
        await world.look(120.0, 150.0, one=host())
        world.answers["tcp://a"] = REFUSED
        await world.look(120.0, 150.0, one=host())
        assert world.caps.told() == [{"host": "one", "watts": None, **REFUSED}]
        world.at_s = 60.0
        world.answers.clear()
        assert await world.look(120.0, 150.0, one=host()) == [("tcp://a", None, True)]
        assert await world.look(120.0, 150.0, one=host()) == [("tcp://a", 120.0, False)]
        assert world.recorded == ["refused", "written"]

    asyncio.run(go())


def test_what_was_only_tried_is_not_said_to_end_and_nobody_is_asked_for_nothing(world) -> None:
    async def go() -> None:
        await world.look(120.0, 150.0, one=host())
        world.answers["tcp://a"] = {**READY, "state": "dry-run"}
        await world.look(120.0, 150.0, one=host())
        world.answers.clear()
        assert await world.look(500.0, 150.0, one=host()) == [("tcp://a", None, False)]
        assert world.recorded == ["dry-run"]
        # it draws more than it can be capped at
        for at_s in (20.0, 40.0):
            world.at_s = at_s
            assert await world.look(190.0, 200.0, one=host(200.0)) == []

    asyncio.run(go())


def test_of_a_host_whose_worker_has_gone_another_one_is_asked(world) -> None:
    async def go() -> None:
        await world.look(120.0, 150.0, one=host(150.0, "tcp://a", "tcp://b"))
        assert await world.look(120.0, 150.0, one=host(150.0, "tcp://b")) == [("tcp://b", None, True)]
        assert await world.look(120.0, 150.0, one=host(150.0, "tcp://b", "tcp://c")) == [
            ("tcp://b", 120.0, False)
        ]

    asyncio.run(go())


def test_a_host_that_measures_nothing_any_more_is_forgotten_once_its_cap_is_due(world) -> None:
    async def go() -> None:
        for _ in range(2):
            await world.look(120.0, 150.0, one=host())
        world.at_s = 9.9
        assert await world.look(120.0, 150.0) == []
        assert len(world.caps.told()) == 1
        world.at_s = 10.0
        assert await world.look(120.0, 150.0) == []
        assert world.caps.told() == []

    asyncio.run(go())


def test_at_the_end_those_that_are_capped_are_asked_and_no_others(world) -> None:
    async def go() -> None:
        world.answers["tcp://b"] = REFUSED
        for _ in range(2):
            await world.look(120.0, 250.0, one=host(), two=host(100.0, "tcp://b"))
        world.asked = []
        world.caps.end()
        await asyncio.sleep(0)
        assert world.asked == [("tcp://a", None, False)]
        assert world.caps.told() == []
        world.caps.end()
        await asyncio.sleep(0)
        assert len(world.asked) == 1

    asyncio.run(go())
