"""Replay: a recorded policy decides the same again, another one is compared, nothing is guessed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.errors import TraceError
from dask_hpc.trace.files import Trace, parse_trace, read_trace, write_trace
from dask_hpc.trace.records import Header, Pass, encode_line
from dask_hpc.trace.replay import replay
from dask_hpc_policies import registry
from dask_hpc_policies.codec import encode
from dask_hpc_policies.combine.arbitrate import arbitrate
from dask_hpc_policies.combine.corridor import amended, guards
from dask_hpc_policies.decision import Checkpoint, Decision, Hold, Place, Reason, ReasonCode, SetRole, Steal
from dask_hpc_policies.model import ClusterSnapshot, Demand, JobView, NodeView
from dask_hpc_policies.power.view import seen

POOL = 8
#: Traces of earlier versions; they must load and replay for ever.
RECORDED = sorted((Path(__file__).parents[1] / "traces").glob("*.jsonl*"))


def snapshots(sizes: list[int], busy: int = 2) -> Iterator[ClusterSnapshot]:
    """A pool in which `sizes` jobs run and one waits, time after time."""
    for step, running in enumerate(sizes):
        nodes = min(running * busy, POOL)
        jobs = [
            JobView(
                id=f"r{i}",
                state="running",
                nodes=busy,
                min_nodes=1,
                max_nodes=POOL,
                mtct=0.1 * i,
                start_s=0.0,
            )
            for i in range(nodes // busy)
        ]
        jobs.append(JobView(id="p", min_nodes=6, max_nodes=POOL, submit_s=float(step)))
        yield ClusterSnapshot(
            now_s=float(step),
            trigger="tick" if step % 2 else "submit",
            nodes=tuple(NodeView(id=f"n{i}") for i in range(POOL)),
            jobs=tuple(jobs),
            idle_nodes=POOL - nodes,
            demand=Demand(occupancy_s=10.0 * running, ready_tasks=running),
        )


def record(policy: Any, views: list[ClusterSnapshot]) -> Trace:
    """What a scheduler writes while `policy` decides on `views`, through a round trip of text."""
    lines = [encode_line(Header(source="simulated"))]
    state = policy.initial_state()
    for view in views:
        decision, after = policy.decide(view, state)
        spec = registry.spec_of(policy)
        lines.append(encode_line(Pass(policy=spec, state=encode(state), snapshot=view, decision=decision)))
        state = after
    return parse_trace(lines)


VIEWS = list(snapshots([0, 1, 2, 3, 4, 3, 1, 0, 2]))


@pytest.mark.parametrize("name", [*registry.names(), *registry.library_names()])
def test_every_policy_decides_the_same_again(name: str) -> None:
    report = replay(record(registry.create(name), VIEWS))
    assert (report.mode, report.passes, report.same, report.differing, report.first) == (
        "verify",
        9,
        9,
        0,
        None,
    )
    assert report.recorded_actions == report.replayed_actions


@examples(30)
@given(st.sampled_from(registry.names()), st.lists(st.integers(0, POOL), max_size=8), st.integers(1, 4))
def test_replay_of_any_sequence_agrees(name: str, sizes: list[int], busy: int) -> None:
    assert replay(record(registry.create(name), list(snapshots(sizes, busy)))).ok


def test_the_recorded_state_is_used() -> None:
    # the pool shrinks after that many recommendations in a row: only the state tells how many there were
    trace = record(registry.create("dask-default", wait_count=3), VIEWS)
    states = [item.state for item in trace.passes]
    assert any(states[i] != states[0] for i in range(1, len(states)))
    late = Trace("cut", trace.header, trace.records[4:])
    assert replay(late).ok


def test_parameters_of_each_pass_are_used() -> None:
    first = record(registry.create("pwma-fpsma"), VIEWS[:4])
    second = record(registry.create("pwma-fpsma", step="next"), VIEWS[4:])
    both = Trace("changed live", first.header, first.records + second.records)
    assert replay(both).ok
    assert replay(both, "pwma-fpsma").mode == "compare"


def test_a_changed_decision_is_found_and_shown() -> None:
    trace = record(registry.create("pwma-fpsma"), VIEWS)
    wrong = Decision(actions=(Hold(job="p", reason=Reason(ReasonCode.BEHIND_HEAD, "not what was decided")),))
    records = list(trace.records)
    records[3] = replace(trace.passes[3], decision=wrong)
    report = replay(Trace("edited", trace.header, tuple(records)))
    assert (report.same, report.differing, report.ok) == (8, 1, False)
    assert report.first is not None
    assert (report.first.number, report.first.t_s, report.first.trigger) == (4, 3.0, "tick")
    assert report.first.recorded == wrong
    assert report.first.replayed == trace.passes[3].decision


def test_a_changed_reason_is_a_difference() -> None:
    trace = record(registry.create("fcfs"), VIEWS[:1])
    (item,) = trace.passes
    action = item.decision.actions[0]
    reworded = dataclasses.replace(
        action, reason=dataclasses.replace(action.reason, text="for another reason")
    )
    edited = replace(item, decision=Decision(actions=(reworded,)))
    assert not replay(Trace("edited", trace.header, (edited,))).ok


def test_the_recorded_policy_by_name_is_verified() -> None:
    trace = record(registry.create("prma-egs"), VIEWS)
    assert replay(trace, "prma-egs").mode == "verify"
    assert replay(trace, registry.create("prma-egs")).ok


def test_another_policy_is_compared_statefully() -> None:
    trace = record(registry.create("fcfs"), VIEWS)
    report = replay(trace, "pwma-fpsma")
    assert report.mode == "compare"
    assert report.passes == report.same + report.differing == 9
    assert report.recorded_actions.keys() <= {"start"}
    assert "shrink" in report.replayed_actions
    assert report.first is not None


def test_comparison_looks_at_what_is_done_not_at_words() -> None:
    trace = record(registry.create("fcfs"), VIEWS)
    spelled = [replace(item, policy={"policy": "fixed", "params": {}}) for item in trace.passes]
    reworded = [
        replace(
            item,
            decision=Decision(actions=tuple(a for a in item.decision.actions if not isinstance(a, Hold))),
        )
        for item in spelled
    ]
    report = replay(Trace("edited", trace.header, tuple(reworded)), "fcfs")
    assert (report.mode, report.differing) == ("compare", 0)


@dataclass(frozen=True)
class Count:
    calls: int = 0


class Custom:
    """Holds everything, and counts."""

    name = "custom"
    state_type = Count

    def initial_state(self) -> Count:
        return Count()

    def decide(self, view: ClusterSnapshot, state: Count) -> tuple[Decision, Count]:
        reason = Reason(ReasonCode.LOCKED, f"call {state.calls}")
        return Decision(actions=(Hold(job="p", reason=reason),)), Count(state.calls + 1)


class Failing(Custom):
    """Fails on the third call."""

    def decide(self, view: ClusterSnapshot, state: Count) -> tuple[Decision, Count]:
        if state.calls == 2:
            raise ZeroDivisionError("third call")
        return super().decide(view, state)


@pytest.mark.parametrize(
    ("kind", "said", "otherwise"),
    [
        (
            Place,
            {"flow": "f", "analysis": "a", "where": "in-situ", "nodes": 8, "cores": 2},
            {"flow": "g", "analysis": "b", "where": "in-transit", "nodes": 7, "cores": 3},
        ),
        (Checkpoint, {"job": "r0", "level": "L1"}, {"job": "r1", "level": "L2"}),
        (
            Steal,
            {"job": "r0", "thief": "p", "stolen_nodes": 1, "timing": "now"},
            {"job": "r1", "thief": "q", "stolen_nodes": 2, "timing": "next-checkpoint"},
        ),
        (SetRole, {"node": "n0", "role": "compute"}, {"node": "n1", "role": "service"}),
    ],
)
def test_comparison_looks_at_all_that_an_action_says(
    kind: Any, said: dict[str, Any], otherwise: dict[str, Any]
) -> None:
    class Says(Custom):
        def __init__(self, **fields: Any) -> None:
            self.params = fields
            why = Reason(ReasonCode.SHORTER_STEP, f"because of {fields}")
            self.decision = Decision(actions=(kind(**said | fields, reason=why),))

        def decide(self, view: ClusterSnapshot, state: Count) -> tuple[Decision, Count]:
            return self.decision, state

    trace = record(Says(), VIEWS[:1])
    assert replay(trace, Says(**said)).differing == 0, "but for the reason"
    for name, value in otherwise.items():
        report = replay(trace, Says(**{name: value}))
        assert (report.mode, report.differing) == ("compare", 1), name
        assert report.recorded_actions == report.replayed_actions == {kind.TAG: 1}


def test_comparison_does_not_look_at_the_order_of_actions() -> None:
    class Says(Custom):
        def __init__(self, *jobs: str) -> None:
            self.params = {"jobs": list(jobs)}
            why = Reason(ReasonCode.SHORTER_STEP, "they say so")
            self.decision = Decision(actions=tuple(Checkpoint(job=job, reason=why) for job in jobs))

        def decide(self, view: ClusterSnapshot, state: Count) -> tuple[Decision, Count]:
            return self.decision, state

    report = replay(record(Says("r0", "r1"), VIEWS[:1]), Says("r1", "r0"))
    assert (report.mode, report.differing) == ("compare", 0)


def test_a_custom_policy_needs_its_object() -> None:
    trace = record(Custom(), VIEWS)
    with pytest.raises(
        TraceError, match=r"pass 1: decided by the custom policy .*Custom'.*give the policy object"
    ):
        replay(trace)
    report = replay(trace, Custom())
    assert (report.mode, report.ok, report.policy) == ("verify", True, "custom")


def test_a_policy_that_fails_is_a_difference_not_a_crash() -> None:
    report = replay(record(Custom(), VIEWS), Failing())
    assert report.mode == "compare"
    assert report.first is not None
    assert (report.first.number, report.first.replayed) == (3, None)
    assert report.first.error == "ZeroDivisionError: third call"


@pytest.mark.parametrize(
    ("spec", "state", "expected"),
    [
        (
            {"policy": "no-such", "params": {}},
            None,
            r"pass 1: cannot make its policy 'no-such' \(unknown policy",
        ),
        ({"policy": "fcfs", "params": {"no": 1}}, None, "cannot make its policy 'fcfs' .*unknown parameter"),
        ({}, None, "cannot make its policy None"),
        ({"policy": "fcfs", "params": {}}, {"x": 1}, "pass 1: the recorded state does not fit fcfs"),
    ],
)
def test_a_policy_that_cannot_be_made_again_is_named(spec: Any, state: Any, expected: str) -> None:
    item = Pass(policy=spec, state=state, snapshot=VIEWS[0], decision=Decision())
    with pytest.raises(TraceError, match=expected):
        replay(Trace("odd", Header(), (item,)))


def test_a_trace_without_passes_has_nothing_to_differ() -> None:
    report = replay(Trace("empty", Header()))
    assert (report.passes, report.ok) == (0, True)


def test_a_written_trace_replays_like_the_one_in_memory(tmp_path: Path) -> None:
    trace = record(registry.create("pwma-egs"), VIEWS)
    write_trace(tmp_path / "t.jsonl.gz", [trace.header, *trace.records])
    assert replay(read_trace(tmp_path / "t.jsonl.gz")) == replay(trace)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_recorded_traces_load_and_replay_for_ever(path: Path) -> None:
    trace = read_trace(path)
    assert trace.passes
    report = replay(trace)
    assert report.ok, report.first


def test_what_a_corridor_made_of_recorded_decisions_comes_out_again() -> None:
    trace = read_trace(Path(__file__).parents[1] / "traces" / "live-0.1.0-power.jsonl.gz")
    cut: set[tuple[str, bool]] = set()
    for item in trace.passes:
        view, power = item.snapshot, seen(item.snapshot)
        found = amended(view, arbitrate(view, item.decision, guards(view)))
        assert encode(found) == encode(item.arbitrated or item.decision)
        if power is not None:
            cut.add((power.mode, item.arbitrated is not None))
    # one policy keeps it by itself, the other one is held to it
    assert {("policy", False), ("enforce", True)} <= cut
