"""Parts: what a part of the runtime takes part in is asked, in order, and what it says has its effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from distributed.utils_test import captured_logger
from helpers import Gate, asleep, engine, live, record, started, through, traces_of_ours, until
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.resizing.rules import easiest
from dask_hpc.scheduler.tables import parts as of_parts
from dask_hpc.scheduler.tables.nodes import NodeTable
from dask_hpc.scheduler.tables.parts import Parts, registered
from dask_hpc_policies import registry
from dask_hpc_policies.decision import ACTIONS, Action, Decision, Outcome, Reason, ReasonCode, register


class Part:
    """A part that has the methods it is given."""

    def __init__(self, **methods: Callable[..., Any]) -> None:
        vars(self).update(methods)


def why(text: str) -> Reason:
    return Reason(ReasonCode.KEPT, text)


def test_costs_stand_in_order_and_the_first_veto_counts() -> None:
    parts = Parts()
    parts.add(
        Part(cost=lambda node: (2,), veto=lambda subject, action: None),
        Part(cost=lambda node: (0, 7), veto=lambda subject, action: why("first")),
        Part(veto=lambda subject, action: why("second")),
    )
    assert parts.cost(SimpleNamespace()) == (2, 0, 7)
    found = parts.veto(SimpleNamespace(), None)
    assert found is not None
    assert found.text == "first"
    assert Parts().veto(SimpleNamespace(), None) is None


@pytest.mark.errors("Failing has failed in tick")
def test_a_part_that_fails_now_and_then_keeps_none_from_its_turn_and_is_said() -> None:
    class Failing:
        broken = True

        def tick(self, now_s: float) -> None:
            if self.broken:
                raise ValueError("no such file")

    turns: list[float] = []
    parts, failing = Parts(), Failing()
    parts.add(failing, Part(tick=turns.append))
    parts.tick(1.0)
    parts.tick(2.0)
    assert turns == [1.0, 2.0]
    assert parts.failed == {("Failing", "tick"): "ValueError: no such file"}
    failing.broken = False
    parts.tick(3.0)
    assert (turns[-1], parts.failed) == (3.0, {})


@pytest.mark.errors("Failing has failed in")
def test_a_part_that_lends_or_saves_again_is_not_said_to_fail_and_is_in_the_log_once() -> None:
    class Failing:
        broken = True

        def lends(self, node: Any) -> bool:
            if self.broken:
                raise ValueError("no such node")
            return True

        async def leave(self, departure: Any) -> bool:
            return self.lends(departure)

    node: Any = SimpleNamespace()
    parts, failing = Parts(), Failing()
    parts.add(failing)
    with captured_logger(of_parts.logger) as log:
        for _ in range(2):
            failing.broken = True
            assert parts.lends(node)
            assert not asyncio.run(parts.leave(node))
            assert set(parts.failed) == {("Failing", "lends"), ("Failing", "leave")}
            failing.broken = False
            assert parts.lends(node)
            assert asyncio.run(parts.leave(node))
            assert parts.failed == {}
    assert log.getvalue().count("has failed in lends") == 1


@pytest.mark.errors("Choosy has failed in lends")
def test_a_part_that_fails_for_some_nodes_over_and_over_fills_no_log() -> None:
    class Choosy:
        def lends(self, node: Any) -> bool:
            if node.number % 2:
                raise KeyError(node.number)
            return True

    parts = Parts()
    parts.add(Choosy())
    nodes: list[Any] = [SimpleNamespace(number=number) for number in range(100)]
    with captured_logger(of_parts.logger) as log:
        for node in nodes[:6] * 5:
            parts.lends(node)
        assert log.getvalue().count("has failed in lends") == 3, "each once"
        for node in nodes:
            parts.lends(node)
    assert log.getvalue().count("has failed in lends") == of_parts._LOGGED
    assert parts.failed == {("Choosy", "lends"): "KeyError: 99"}


def test_of_several_nodes_those_that_cost_least_are_given_up_and_equal_ones_in_order() -> None:
    table = NodeTable("worker")
    costs = {"a": (1, 0), "b": (0, 2), "c": (0, 0), "d": (0, 2)}
    for name in costs:
        table.join(f"tcp://{name}", name=name, host=name, nthreads=1, memory_bytes=1)
    nodes = list(table.nodes.values())

    def given_up(count: int) -> list[str]:
        return [node.id for node in easiest(nodes, count, lambda node: costs[node.id])]

    assert [given_up(count) for count in (0, 1, 2, 3)] == [[], ["c"], ["c", "b"], ["c", "b", "d"]]
    table.leave("tcp://c")
    assert given_up(1) == ["b"], "one that was lost is not there to be given up"


def test_what_was_put_in_last_is_taken_out_first() -> None:
    order: list[str] = []
    parts = Parts()
    parts.add(Part(unwrap=lambda: order.append("first")), Part(unwrap=lambda: order.append("second")))
    parts.unwrap()
    assert order == ["second", "first"]


def test_a_method_that_only_has_the_name_of_a_parts_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Part\.leave takes other arguments"):
        Parts().add(Part(leave=lambda: None))


@live(4)
async def test_a_job_gets_the_nodes_that_suit_it_best_and_the_reason_is_told(c, s, *workers):
    def last_first(job: Any, nodes: Any) -> Any:
        return sorted(nodes, key=lambda node: node.id, reverse=True), why("the last ones are near its data")

    with registered(lambda engine: Part(rank=last_first)):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("first", nodes=4) as job:
            await started(s, job, 4)
            names = sorted(record(s, job).nodes)
        await job.wait(10)
        async with rt.job("main", min_nodes=2, max_nodes=4) as job:
            await started(s, job, 4)
            await job.resize(2)
            await job.resize(3)
            outcomes = [one.outcome for one in engine(s).state.records if hasattr(one, "outcome")]
    assert len(names) == 4
    assert [one.reason.text for one in outcomes if one.action.TAG in ("start", "expand")] == [
        "the last ones are near its data"
    ] * 3


@live(2)
async def test_a_worker_gets_no_more_tasks_than_a_part_allows(c, s, a, b):
    open_slots = {"main": 0}

    def slots(job: Any, worker: Any) -> int:
        return open_slots.get(job.name, 1000)

    with registered(lambda engine: Part(slots=slots)):
        rt = await dask_hpc.install(c)
        gate = Gate()
        gate.open()
        async with rt.job("main", nodes=1) as job:
            await started(s, job, 1)
            futures = c.map(through, range(6), gate=gate, pure=False)
            await until(lambda: record(s, job).held == 6, "all are held")
            passes = engine(s).admission._counter
            await until(lambda: engine(s).admission._counter > passes + 2, "admission has looked again")
            assert gate.arrived == 0
            open_slots["main"] = 1
            assert await c.gather(futures) == list(range(6))


@live(2)
async def test_the_runtime_is_awake_while_a_part_needs_it_and_parts_hear_ticks(c, s, a, b):
    need = {"now": True}
    ticks: list[float] = []
    with registered(lambda engine: Part(needed=lambda: need["now"], tick=ticks.append)):
        rt = await dask_hpc.install(c, tick_s=0.05)
        async with rt.job("main", nodes=1):
            assert await c.submit(inc, 1) == 2
        await until(lambda: not engine(s).state.jobs.named, "no job is left")
        seen = len(ticks)
        await until(lambda: len(ticks) > seen + 2, "it ticks on")
        assert engine(s).awake
        assert ticks == sorted(ticks)
        need["now"] = False
        engine(s).rest()
        await asleep(s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Action):
    """A kind of action that allots nothing."""

    TAG: ClassVar[str] = "note-of-test"
    job: str
    reason: Reason


class Notes:
    """A policy that decides as fcfs does, and notes every job that runs."""

    name = "notes"

    def __init__(self) -> None:
        self.fcfs = registry.create("fcfs")

    def initial_state(self) -> Any:
        return self.fcfs.initial_state()

    def decide(self, view: Any, state: Any) -> tuple[Decision, Any]:
        decision, state = self.fcfs.decide(view, state)
        notes = [Note(job=job.id, reason=why("it runs")) for job in view.running]
        return replace(decision, actions=(*decision.actions, *notes)), state


@pytest.mark.parametrize("known", [True, False])
@live(2)
async def test_a_kind_of_action_is_carried_out_by_its_part_or_refused(c, s, a, b, known, monkeypatch):
    monkeypatch.setitem(ACTIONS, Note.TAG, Note)
    assert register(Note) is Note
    done: list[str] = []

    def carry_out(action: Note) -> Outcome:
        done.append(action.job)
        return Outcome(action=action, result="done", reason=action.reason)

    def make(engine: Any) -> Part:
        return Part(enactors=lambda: {Note: carry_out} if known else {})

    with registered(make):
        rt = await dask_hpc.install(c, Notes(), tick_s=0.05)
        async with rt.job("main", nodes=1) as job:
            await started(s, job, 1)

            def told() -> Any:
                return [row for row in engine(s).controller.decisions if row["action"] == Note.TAG]

            rows = await until(told, "it was decided")
            assert rows[0]["result"] == ("done" if known else "refused")
            assert rows[0]["reason_code"] == ("kept" if known else "unsupported")
            assert set(done) == ({job.id} if known else set())


ANSWERS = """
def double(question, tell):
    if question["size"] < 0:
        raise ValueError("size is below 0")
    return 2 * question["size"]
