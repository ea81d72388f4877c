"""Who takes turns with whom, and in which order: the rules alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dask_hpc.scheduler.internals.allotment import HOLD, AllotmentSet
from dask_hpc.scheduler.placing import sharing as of_sharing
from dask_hpc.scheduler.placing.sharing import Sharing
from dask_hpc.scheduler.placing.turns import Turns
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc_policies.jobs.jobspec import job_spec, resolve


class Kind(SimpleNamespace):
    """What stands in a table, as prefixes of tasks and nodes do."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class World:
    """Jobs that share nodes, and those that do not."""

    def __init__(self, **jobs: dict[str, Any]) -> None:
        self.common, self.now_s = AllotmentSet(), 0.0
        self.jobs: dict[str, JobRecord] = {}
        self.order: list[Any] = []
        self.state: Any = SimpleNamespace(
            common=self.common,
            in_turn=True,
            settings=SimpleNamespace(lend_s=5.0),
            now_s=lambda: self.now_s,
            jobs=SimpleNamespace(active=self.jobs, named=[]),
            nodes_of=lambda job: [job.id],
            join_common=lambda job: setattr(job.lanes["rest"], "restriction", self.common),
            leave_common=lambda job: setattr(job.lanes["rest"], "restriction", job.allotment),
            owner={},
            scheduler=SimpleNamespace(
                running=[SimpleNamespace(nthreads=2)], queued=[], task_prefixes={}, UNKNOWN_TASK_DURATION=0.5
            ),
        )
        for name, how in jobs.items():
            self.come(name, **how)
        self.turns = Turns(self.state, self.order.append)
        #: Nodes that are kept by a part, by the job that has them.
        self.kept: set[str] = set()
        parts: Any = SimpleNamespace(lends=lambda node: node not in self.kept)
        self.sharing = Sharing(self.state, parts, self.turns, lambda ts: False)

    def come(self, name: str, plain: bool = False, common: bool = True, **spec: Any) -> JobRecord:
        asked = job_spec(name, **spec)
        job = JobRecord(name, asked, resolve(asked, 4), client=None, is_default=plain)
        if common and not plain:
            job.lanes["rest"].restriction = self.common
        self.jobs[name] = job
        if not plain:
            self.state.jobs.named.append(job)
        return job

    def looked(self, *wanting: str) -> list[str]:
        """Who takes turns when these have held tasks."""
        self.sharing.look(lambda job: job.id in wanting)
        return sorted(job.id for job in self.sharing.waiting)


def held(number: int, kind: str = "kind", duration_s: float = -1.0) -> Any:
    prefix = Kind(name=kind, duration_average=duration_s)
    where = {"state": "no-worker", "worker_restrictions": HOLD, "priority": (0, number, 0)}
    return SimpleNamespace(key=f"{kind}-{number}", prefix=prefix, **where)


def test_who_takes_turns_is_who_wants_a_slot_and_has_none_or_shares_with_others_that_do() -> None:
    world = World(a={}, b={}, alone={"nodes": 1, "common": False}, producer={"common": False})
    for name in ("a", "b", "alone", "producer"):
        world.jobs[name].allotment.grant([name])
    assert world.looked() == world.looked("alone") == world.looked("a") == []
    assert world.looked("a", "b") == ["a", "b"]
    # what the other has sent is in the way, whether it holds more or not
    world.jobs["b"].processing = 1
    assert world.looked("a") == ["a", "b"]
    assert world.looked("b") == []
    # that of one that is no part of it is not
    world.jobs["b"].processing, world.jobs["producer"].processing = 0, 1
    assert world.looked("a") == []
    # who has a producer keeps to its nodes
    assert world.looked("a", "producer") == ["a"]
    # one without a node waits for its turn in any case
    world.come("late")
    assert (world.looked("late"), world.sharing.with_plain) == (["late"], False)
    world.come("plain", plain=True)
    assert (world.looked("plain", "late"), world.sharing.with_plain) == (["late", "plain"], True)
    # one that asked for nodes waits for these
    world.come("wide", nodes=3, common=False)
    assert world.looked("wide") == []
    passed: list[int] = []
    world.turns.advance = lambda: passed.append(1)  # type: ignore[method-assign]
    assert (world.looked("late"), passed) == (["late"], [1])
    world.state.in_turn = False
    assert world.looked("a", "b", "late") == ["late"]
    world.state.in_turn, world.state.settings.lend_s = True, 0.0
    assert world.looked("a", "b", "late") == []


