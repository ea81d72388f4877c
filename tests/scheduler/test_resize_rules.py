"""What nodes that leave a job wait for, and when a theft comes: the rules alone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dask_hpc.scheduler.internals.allotment import AllotmentSet, Lane
from dask_hpc.scheduler.resizing import drain as of_drain
from dask_hpc.scheduler.resizing import outcomes as of_outcomes
from dask_hpc.scheduler.resizing.drain import RECALL, Drain
from dask_hpc.scheduler.resizing.outcomes import Outcomes
from dask_hpc.scheduler.resizing.round import Reduction, Round
from dask_hpc.scheduler.resizing.thefts import Thefts
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc_policies.codec import encode
from dask_hpc_policies.decision import Checkpoint, Outcome, Reason, ReasonCode, Shrink, Steal
from dask_hpc_policies.jobs.jobspec import job_spec, resolve
from dask_hpc_policies.resilience.commit_times import History
from dask_hpc_policies.rules.commits import SECTION

WHY = Reason(ReasonCode.USER_REQUEST, "")


def a_job(name: str, plain: bool = False) -> JobRecord:
    spec = job_spec(name)
    return JobRecord(name, spec, resolve(spec, 4), client=None, is_default=plain)


class Leaving:
    """A node that a job leaves, and what is on its worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.job, self.other, self.plain = a_job("job"), a_job("other"), a_job("plain", plain=True)
        self.node: Any = SimpleNamespace(id="node", workers={"a": None})
        self.tasks: dict[str, Any] = {}
        self.shuffles: list[str] = []
        self.coming = False
        self.asked: list[str] = []
        self.taken: list[str] = []
        self.state: Any = SimpleNamespace(
            owner={},
            pins={},
            scheduler=SimpleNamespace(workers={"a": self}, tasks=self.tasks),
        )
        self.drain = Drain(self.state)
        self.reduction = Reduction(
            1, self.job, Shrink(job="job", nodes=1, reason=WHY), [self.node], began_s=0.0
        )
        reads: dict[str, Any] = {
            "tasks_on": lambda ws: list(self.tasks.values()),
            "shuffles_on": lambda scheduler, address: self.shuffles,
            "stealing_towards": lambda scheduler, address: self.coming,
            "runs_on": lambda ts, address, run: ts.run_id == run,
        }
        for name, what in reads.items():
            monkeypatch.setattr(of_drain.reads, name, what)
        monkeypatch.setattr(
            of_drain.writes, "ask_back", lambda scheduler, address, key, id: self.asked.append((key, id))
        )
        monkeypatch.setattr(
            of_drain.writes, "take_back", lambda scheduler, key, address, id: self.taken.append(key)
        )

    def put(self, key: str, lane: Lane[Any] | None, actor: bool = False) -> None:
        self.tasks[key] = SimpleNamespace(key=key, run_id=7, actor=actor)
        if lane is not None:
            self.state.owner[key] = lane

    def busy(self) -> list[Any]:
        return self.drain.busy(self.reduction, self.node)


def test_a_node_waits_for_what_is_its_jobs_and_asks_back_what_may_run_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = Leaving(monkeypatch)
    job = there.job
    for kind in ("root", "rest", "p2p", "free"):
        there.put(kind, job.lanes[kind])  # type: ignore[index]
    there.put("actor", job.lanes["rest"], actor=True)
    there.put("pinned", pinned := Lane(job, "rest", AllotmentSet()))
    there.state.pins[job] = {"node": pinned}
    there.put("of another", there.other.lanes["rest"])
    there.put("of nobody", None)
    assert there.busy() == ["root", "rest", "p2p", "actor", "pinned"]
    assert there.asked == [("root", f"{RECALL}1"), ("rest", f"{RECALL}2")]
    assert there.busy() == ["root", "rest", "p2p", "actor", "pinned"]
    assert len(there.asked) == 2, "each run is asked once"
    there.tasks["root"].run_id = 8
    there.busy()
    assert there.asked[2:] == [("root", f"{RECALL}3")]
    # from a node that leaves the pool all has to go; what belongs to nobody, or where it is, is not moved
    there.reduction.for_good = True
    assert there.busy() == list(there.tasks)
    assert [key for key, _ in there.asked[3:]] == ["of another"]


