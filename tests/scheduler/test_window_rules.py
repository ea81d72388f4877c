"""When windows of producers open, are told of and end: the rules alone, on a clock of the tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dask_hpc.errors import WindowError
from dask_hpc.scheduler.resizing.windows import Windows
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc_policies.decision import Expand, Reason, ReasonCode, Steal
from dask_hpc_policies.jobs.jobspec import job_spec, resolve

WHY = Reason(ReasonCode.DONE, "")


class Pool:
    """Nodes of a producer and its windows; `told` is what it hears, `ended` how windows ended."""

    def __init__(self, *ids: str, **settings: float) -> None:
        self.now_s = 0.0
        self.told: list[dict[str, Any]] = []
        self.ended: list[tuple[bool, str]] = []
        self.given: list[str] = []
        self.left_common: list[str] = []
        self.noted: list[str] = []
        spec = job_spec("sim")
        self.job = JobRecord("sim", spec, resolve(spec, 4), client=None)
        self.job.state = "running"
        self.nodes: dict[str, Any] = {}
        self.come(*ids)
        self.clients = {"client": None}
        limits = {"window_timeout_s": 5.0, "client_timeout_s": 60.0, "tick_s": 1.0, "shrink_deadline_s": 20.0}
        state: Any = SimpleNamespace(
            now_s=lambda: self.now_s,
            settings=SimpleNamespace(**limits | settings),
            scheduler=SimpleNamespace(clients=self.clients),
            nodes=SimpleNamespace(nodes=self.nodes),
            nodes_of=lambda job: [node for node in self.nodes.values() if node.job == job.id],
            give=self.give,
            note_job=lambda job: self.noted.append(job.state),
            leave_common=lambda job: self.left_common.append(job.id),
        )
        ids_of_windows = iter(range(100, 200))
        self.windows = Windows(
            state, lambda: next(ids_of_windows), lambda event: self.told.append(event.message)
        )
        self.windows.register(self.job, "topic", "client")

    def come(self, *ids: str) -> None:
        for id in ids:
            self.nodes[id] = SimpleNamespace(id=id, job="sim", up=True, reserved=False)

    def give(self, nodes: list[Any], job: Any) -> None:
        for node in nodes:
            node.job = None
            self.given.append(node.id)

    def open(self, id: int = 1, **how: Any) -> None:
        self.windows.open(self.job, id, done=lambda *how: self.ended.append((how[0], how[1].text)), **how)

    def at(self, now_s: float) -> list[tuple[bool, str]]:
        """How windows have ended by then."""
        self.now_s = now_s
        self.windows.poll()
        return self.ended

    @property
    def heard(self) -> list[str]:
        return [message["window"] for message in self.told]


def test_each_step_of_a_window_has_the_whole_time() -> None:
    pool = Pool("a")
    pool.come("b")
    pool.open(joining=["b"])
    assert (pool.at(4.9), pool.heard) == ([], ["join"])
    with pytest.raises(WindowError, match="its joiners are not ready yet"):
        pool.windows.begin(pool.job, 1)
    pool.windows.joined(pool.job, 1)
    pool.windows.joined(pool.job, 1)  # a second word of it changes nothing
    assert (pool.at(9.8), pool.heard) == ([], ["join", "pending"])
    assert pool.windows.begin(pool.job, 1)["joining"] == ["b"]
    assert pool.at(14.7) == []
    assert pool.windows.commit(pool.job, 1) == ["a", "b"]
    # what held it up is the change alone, and not the wait for its step boundary
    assert pool.windows.section() == {"resizes": {"sim": {"expand_s": pytest.approx(4.9), "expands": 1}}}
    assert pool.ended == [(True, "carried out")]
    with pytest.raises(WindowError, match="no window is open"):
        pool.windows.commit(pool.job, 1)


@pytest.mark.parametrize("step", ["join", "tell", "begin"])
def test_a_step_that_does_not_come_ends_the_window_when_its_time_is_up(step: str) -> None:
    pool = Pool("a")
    pool.come("b")
    pool.open(joining=["b"])
    if step != "join":
        pool.windows.joined(pool.job, 1)
    if step == "begin":
        pool.windows.begin(pool.job, 1)
    assert pool.at(4.9) == []
    what = {
        "join": "joiners are not ready",
        "tell": "its step boundary has not come",
        "begin": "its layout has not changed",
    }[step]
    text = f"{what} after 5 s (hpc.window-timeout); the old size goes on"
    assert pool.at(5.0) == [(False, text)]
    assert pool.told[-1] == {"window": "aborted", "job": "sim", "reconfig_id": 1, "reason": text}
    assert pool.windows.producers["sim"].members == ["a"]
    assert not pool.windows.active


def test_a_window_ends_when_any_node_of_it_is_lost_also_one_that_has_not_joined_yet() -> None:
    for lost in "ab":
        pool = Pool("a")
        pool.come("b")
        pool.open(joining=["b"])
        del pool.nodes[lost]
        assert pool.at(0.0) == [(False, f"node {lost} was lost during window 1")]


def test_a_loss_is_told_again_until_the_producer_is_at_a_boundary_and_has_as_long_as_it_takes() -> None:
    pool = Pool("a", "b")
    del pool.nodes["b"]
    assert (pool.at(0.0), pool.heard, pool.job.state) == ([], ["pending"], "adapting")
    pool.at(4.9)
    assert pool.heard == ["pending"]
    pool.at(5.0)
    assert pool.heard == ["pending", "pending"]
    pool.windows.begin(pool.job, 100)
    pool.at(99.0)
    assert pool.heard == ["pending", "pending"]
    assert pool.windows.commit(pool.job, 100) == ["a"]
    # nobody has decided it, so that it is no shrink
    assert pool.windows.section() == {}
    assert (pool.job.state, pool.job.reconfig_id, pool.noted) == ("running", 0, ["running"])


def test_nodes_that_came_back_and_cannot_join_are_of_use_to_others() -> None:
    pool = Pool("a")
    pool.come("b")
    pool.at(0.0)
    assert pool.heard == ["join"]
    pool.windows.abort(pool.job, 100, "no room")
    assert (pool.given, pool.job.no_grow_before_s, pool.job.state) == (["b"], 20.0, "running")
    # one that comes next is asked a tick later
    pool.come("c")
    pool.at(0.9)
    assert pool.heard == ["join", "aborted"]
    pool.at(1.0)
    assert pool.heard == ["join", "aborted", "join"]


def test_what_has_come_for_members_that_are_all_lost_is_kept_also_when_it_is_not_ready_in_time() -> None:
    pool = Pool("a", "b")
    pool.nodes.clear()
    pool.come("c")
    pool.at(0.0)
    assert (pool.told[0]["joining"], pool.told[0]["leaving"]) == (["c"], ["a", "b"])
    # nobody waits for what is not there
    assert pool.at(4.9) == []
    pool.at(5.0)
    assert (pool.heard[-1], pool.told[-1]["reason"][:24]) == ("aborted", "joiners are not ready af")
    assert (pool.given, pool.job.no_grow_before_s) == ([], 0.0)
    # of some that are lost, first those leave
    pool = Pool("a", "b")
    del pool.nodes["b"]
    pool.come("c")
    pool.at(0.0)
    assert (pool.told[0]["joining"], pool.told[0]["leaving"]) == ([], ["b"])


def test_what_cannot_join_is_given_away_by_its_job_alone() -> None:
    pool = Pool("a")
    pool.come("b")
    pool.at(0.0)
    pool.job.state = "completed"
    pool.windows.abort(pool.job, 100, "it has ended")
    assert pool.given == []


def test_a_node_that_is_promised_to_somebody_or_is_anothers_is_no_member() -> None:
    pool = Pool("a")
    assert (pool.left_common, pool.at(0.0), pool.heard) == (["sim"], [], [])
    pool.come("b")
    pool.nodes["b"].reserved = True
    pool.at(0.0)
    assert pool.heard == []
    pool.nodes["b"].reserved = False
    pool.open(joining=["b"])
    with pytest.raises(WindowError, match="window 2 of sim is over or never was; window 1 is open"):
        pool.windows.joined(pool.job, 2)
    pool.nodes["b"].job = "other"
    assert pool.at(0.0) == [(False, "node b was lost during window 1")]


def test_no_window_opens_unasked_while_the_job_changes_anyway_or_has_no_node() -> None:
    pool = Pool("a")
    pool.come("b")
    pool.job.reconfig_id = 7
    pool.at(0.0)
    pool.job.reconfig_id, pool.job.state = 0, "adapting"
    pool.at(0.0)
    pool.job.state = "running"
    for node in pool.nodes.values():
        node.up = False
    pool.at(0.0)
    assert pool.heard == []


def test_what_a_producer_may_not_suffer() -> None:
    pool = Pool("a")
    pool.come("free")
    windows, job = pool.windows, pool.job
    other: Any = SimpleNamespace(id="other")
    grow = Expand(job="sim", nodes=2, reason=WHY)
    theft = Steal(job="sim", thief="thief", stolen_nodes=1, reason=WHY)
    assert windows.veto(job, grow) is None
    assert windows.veto(job, theft).code is ReasonCode.WRONG_STATE  # type: ignore[union-attr]
    job_of_none: Any = JobRecord("other", job.spec, job.request, client=None)
    assert windows.veto(job_of_none, theft) is None
    windows.phase(job, "burst", elastic=False)
    assert windows.veto(job, grow).code is ReasonCode.RIGID_PHASE  # type: ignore[union-attr]
    assert not windows.will_leave(pool.nodes["a"])
    windows.phase(job, "burst", elastic=True)
    assert windows.will_leave(pool.nodes["a"])
    # a node that it has no state on, or that is lost, it takes nothing from
    assert not windows.will_leave(pool.nodes["free"])
    assert [windows.cost(pool.nodes[id]) for id in ("a", "free")] == [(True,), (False,)]
    assert [windows.cost(SimpleNamespace(id="a", job=job)) for job in (None, "other")] == [(False,)] * 2
    pool.nodes["a"].up = False
    assert not windows.will_leave(pool.nodes["a"])
    assert [windows.cooperates(one) for one in (job, other, None)] == [True, False, False]
    assert not windows.lends(pool.nodes["a"])
    assert windows.all_lost(job)


def test_a_window_ends_with_the_runtime_and_with_its_producer() -> None:
    pool = Pool("a", "b")
    pool.open(leaving=["b"])
    pool.windows.abandon("uninstalled")
    assert (pool.ended, pool.windows.producers) == ([(False, "uninstalled")], {})
    # who leaves needs no word of a producer that has ended; who joins has nothing to join
    for how, committed in (({"leaving": ["b"]}, True), ({"joining": ["c"]}, False)):
        pool = Pool("a", "b")
        pool.come("c")
        pool.open(**how)
        pool.windows.forget(pool.job)
        assert pool.ended == [(committed, "its producer has ended")]
        assert "over" not in pool.heard, "its job goes on"
        pool.windows.forget(pool.job)
    pool = Pool("a")
    pool.job.state, pool.job.reason = "cancelled", "by the user"
    pool.windows.forget(pool.job)
    assert pool.told == [{"window": "over", "job": "sim", "reason": "by the user"}]


def test_a_client_that_is_away_for_a_while_is_waited_for() -> None:
    pool = Pool("a")
    pool.at(50.0)
    pool.clients.clear()
    pool.at(109.9)
    assert pool.windows.producers
    pool.come("b")
    pool.at(110.0)
    assert (pool.windows.producers, pool.heard) == ({}, [])
