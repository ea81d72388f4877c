"""Which actions can be carried out on a job: the rule by itself, and asked by both bodies."""

from __future__ import annotations

from typing import Any, cast

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.clock import Clock
from dask_hpc.config import Settings
from dask_hpc.scheduler.resizing import rules
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.parts import Parts
from dask_hpc.scheduler.tables.state import State
from dask_hpc.sim import Machine, Options, Workload
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.calendar import Calendar
from dask_hpc.sim.engine.commits import Commits
from dask_hpc.sim.engine.life import Life
from dask_hpc.sim.engine.listening import Listener
from dask_hpc.sim.engine.news import News
from dask_hpc.sim.engine.nodes import NodePool
from dask_hpc.sim.engine.progress import Progress
from dask_hpc.sim.engine.rounds import Rounds
from dask_hpc.sim.engine.thefts import Thefts
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.job import Job
from dask_hpc.sim.model.machine import PUBLISHED
from dask_hpc_policies.decision import Expand, Reason, ReasonCode, Shrink, Start, Steal
from dask_hpc_policies.jobs.constraints import CONSTRAINTS, largest_at_most, smallest_at_least
from dask_hpc_policies.jobs.jobspec import JobSpec
from dask_hpc_policies.model import JobRequest
from dask_hpc_policies.rules.feasible import Facts, refusal
from dask_hpc_policies.views import values_of

BECAUSE = Reason(ReasonCode.IDLE_NODES, "the test says so")
ASKED = Reason(ReasonCode.USER_REQUEST, "the user says so")


def job(**given: Any) -> Facts:
    """A job like that of the README: malleable from 2 to 8 nodes, starts at exactly 4."""
    asked: dict[str, Any] = {"kind": "malleable", "start_nodes": 4, "min_nodes": 2, "max_nodes": 8}
    asked |= {name: given.pop(name) for name in values_of(JobRequest, JobRequest()) if name in given}
    return Facts(id="a", request=JobRequest(**asked), **({"state": "running", "nodes": 4} | given))


def waiting(**given: Any) -> Facts:
    return job(**({"state": "pending", "nodes": 0} | given))


def start(nodes: int) -> Start:
    return Start(job="a", nodes=nodes, reason=BECAUSE)


def expand(nodes: int, reason: Reason = BECAUSE) -> Expand:
    return Expand(job="a", nodes=nodes, reason=reason)


def shrink(nodes: int) -> Shrink:
    return Shrink(job="a", nodes=nodes, reason=BECAUSE)


def steal() -> Steal:
    return Steal(job="a", thief="b", stolen_nodes=4, reason=BECAUSE)


THIEF = waiting(start_nodes=None)