def test_a_node_waits_for_shuffles_of_its_job_and_for_what_is_on_its_way_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = Leaving(monkeypatch)
    there.shuffles = ["mine", "theirs"]
    there.state.owner |= {"mine": there.job.lanes["p2p"], "theirs": there.other.lanes["p2p"]}
    assert there.busy() == ["mine"]
    there.shuffles, there.coming = [], True
    assert there.busy() == ["a task on its way there"]


def test_an_answer_moves_the_run_that_was_asked_for_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Leaving(monkeypatch)
    for key in ("waits", "runs", "anew", "gone", "lost"):
        there.put(key, there.job.lanes["rest"])
    there.busy()
    ids = dict(there.asked)
    assert there.drain.waiting
    there.drain.answered("ready", ids["waits"])
    there.drain.answered("ready", ids["waits"])
    there.drain.answered("executing", ids["runs"])
    there.tasks["anew"].run_id = 8
    there.drain.answered("ready", ids["anew"])
    del there.tasks["gone"]
    there.drain.answered(None, ids["gone"])
    assert (there.taken, there.drain.waiting) == (["waits"], True)
    there.drain.lost("b")
    assert there.drain.waiting
    there.drain.lost("a")
    assert not there.drain.waiting


def test_whose_tasks_have_to_leave_a_node() -> None:
    job, other, plain = a_job("job"), a_job("other"), a_job("plain", plain=True)
    action = Shrink(job="job", nodes=1, reason=WHY)

    def leave(reduction: Reduction) -> list[str]:
        return [one.id for one in (job, other, plain) if reduction.concerns(one)]

    mine, of_plain = Reduction(1, job, action, [], 0.0), Reduction(2, None, action, [], 0.0)
    assert (leave(mine), leave(of_plain)) == (["job"], ["plain"])
    # jobs that share the node with their holder, and plain work, which has the use of it
    common = AllotmentSet()
    other.lanes["rest"].restriction = mine.others = of_plain.others = common
    assert (leave(mine), leave(of_plain)) == (["job", "other", "plain"], ["other", "plain"])
    mine.takers = of_plain.takers = {"other"}
    assert (leave(mine), leave(of_plain)) == (["job", "plain"], ["plain"])
    assert mine.active
    mine.step("drained", "moved", "commit")
    assert not mine.active


class Stealing:
    """Thefts that wait, and what is known of the versions of their victims."""

    def __init__(self) -> None:
        self.known: dict[str, History] = {}
        self.settings = SimpleNamespace(checkpoint_every_s=None)
        self.ended: list[tuple[str, str]] = []
        self.taken: list[str] = []
        self.why: Reason | None = None
        self.answer: Any = None
        self.heard: list[Any] = []
        state: Any = SimpleNamespace(now_s=lambda: 0.0, settings=self.settings)
        parts: Any = SimpleNamespace(
            sections=lambda: {SECTION: {id: encode(row) for id, row in self.known.items()}}
            if self.known
            else {},
            enactors=lambda: {} if self.answer is None else {Checkpoint: lambda action: self.ask(action)},
        )
        outcomes: Any = SimpleNamespace(
            new_id=lambda: 5,
            end=lambda round, action, id, result, why: self.ended.append((action.job, result)),
        )
        self.thefts = Thefts(
            state, parts, outcomes, self.heard.append, lambda action: self.why,
            lambda theft, text: self.taken.append(text),
        )  # fmt: skip

    def ask(self, action: Checkpoint) -> Outcome:
        return Outcome(action=action, result=self.answer, reason=WHY)

    def steal(self, timing: Any = "next-checkpoint", job: str = "victim") -> Steal:
        action = Steal(job=job, thief="thief", stolen_nodes=1, timing=timing, reason=WHY)
        self.thefts.wait(action, "tick")
        return action

    def looked(self) -> list[str]:
        self.thefts.tick(0.0)
        return self.taken