def test_a_sweep_finds_who_shares_nodes_no_more_or_does_again() -> None:
    world = World(a={}, b={}, alone={"nodes": 1, "common": False})
    assert world.sharing.sweep() == []
    # its node is pinned
    world.kept.add("a")
    a = world.jobs["a"]
    assert (world.sharing.sweep(), a.reach) == ([a], a.allotment)
    assert world.sharing.sweep() == []
    world.kept.clear()
    assert (world.sharing.sweep(), a.reach) == ([a], world.common)
    assert len(world.order) == 1, "tasks are ordered from then on"
    world.state.settings.lend_s = 0.0
    assert world.sharing.sweep() == [a, world.jobs["b"]]
    world.state.settings.lend_s, world.state.in_turn = 5.0, False
    assert world.sharing.sweep() == []


def test_who_has_had_less_is_served_first_and_who_has_gone_is_forgotten() -> None:
    world = World(first={}, second={})
    for name, count in (("first", 20), ("second", 2)):
        job = world.jobs[name]
        for number in range(count):
            ts = held(number, name, 1.0)
            job.park(ts)
            job.expected.came(ts.prefix)
        job.unfinished = job.held = count
    turns = world.turns
    turns.advance()
    assert [turns.place(world.jobs[name]) for name in ("first", "second")] == [1, 0]
    assert turns.place(SimpleNamespace(id="unknown")) == 2  # type: ignore[arg-type]
    assert set(turns.ends_in_s()) == {"first", "second"}
    turns.left(world.jobs.pop("second"))
    assert set(turns.ends_in_s()) == {"first"}
    turns.advance()
    assert set(turns.ends_in_s()) == {"first"}


def test_tasks_that_share_nodes_are_ordered_by_the_end_of_their_job() -> None:
    world = World(long={}, short={"priority": 0}, alone={"nodes": 1, "common": False})
    for name, count in (("long", 20), ("short", 2)):
        job = world.jobs[name]
        for _ in range(count):
            job.expected.came(held(0, name, 1.0).prefix)
        job.unfinished = count
    world.turns.advance()
    long, short, alone = (world.jobs[name] for name in ("long", "short", "alone"))
    assert world.turns.turn(alone) is None
    ends = {job.id: world.turns.turn(job, since=3.0) for job in (long, short)}
    assert [ends[name][:2] for name in ends] == [(3.0, 0), (3.0, 0)]  # type: ignore[index]
    assert ends["short"][2] < ends["long"][2]  # type: ignore[index]
    # it does not move when nothing has come
    assert world.turns.turn(long, since=9.0) == ends["long"]
    for _ in range(100):
        short.expected.came(held(0, "short", 1.0).prefix)
    assert world.turns.turn(short)[2] > ends["long"][2]  # type: ignore[index]
    # plain work is in no order before anybody shares nodes
    plain = world.come("plain", plain=True)
    assert world.turns.turn(plain) is None
    world.common.grant(["a"])
    assert world.turns.turn(plain) is not None
    assert world.turns.turn(alone) is None


@pytest.mark.parametrize("ordered", [True, False])
def test_what_is_of_no_job_has_no_turn(ordered: bool) -> None:
    world = World(job={})
    job, ts = world.jobs["job"], held(7)
    assert world.turns._turn_of(ts) is None
    world.state.owner[ts.key] = SimpleNamespace(job=job, kind="rest")
    if not ordered:
        ts.priority = None
    assert world.turns._turn_of(ts)[0] == (7 if ordered else 0)  # type: ignore[index]


def test_what_plain_work_has_left_is_told_by_its_next_task_held_or_in_stocks_queue() -> None:
    world = World(plain={"plain": True})
    plain, other = world.jobs["plain"], world.come("other", plain=True)
    first, queued = held(0, "held", 2.0), held(1, "queued", 3.0)
    assert world.turns._next(plain) is None
    world.state.scheduler.queued = Queue([queued])
    assert world.turns._next(plain) is None, "of nobody"
    world.state.owner[queued.key] = SimpleNamespace(job=other)
    assert (world.turns._next(plain), world.turns._next(other)) == (None, queued)
    plain.park(first)
    assert world.turns._next(plain) is first


