"""The table of actions is open: another kind is written, read, merged and replayed like those we have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from dask_hpc.trace.files import Trace
from dask_hpc.trace.records import Header, Pass, decode_line, encode_line
from dask_hpc.trace.replay import replay
from dask_hpc_policies.codec import decode, encode
from dask_hpc_policies.combine.merge import Arbiter, Chain
from dask_hpc_policies.decision import (
    ACTIONS,
    Action,
    Decision,
    Expand,
    Hold,
    Outcome,
    Reason,
    ReasonCode,
    Shrink,
    Start,
    Suppressed,
    register,
)
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.protocol import required

WHY = Reason(ReasonCode.DEMAND, "it is time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Save(Action):
    """A kind that the package does not have."""

    TAG: ClassVar[str] = "save"
    job: str
    level: str = "L1"
    reason: Reason


@pytest.fixture
def known() -> Iterator[None]:
    assert register(Save) is Save
    yield
    del ACTIONS[Save.TAG]


@dataclass(frozen=True)
class Fixed:
    """A policy that always answers the same."""

    actions: tuple[Action, ...]
    name: str = "fixed-answer"
    whole: bool = False

    def initial_state(self) -> None:
        return None

    def decide(self, view: ClusterSnapshot, state: Any) -> tuple[Decision, None]:
        return Decision(actions=self.actions, whole=self.whole), None


VIEW = ClusterSnapshot(
    now_s=0.0,
    jobs=tuple(JobView(id=id, state="running", nodes=2, max_nodes=8, start_s=0.0) for id in "ab"),
    idle_nodes=4,
)
SAVE = Save(job="a", level="L2", reason=WHY)
GROW = Expand(job="a", nodes=4, reason=WHY)


def test_a_registered_kind_is_written_and_read(known: None) -> None:
    decision = Decision(actions=(SAVE, GROW))
    data = json.loads(json.dumps(encode(decision)))
    assert data["actions"][0] == {"kind": "save", "job": "a", "level": "L2", "reason": encode(WHY)}
    assert decode(Decision, data) == decision
    assert decode(Outcome, encode(Outcome(action=SAVE, result="done", reason=WHY))).action == SAVE


def test_a_kind_that_is_not_registered_is_refused_with_what_is_known() -> None:
    data = encode(Decision(actions=(SAVE,)))
    expected = (
        r"Decision.actions\[0\]: unknown kind 'save'; known are start, expand, .*release-nodes.*imported"
    )
    with pytest.raises(ValueError, match=expected):
        decode(Decision, data)
    for kind in (None, 3, ["start"]):
        data["actions"][0]["kind"] = kind
        with pytest.raises(ValueError, match="unknown kind"):
            decode(Decision, data)


def test_it_goes_through_a_trace_and_its_replay(known: None) -> None:
    answer = Pass(policy={"policy": "x", "custom": True}, snapshot=VIEW, decision=Decision(actions=(SAVE,)))
    again = decode_line(encode_line(answer))
    assert again == answer
    trace = Trace(header=Header(), records=(again,), source="t")
    report = replay(trace, Fixed((SAVE, GROW)))
    assert (report.differing, report.recorded_actions) == (1, {"save": 1})
    assert report.replayed_actions == {"expand": 1, "save": 1}


@pytest.mark.parametrize("combine", [Chain, Arbiter])
def test_what_allots_nothing_passes_beside_a_resize_and_before_it(known: None, combine: Any) -> None:
    other = Save(job="b", reason=WHY)
    policy = combine(Fixed((GROW, SAVE)), Fixed((SAVE, other)))
    decision, _ = policy.decide(VIEW, policy.initial_state())
    assert decision.actions == (SAVE, other, GROW)
    assert decision.suppressed == ()


def test_a_whole_decision_that_loses_to_a_higher_rank_loses_whole() -> None:
    shrink, grow = Shrink(job="a", nodes=1, reason=WHY), Expand(job="b", nodes=3, reason=WHY)
    policy = Arbiter(Fixed((GROW,)), Fixed((shrink, grow), whole=True))
    decision, _ = policy.decide(VIEW, policy.initial_state())
    assert decision.actions == (GROW,)
    assert [s.action for s in decision.suppressed] == [shrink, grow]
    assert decision.whole


def test_a_kind_needs_a_tag_a_reason_and_a_frozen_class(known: None) -> None:
    @dataclass(frozen=True)
    class Untagged(Action):
        reason: Reason

    @dataclass
    class Loose(Action):
        TAG: ClassVar[str] = "loose"
        reason: Reason

    @dataclass(frozen=True)
    class Groundless(Action):
        TAG: ClassVar[str] = "groundless"

    for kind in (Untagged, Loose, Groundless, int):
        with pytest.raises(TypeError, match=r"is no kind of action.*frozen dataclass below Action"):
            register(kind)

    @dataclass(frozen=True)
    class Other(Action):
        TAG: ClassVar[str] = "start"
        reason: Reason

    with pytest.raises(ValueError, match=r"TAG 'start' .* is taken"):
        register(Other)
    assert register(Save) is Save


WRITTEN: Any = "it is time"
ODD: Any = Reason("demand", "it is time")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "returned NoneType, not a Decision"),
        (Decision(actions=None), "actions: expected a list, got None"),  # type: ignore[arg-type]
        (Decision(actions=("start",)), r"actions\[0\]: unknown kind"),  # type: ignore[arg-type]
        (Decision(actions=(Start(job="a", nodes=1.0, reason=WHY),)), "nodes: expected int, got 1.0"),  # type: ignore[arg-type]
        (
            Decision(actions=(Start(job="a", nodes=1, reason=WRITTEN),)),
            "reason: expected an object, got 'it is",
        ),
        (Decision(actions=(Hold(job="a", reason=WRITTEN),)), "reason: expected an object, got 'it is"),
        (Decision(actions=(Hold(job="a", reason=ODD),)), "is 'demand', not a ReasonCode"),
        (Decision(suppressed=(Suppressed(action=GROW, reason=ODD),)), "is 'demand', not a ReasonCode"),
        (
            Decision(actions=(Hold(job="a", reason=Reason(ReasonCode.DEMAND, "x", {"of": object})),)),
            "cannot encode",
        ),
        (Decision(actions=(SAVE,)), "unknown kind 'save'"),
    ],
)
def test_what_cannot_be_carried_out_or_recorded_is_no_decision(answer: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        required(answer)


def test_a_decision_may_have_hundreds_of_holds_and_a_list_in_place_of_a_tuple(known: None) -> None:
    holds = [Hold(job=f"job-{i}", reason=WHY) for i in range(300)]
    answer = Decision(actions=[*holds, SAVE, GROW])  # type: ignore[arg-type]
    assert required(answer) is answer