def test_a_theft_waits_for_the_end_of_the_version_that_is_written_then_or_comes_next() -> None:
    there = Stealing()
    there.settings.checkpoint_every_s = 60.0
    there.known["victim"] = History(since_s=3.0, under_way=True)
    there.steal()
    assert there.looked() == there.looked() == []
    there.known["victim"] = History(since_s=9.0)
    assert there.looked() == ["carried out: a version of victim had been waited for (next-checkpoint)"]
    # one that had ended before is none that was waited for; of several that nobody saw begin one is enough
    there = Stealing()
    there.settings.checkpoint_every_s = 60.0
    there.known["victim"] = History(since_s=3.0)
    there.steal()
    assert there.looked() == there.looked() == []
    there.known["victim"] = History(since_s=9.0)
    assert len(there.looked()) == 1
    # one that has failed has ended, too
    there = Stealing()
    there.settings.checkpoint_every_s = 60.0
    there.known["victim"] = History(since_s=3.0, under_way=True)
    there.steal()
    assert there.looked() == []
    there.known["victim"] = History(since_s=3.0)
    assert len(there.looked()) == 1
    # of a job that has written none yet the first one
    there = Stealing()
    there.settings.checkpoint_every_s = 60.0
    there.known["victim"] = History()
    there.steal()
    assert there.looked() == []
    there.known["victim"] = History(since_s=9.0)
    assert len(there.looked()) == 1


@pytest.mark.parametrize(
    ("answer", "begun", "said"),
    [
        ("done", True, []),
        ("done", False, ["carried out at once: victim has nothing new to write (next-checkpoint)"]),
        ("refused", False, ["carried out at once: victim could not be asked for a version"]),
        (None, False, ["carried out at once: victim could not be asked for a version"]),
    ],
)
def test_a_victim_of_which_no_version_comes_by_itself_is_asked_for_one(
    answer: str | None, begun: bool, said: list[str]
) -> None:
    there = Stealing()
    there.known["victim"] = History(since_s=3.0)
    there.answer, ask = answer, there.ask

    def asked(action: Checkpoint) -> Outcome:
        there.known["victim"] = History(since_s=3.0, under_way=begun)
        return ask(action)

    there.ask = asked  # type: ignore[method-assign]
    there.steal()
    assert there.looked() == said
    # what has become of that is told
    assert [event.outcome.result for event in there.heard] == ([] if answer is None else [answer])
    if begun:
        there.known["victim"] = History(since_s=3.0)
        assert len(there.looked()) == 1, "it has failed, and that is an end, too"


def test_who_writes_no_versions_is_interrupted_at_once_and_nobody_for_who_needs_nothing_any_more() -> None:
    there = Stealing()
    there.steal()
    text = "carried out at once: victim makes no commit that could be waited for (next-checkpoint)"
    assert there.looked() == [text]
    assert there.looked() == [text], "once"
    there.steal()
    there.why = WHY
    there.looked()
    assert (there.taken, there.ended) == ([text], [("victim", "refused")])


def test_a_victim_is_interrupted_for_one_thief_and_no_theft_outlives_the_runtime() -> None:
    there = Stealing()
    assert there.thefts.refusal(first := there.steal()).code is ReasonCode.STALE  # type: ignore[union-attr]
    other = Steal(job="other", thief="thief", stolen_nodes=1, timing="now", reason=WHY)
    assert there.thefts.refusal(other) is None
    assert there.thefts.refusal(Shrink(job="victim", nodes=1, reason=WHY)) is None
    there.thefts.abandon("uninstalled")
    assert (there.ended, there.thefts.refusal(first)) == ([("victim", "aborted")], None)


def test_the_outcome_of_a_resize_is_known_to_who_waits_and_to_who_asks_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(of_outcomes, "_KEPT", 2)
    handled: list[Any] = []
    state: Any = SimpleNamespace(now_s=lambda: 7.0)
    outcomes = Outcomes(state, handled.append)
    action, round = Shrink(job="job", nodes=1, reason=WHY), Round(5.0, "tick")

    async def check() -> None:
        ids = [outcomes.new_id() for _ in range(3)]
        waiting = [asyncio.ensure_future(outcomes.wait(ids[0])) for _ in range(3)]
        await asyncio.sleep(0)
        # who waits no more takes nothing from the others
        waiting.pop().cancel()
        await asyncio.sleep(0)
        outcomes.end(round, action, ids[0], "done", WHY)
        assert [(await one).result for one in waiting] == ["done"] * 2
        assert (await outcomes.wait(ids[0])).latency_s == 2.0
        for id in ids[1:]:
            outcomes.end(round, action, id, "aborted", WHY)
        assert [outcomes.known(id) for id in ids] == [False, True, True]
        assert [event.outcome.result for event in handled] == ["done", "aborted", "aborted"]

    asyncio.run(check())
