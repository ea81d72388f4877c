"""What Apply would do at once: nobody loses nodes unasked."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dask_hpc_policies import registry
from dask_hpc_policies.decision import Decision, Reason, ReasonCode, Steal
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView
from dask_hpc_widgets.live.effect import Effect, Loss, effect, question

BUSY = ClusterSnapshot(
    now_s=100.0,
    nodes=tuple(NodeView(id=f"n{i}", job="heat-1") for i in range(4)),
    jobs=(
        JobView(id="heat-1", name="heat", state="running", nodes=4, min_nodes=1, max_nodes=4, start_s=1.0),
        JobView(id="late", name="late", state="pending", min_nodes=2, max_nodes=2, submit_s=50.0),
    ),
)


def test_a_policy_that_makes_room_names_whom_it_shrinks():
    found = effect({"policy": "pwma-fpsma"}, BUSY)
    (loss,) = found.takes
    assert (loss.job, loss.nodes) == ("heat-1", 2)
    assert loss.text.startswith("heat-1 (heat) shrinks from 4 to 2 nodes: ")
    assert [text.split(":")[0] for text in found.gives] == ["late starts on 2 nodes"]
    assert found.failure == ""


QUEUE = replace(
    BUSY,
    nodes=tuple(NodeView(id=f"n{i}", job="heat-1") for i in range(8)),
    jobs=(
        replace(BUSY.jobs[0], nodes=8, max_nodes=8),
        *(
            JobView(
                id=f"late{n}", name=f"late{n}", state="pending", min_nodes=n, max_nodes=n, submit_s=60.0 - n
            )
            for n in (4, 2, 1)
        ),
    ),
)


@pytest.mark.parametrize(
    ("policy", "steps"), [("pwma-fpsma", ", in 3 steps"), ("equipartition", ", in 3 steps"), ("fair", "")]
)
def test_consent_names_the_size_that_a_job_comes_to_and_not_that_of_the_first_decision(policy, steps):
    (loss,) = effect({"policy": policy}, QUEUE).takes
    assert (loss.job, loss.nodes) == ("heat-1", 1)
    assert loss.text.startswith(f"heat-1 (heat) shrinks from 8 to 1 node{steps}: ")


def test_a_policy_that_fails_once_it_is_asked_again_is_named_before_it_decides(monkeypatch):
    def decide(view, state):
        if any(job.id == "late4" and job.nodes for job in view.jobs):
            raise ZeroDivisionError("of the second pass")
        return pwma.decide(view, state)

    pwma = registry.create("pwma-fpsma")
    broken = SimpleNamespace(name="broken", initial_state=pwma.initial_state, decide=decide)
    create = registry.create
    monkeypatch.setattr(
        registry, "create", lambda spec: broken if spec == {"policy": "broken"} else create(spec)
    )
    assert effect({"policy": "broken"}, QUEUE).failure == "ZeroDivisionError: of the second pass"


def test_a_policy_that_waits_takes_nothing():
    assert effect({"policy": "fcfs"}, BUSY) == Effect()


def test_without_jobs_no_policy_is_asked(monkeypatch):
    monkeypatch.setattr(registry, "create", lambda spec: None)
    assert effect({"policy": "fcfs"}, ClusterSnapshot(now_s=0.0)) == Effect()


@pytest.mark.parametrize(
    ("decide", "failure"),
    [
        (lambda view, state: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda view, state: ("nothing", None), "TypeError: decide returned str, not a Decision"),
        (lambda view, state: None, "TypeError: cannot unpack"),
    ],
)
def test_a_policy_that_fails_is_no_error(monkeypatch, decide, failure):
    broken = SimpleNamespace(name="broken", initial_state=lambda: None, decide=decide)
    monkeypatch.setattr(registry, "create", lambda spec: broken)
    assert effect({"policy": "broken"}, BUSY).failure.startswith(failure)


def test_the_policy_sees_why_it_is_asked_and_an_interruption_is_named(monkeypatch):
    seen = []

    def decide(view, state):
        seen.append((view.trigger, view.jobs, state))
        reason = Reason(ReasonCode.NODE_STOLEN, "late is more urgent")
        gone = Steal(job="not-there", thief="late", stolen_nodes=1, reason=reason)
        steal = Steal(job="heat-1", thief="late", stolen_nodes=2, reason=reason)
        return Decision(actions=(gone, steal)), state

    thief = SimpleNamespace(name="thief", initial_state=lambda: "fresh", decide=decide)
    monkeypatch.setattr(registry, "create", lambda spec: thief)
    found = effect({"policy": "thief"}, BUSY)
    assert seen[0] == ("settings", BUSY.jobs, "fresh")
    text = "heat-1 (heat) is interrupted and loses its 4 nodes: late is more urgent"
    assert found.takes == (Loss("heat-1", 0, text),)


def test_a_resize_names_whom_it_takes_nodes_of_and_what_the_policy_does_then():
    rows = [{"id": "heat-1", "target_nodes": None}, {"id": "late", "target_nodes": None}]
    found = effect({"policy": "fcfs"}, BUSY, rows, resize=("heat-1", 2))
    assert found.takes == (
        Loss("heat-1", 2, "heat-1 (heat) shrinks from 4 to 2 nodes: the user asked for 2 nodes"),
    )
    assert [text.split(":")[0] for text in found.gives] == ["late starts on 2 nodes"]
    # what the policy gives back at once was taken all the same
    alone = replace(BUSY, jobs=BUSY.jobs[:1])
    found = effect({"policy": "pwma-fpsma"}, alone, rows, resize=("heat-1", 2))
    said = "heat-1 (heat) shrinks from 4 to 2 nodes: the user asked for 2 nodes"
    assert found == Effect(takes=(Loss("heat-1", 2, said),))
    # nodes that nobody has are taken of nobody
    both = replace(
        BUSY,
        jobs=(replace(BUSY.jobs[0], nodes=2, max_nodes=3), replace(BUSY.jobs[0], id="other", nodes=1)),
        idle_nodes=1,
    )
    assert effect({"policy": "fcfs"}, both, rows, resize=("heat-1", 3)).takes == ()
    # what is refused takes nothing
    for resize in (("heat-1", 4), ("late", 2), ("gone", 1), ("heat-1", 2)):
        assert effect({"policy": "fcfs"}, both, rows, resize=resize) == Effect()


@pytest.mark.parametrize("spec", [None, {"policy": "broken"}])
def test_a_resize_is_asked_about_whatever_the_policy_is(monkeypatch, spec):
    def decide(view, state):
        raise ZeroDivisionError

    broken = SimpleNamespace(name="broken", initial_state=lambda: None, decide=decide)
    create = registry.create
    monkeypatch.setattr(
        registry, "create", lambda spec: broken if spec == {"policy": "broken"} else create(spec)
    )
    found = effect(spec, BUSY, resize=("heat-1", 1))
    (loss,) = found.takes
    assert (loss.job, loss.nodes) == ("heat-1", 1)
    unknown = "Whether other jobs lose nodes by it is not known."
    assert question(found) == f"{unknown} A job loses nodes at once. Go ahead?"
    assert found.failure.startswith("The policy ")
    # who gets nodes is asked about, too: of whom they may come is not known
    room = replace(BUSY, jobs=(replace(BUSY.jobs[0], nodes=3), BUSY.jobs[1]), idle_nodes=1)
    found = effect(spec, room, resize=("heat-1", 4))
    assert found.takes == ()
    assert question(found) == f"{unknown} Go ahead?"
    assert question(found, agreed=found) == ""
    assert question(effect({"policy": "fcfs"}, room, resize=("heat-1", 4))) == ""


@pytest.mark.parametrize("fields", [{"kind": "rigid"}, {"kind": "moldable"}, {"constraint": "pof2"}])
def test_nobody_is_asked_about_a_resize_that_is_refused_for_good(fields):
    heat = replace(BUSY.jobs[0], **fields)
    assert effect(None, replace(BUSY, jobs=(heat,)), resize=("heat-1", 3)) == Effect()


def test_a_resize_is_asked_about_though_another_is_under_way():
    # it may have ended by when the scheduler is asked
    busy = replace(BUSY, jobs=(replace(BUSY.jobs[0], state="adapting"),))
    assert [loss.nodes for loss in effect(None, busy, resize=("heat-1", 3)).takes] == [3]


def test_the_question_is_one_for_apply_and_resize_and_asked_again_when_more_is_lost():
    one, more = Effect(takes=(Loss("a", 2, ""),)), Effect(takes=(Loss("a", 1, ""), Loss("b", 1, "")))
    assert question(Effect()) == ""
    assert question(one) == "A job loses nodes at once. Go ahead?"
    assert question(one, agreed=one) == ""
    again = "The cluster has changed meanwhile. 2 jobs lose nodes at once. Go ahead?"
    assert question(more, agreed=one) == again
    gone = Effect(more="It is gone for good.")
    assert question(gone) == "It is gone for good. Go ahead?"
    assert question(gone, agreed=gone) == ""
    # a yes about nodes is none about what was not said then
    again = "The cluster has changed meanwhile. It is gone for good. Go ahead?"
    assert question(gone, agreed=one) == again
    assert question(Effect(), agreed=gone) == ""


def test_more_than_what_was_agreed_to_is_seen():
    agreed = Effect(takes=(Loss("a", 2, ""), Loss("b", 1, "")))
    assert agreed.within(agreed)
    assert Effect(takes=(Loss("a", 3, "another reason"),)).within(agreed)
    assert not Effect(takes=(Loss("a", 1, ""),)).within(agreed)
    assert not Effect(takes=(Loss("c", 4, ""),)).within(agreed)