"""


class Sees(Notes):
    """A policy that decides as fcfs does, and keeps what it was shown."""

    name = "sees"
    seen: ClassVar[list[tuple[str, Any]]] = []

    def decide(self, view: Any, state: Any) -> tuple[Decision, Any]:
        self.seen.append((view.trigger, view.sections.get("answers", {}).get("sizes", {}).get("result")))
        return self.fcfs.decide(view, state)  # type: ignore[no-any-return]


@live(2)
async def test_answers_are_found_beside_the_loop_and_the_last_one_holds(c, s, a, b, tmp_path, monkeypatch):
    (tmp_path / "answers_of_tests.py").write_text(ANSWERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    rt = await dask_hpc.install(c, Sees(), tick_s=0.05)
    async with rt.job("main", nodes=1) as job:
        await started(s, job, 1)
        answers = engine(s).answers
        assert "answers" not in (await rt.snapshot()).sections
        for size in (1, 2, 3):
            answers.ask("sizes", "answers_of_tests:double", {"size": size}, cpu_s=20.0)
        # the first is asked at once, of those that come meanwhile the latest
        await until(lambda: answers.last("sizes") and answers.last("sizes").result == 6, "the latest")
        found = (await rt.snapshot()).sections["answers"]["sizes"]
        assert (found["question"], found["result"], found["error"]) == ({"size": 3}, 6, "")
        await until(lambda: ("answer", 6) in Sees.seen, "the policy has seen it, and why it was asked")
        answers.ask("sizes", "answers_of_tests:double", {"size": -1})
        await until(lambda: "sizes" not in answers._tasks, "it was asked")
        assert answers.last("sizes").result == 6
    processes = list(answers._processes.values())
    await rt.uninstall()
    await until(lambda: all(process._child is None for process in processes), "its process has ended")


@pytest.mark.errors("function has failed in")
@live(2)
async def test_a_part_that_fails_stops_no_pass_loses_no_task_and_is_told(c, s, a, b):
    def none() -> Any:
        raise ZeroDivisionError("no watts")

    def one(_: Any) -> Any:
        return none()

    def two(_: Any, __: Any) -> Any:
        return none()

    of_none = dict.fromkeys(("section", "enactors", "saving", "charted", "needed", "unwrap"), none)
    of_one = dict.fromkeys(("cost", "lends", "claimed", "reserved_s"), one)
    broken = Part(**of_none, **of_one, rank=two, slots=two)
    with registered(lambda engine: broken):
        rt = await dask_hpc.install(c, "pwma-fpsma")
        async with rt.job("main", min_nodes=1, max_nodes=2) as job:
            await started(s, job, 2)
            assert await c.gather(c.map(inc, range(6))) == [1, 2, 3, 4, 5, 6]
            assert (await job.resize(1))["result"] == "done"
        assert (await job.wait(10))["state"] == "completed"
        assert (await rt.status())["section_failures"] == {"function": "ZeroDivisionError: no watts"}
        await rt.uninstall()
    assert traces_of_ours(s) == []


@pytest.mark.errors("function has failed in slots")
@live(1)
async def test_a_part_that_limits_again_is_not_said_to_fail(c, s, a):
    fails = [True]

    def slots(_: Any, __: Any) -> int:
        if fails:
            raise ZeroDivisionError("no watts")
        return 1

    with registered(lambda engine: Part(slots=slots)):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("main", nodes=1):
            assert await c.gather(c.map(inc, range(3))) == [1, 2, 3]
            assert (await rt.status())["section_failures"] == {"function": "ZeroDivisionError: no watts"}
            fails.clear()
            assert await c.gather(c.map(inc, range(3, 6))) == [4, 5, 6]
            assert (await rt.status())["section_failures"] == {}


@pytest.mark.errors("function has failed in veto")
@live(2)
async def test_a_veto_that_fails_holds_a_job_like_a_guard(c, s, a, b):
    fails = [True]

    def veto(_: Any, __: Any) -> Any:
        if fails:
            raise ZeroDivisionError("no watts")

    with registered(lambda engine: Part(veto=veto)):
        rt = await dask_hpc.install(c, "fcfs", tick_s=0.05)
        async with rt.job("main", nodes=1) as job:
            told = "a veto failed: ZeroDivisionError: no watts"
            feed = engine(s).controller.decisions
            await until(lambda: told in [row["reason"] for row in feed], "it is told")
            assert record(s, job).state == "pending"
            fails.clear()
            await started(s, job, 1)
        assert (await rt.status())["section_failures"] == {}


@pytest.mark.errors("A guard failed")
@live(2)
async def test_a_guard_that_fails_holds_everything_and_is_told(c, s, a, b):
    def guards() -> Any:
        raise ZeroDivisionError("no watts")

    with registered(lambda engine: Part(guards=guards)):
        rt = await dask_hpc.install(c, "fcfs", tick_s=0.05)
        job = rt.job("main", nodes=1)
        async with job:
            await until(lambda: "a guard failed" in record(s, job).reason, "it is told")
            assert record(s, job).state == "pending"
            await asyncio.wait_for(job.cancel(), 10)