#: Action, job, and the code of its refusal; None: it can be carried out.
CASES: list[tuple[Any, Facts | None, ReasonCode | None]] = [
    (start(4), None, ReasonCode.UNKNOWN_JOB),
    (start(4), waiting(), None),
    (start(3), waiting(), ReasonCode.OUT_OF_BOUNDS),
    (start(8), waiting(), ReasonCode.OUT_OF_BOUNDS),
    (start(3), waiting(interrupted=True), None),
    (start(9), waiting(interrupted=True), ReasonCode.OUT_OF_BOUNDS),
    (start(3), waiting(start_nodes=None), None),
    (start(1), waiting(start_nodes=None), ReasonCode.OUT_OF_BOUNDS),
    (start(3), waiting(start_nodes=None, constraint="pof2"), ReasonCode.NO_LEGAL_SIZE),
    (start(3), waiting(reconfiguring=True), ReasonCode.LOCKED),
    (start(4), job(), ReasonCode.WRONG_STATE),
    (start(7), waiting(is_default=True), None),
    (expand(8), job(), None),
    (expand(6), waiting(), ReasonCode.WRONG_STATE),
    (expand(6), job(state="adapting"), ReasonCode.WRONG_STATE),
    (expand(6), job(is_default=True), ReasonCode.WRONG_STATE),
    (expand(4), job(), ReasonCode.STALE),
    (expand(3), job(), ReasonCode.STALE),
    (expand(9), job(), ReasonCode.OUT_OF_BOUNDS),
    (expand(6), job(constraint="pof2"), ReasonCode.NO_LEGAL_SIZE),
    (expand(8), job(kind="evolving"), None),
    (expand(8), job(kind="moldable"), ReasonCode.OUT_OF_BOUNDS),
    (expand(8), job(no_grow_s=3.0), ReasonCode.COOLDOWN),
    (expand(8, ASKED), job(no_grow_s=3.0), None),
    (expand(8), job(no_shrink_s=3.0), None),
    # below its minimum a job does not wait until those that could not join may be asked again
    (expand(3), job(nodes=1, no_grow_s=3.0), None),
    # what a job below its minimum gets back may be any size up to its largest, in steps
    (expand(3), job(kind="rigid", nodes=2, min_nodes=4, max_nodes=4), None),
    (expand(4), job(kind="rigid", nodes=2, min_nodes=4, max_nodes=4), None),
    (expand(5), job(kind="rigid", nodes=2, min_nodes=4, max_nodes=4), ReasonCode.OUT_OF_BOUNDS),
    (expand(3), job(nodes=1, constraint="pof2"), None),
    (shrink(2), job(), None),
    (shrink(1), job(), ReasonCode.OUT_OF_BOUNDS),
    (shrink(4), job(), ReasonCode.STALE),
    (shrink(3), job(constraint="pof2"), ReasonCode.NO_LEGAL_SIZE),
    (shrink(2), job(kind="rigid"), ReasonCode.OUT_OF_BOUNDS),
    (shrink(2), job(no_shrink_s=3.0), ReasonCode.COOLDOWN),
    (shrink(2), job(no_grow_s=3.0), None),
    (steal(), job(kind="rigid"), None),
    (steal(), waiting(), ReasonCode.WRONG_STATE),
    (steal(), job(reconfiguring=True), ReasonCode.LOCKED),
    (steal(), job(no_shrink_s=3.0), ReasonCode.COOLDOWN),
]


@pytest.mark.parametrize(("action", "facts", "code"), CASES)
def test_each_refusal_has_its_reason(action: Any, facts: Facts | None, code: ReasonCode | None) -> None:
    why = refusal(action, facts, THIEF, locked=False)
    assert (None if why is None else why.code) == code
    assert why is None or why.text


def test_a_refusal_names_the_value_and_what_is_allowed() -> None:
    for action, facts, words in (
        (start(3), waiting(), ("3 nodes", "exactly the 4", "(nodes)")),
        (expand(9), job(), ("9 nodes", "2 to 8", "min_nodes, max_nodes")),
        (shrink(3), job(constraint="pof2"), ("3 nodes", "'pof2'")),
    ):
        why = refusal(action, facts, locked=False)
        assert why is not None
        assert all(word in why.text for word in words), why.text


@pytest.mark.parametrize("locked", [False, True])
def test_the_lock_holds_resizes_back_and_neither_starts_nor_thefts(locked: bool) -> None:
    for action, facts, held in (
        (start(4), waiting(), False),
        (expand(8), job(), True),
        (expand(3), job(nodes=1), True),
        (shrink(2), job(), True),
        (steal(), job(), False),
    ):
        why = refusal(action, facts, THIEF, locked=locked)
        assert (why is not None) == (locked and held)
        assert why is None or (why.code is ReasonCode.LOCKED and "hpc.lock" in why.text)


def test_nobody_is_robbed_for_a_job_that_does_not_wait() -> None:
    for thief, refused in ((None, True), (job(), True), (job(nodes=1), False), (waiting(), False)):
        why = refusal(steal(), job(), thief, locked=False)
        assert (why is not None) == refused
        assert why is None or (why.code is ReasonCode.STALE and why.text.startswith("b "))


# ---------------------------------------------------------------- both bodies


@st.composite
def jobs(draw: st.DrawFn, id: str) -> Facts:
    """Any job that both bodies may have."""
    constraint = draw(st.sampled_from(CONSTRAINTS))
    low = smallest_at_least(constraint, draw(st.integers(1, 9)), 100) or 1
    high = largest_at_most(constraint, low + draw(st.integers(0, 12)), low) or low
    kind: Any = draw(st.sampled_from(["malleable", "malleable", "moldable", "rigid"]))
    exact = draw(st.sampled_from([None, low, high]))
    if kind == "rigid":
        low = exact = high
    state: Any = draw(st.sampled_from(["pending", "running", "running", "adapting"]))
    return Facts(
        id=id,
        state=state,
        request=JobRequest(
            name=id, kind=kind, start_nodes=exact, min_nodes=low, max_nodes=high, constraint=constraint
        ),
        # also an illegal size or one below the minimum: nodes are lost
        nodes=0 if state == "pending" else draw(st.integers(1, high)),
        reconfiguring=state == "adapting" or draw(st.integers(0, 9)) == 0,
        interrupted=state == "pending" and draw(st.booleans()),
    )