class Queue(list[Any]):
    """As stock's."""

    def peek(self) -> Any:
        return self[0]


def test_time_that_has_passed_is_served_once_and_who_is_done_then_has_another_turn() -> None:
    world = World(job={}, other={})
    turns, job = world.turns, world.jobs["job"]
    for _ in range(10):
        job.expected.came(held(0, "job", 1.0).prefix)
    job.unfinished, job.processing = 10, 2
    turns.advance()
    first = turns.turn(job, since=3.0)
    assert (first, job.expected.grown) == (turns.turn(job, since=4.0), False)
    world.now_s = 1.0
    turns.advance()
    left_s = turns.ends_in_s()["job"]
    assert left_s < 10.0
    turns.advance()
    assert turns.ends_in_s()["job"] == left_s
    assert turns.turn(job, since=4.0) == first
    world.now_s, job.unfinished = 1000.0, 0
    turns.advance()
    assert turns.turn(job, since=4.0)[0] == 4.0  # type: ignore[index]
    # what nobody wanted any more before it ran keeps nobody waiting
    job.unfinished, job.expected.done_s = 5, 6.0
    turns.advance()
    assert turns._virtual.works["job"].left_s > 0.0
    turns.completed(job)
    assert turns._virtual.works["job"].left_s == 0.0
    turns.completed(world.come("unknown"))
    # and who takes plain work over answers for what that has had
    heir = world.jobs["other"]
    turns.inherit(job, heir)
    assert (job.expected.done_s, heir.expected.done_s) == (0.0, 6.0)
    assert "job" not in turns._virtual.works


def test_where_several_plain_jobs_hold_a_node_each_of_them_counts() -> None:
    world = World(node={}, late={}, first={"plain": True}, second={"plain": True})
    first, second, node, late = (world.jobs[name] for name in ("first", "second", "node", "late"))
    node.allotment.grant(["b"])
    at = Kind(serves=True)
    world.state.nodes = SimpleNamespace(at={"a": at})
    world.state.serving, world.state.served_by = {}, lambda address: [first, second]
    world.sharing._turns = SimpleNamespace(place=[late, first, second, node].index)  # type: ignore[assignment]
    sharing = world.sharing
    sharing.waiting = [node, late, second]
    assert sharing.on("a") == [late, first, second, node]
    first.unfinished = 1
    assert sharing.on("a") == [late, first, second], "who has a node leaves it to them"
    sharing.waiting = [first, node, second]
    assert sharing.on("a") == [first, second]
    first.unfinished = 0
    assert sharing.on("a") == [first, node, second]


def test_turns_are_dealt_where_there_is_a_slot_or_more_to_overtake_than_executes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(job={}, other={})
    job, sharing = world.jobs["job"], world.sharing
    workers: list[Any] = [
        SimpleNamespace(address=address, nthreads=1, free=free, later=range(later), processing=range(5))
        for address, free, later in (("slot", 1, 0), ("one", 0, 1), ("two", 0, 2), ("alone", 1, 2))
    ]
    monkeypatch.setattr(of_sharing.reads, "free_slots", lambda scheduler, ws: ws.free)
    monkeypatch.setattr(of_sharing.crowds, "later", lambda scheduler, ws, first: ws.later)
    sharing.on = lambda address: [job] if address == "alone" else [job, world.jobs["other"]]  # type: ignore
    assert sharing.addresses(workers) == set()
    sharing.waiting = [job]
    assert sharing.addresses(workers) == {"slot"}, "it holds nothing that could be first anywhere"
    job.park(held(1))
    assert sharing.addresses(workers) == {"slot", "two"}
    assert sharing.turn([job], "slot") == (job, job.first())
    monkeypatch.setattr(sharing, "overtaken", lambda ws, job, ts: 3)
    assert [sharing.before(workers[0], jobs) for jobs in ([job], [])] == [3, 5]
    # one that is in no order overtakes nobody
    job.lanes["rest"].restriction = job.allotment
    assert sharing.addresses(workers) == {"slot"}