@st.composite
def actions(draw: st.DrawFn) -> Start | Expand | Shrink | Steal:
    id = draw(st.sampled_from(["a", "a", "a", "a", "nobody"]))
    kind = draw(st.sampled_from([Start, Expand, Shrink, Steal]))
    if kind is Steal:
        thief = draw(st.sampled_from(["b", "b", "nobody"]))
        return Steal(job=id, thief=thief, stolen_nodes=1, reason=BECAUSE)
    return kind(job=id, nodes=draw(st.integers(1, 22)), reason=BECAUSE)


def live(known: list[Facts], action: Any, lock: Any, busy: bool) -> Reason | None:
    """What the scheduler side says."""
    state = State(cast(Any, None), Settings(lock=lock), Clock(), Parts())
    for one in known:
        spec = JobSpec(name=one.id, constraint=one.request.constraint)
        record = JobRecord(one.id, spec, one.request, client=None)
        state.jobs.active[one.id] = record
        if one.interrupted:
            record.started(0.0)
            record.step("adapt")
            record.interrupted(1.0)
        if one.state != "pending":
            record.started(0.0)
        if one.state == "adapting":
            record.step("adapt")
        record.reconfig_id = int(one.reconfiguring)
        for i in range(one.nodes):
            name = f"{one.id}-{i}"
            node = state.nodes.join(name, name=name, host="h", nthreads=1, memory_bytes=0)
            node.job = one.id
            record.nodes[node.id] = None
    return rules.refusal(state, action, busy)


class Ear(Listener):
    """Keeps why the last action was refused."""

    why: Reason | None = None

    def refused(self, action: Any, why: Reason) -> None:
        self.why = why


def simulated(known: list[Facts], action: Any, lock: Any, busy: bool) -> Reason | None:
    """What the simulator says, with another job in its resize when `busy`."""
    facts = [*known, Facts("other", JobRequest(min_nodes=1, max_nodes=2), "running", 1)]
    work = tuple(
        Job(
            id=one.id,
            runtime_s=100.0,
            **values_of(JobRequest, one.request),
        )
        for one in facts
    )
    machine = Machine(nodes=1000, adaptation=PUBLISHED)
    world = World(Workload(name="t", jobs=work), machine, Options(lock=lock), News(False))
    calendar, nodes = Calendar(), NodePool(world)
    progress = Progress(world, calendar)
    life = Life(world, nodes, progress)
    rounds = Rounds(world, calendar, nodes, progress, life)
    for key, one in enumerate(facts):
        active = ActiveJob(work[key], key)
        life.submit(active)
        if one.interrupted:
            life.start(active, one.request.max_nodes)
            life.lose(active, "saved")
            life.requeue(active, "theft")
        if one.state != "pending":
            life.start(active, one.nodes)
        active.state = one.state
        if one.reconfiguring:
            active.target = one.request.max_nodes
    if busy:
        assert list(rounds.begin([Expand(job="other", nodes=2, reason=BECAUSE)])) == []
        assert world.by_id["other"].state == "adapting"
    world.listener = ear = Ear()
    if isinstance(action, Steal):
        Thefts(world, calendar, Commits(world, calendar, progress)).begin(action)
    else:
        list(rounds.begin([action]))
    return ear.why


@examples(500)
@given(jobs("a"), jobs("b"), actions(), st.sampled_from(["job", "system"]), st.booleans())
def test_both_bodies_give_the_same_answer(a: Facts, b: Facts, action: Any, lock: str, busy: bool) -> None:
    answers = live([a, b], action, lock, busy), simulated([a, b], action, lock, busy)
    assert answers[0] == answers[1]
    known = {"a": a, "b": b}
    thief = known.get(action.thief) if isinstance(action, Steal) else None
    assert answers[0] == refusal(action, known.get(action.job), thief, locked=busy and lock == "system")
