"""Node stealing on a toy machine: the published example, and what the rules promise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import pytest

from dask_hpc_policies.decision import Hold, ReasonCode, Shrink, Start, Steal
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.registry import create
from dask_hpc_policies.rules.stealing import StealingState


@dataclass
class Machine:
    """Rigid jobs without checkpoints on numbered nodes; one node fails."""

    nodes: int
    jobs: dict[str, JobView]
    lengths: dict[str, float]
    failure_s: float = inf
    failed_node: int = 0
    downtime_s: float = 0.0
    held: dict[int, str] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    flows: dict[str, float] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)

    def play(self, name: str, **params: Any) -> list[float]:
        policy = create(name, **params)
        state = policy.initial_state()
        now_s = 0.0
        while self.jobs:
            again = True
            while again:
                free = [n for n in range(1, self.nodes + 1) if n not in self.held and n not in self.down]
                back = (self.failure_s + self.downtime_s,) if self.down else ()
                views = tuple(self.view(job, now_s) for job in self.jobs.values())
                view = ClusterSnapshot(now_s=now_s, jobs=views, idle_nodes=len(free), returns_s=back)
                decision, state = policy.decide(view, state)
                acts = [a for a in decision.actions if isinstance(a, (Start, Steal))]
                again = any(isinstance(a, Steal) for a in acts)
                for action in sorted(acts, key=lambda a: isinstance(a, Start)):
                    if isinstance(action, Steal):
                        self.interrupt(action.job, "theft", now_s)
                    else:
                        free = [n for n in range(1, 9) if n not in self.held and n not in self.down]
                        assert action.nodes <= len(free)
                        self.held.update(dict.fromkeys(free[: action.nodes], action.job))
                        self.started[action.job] = now_s
            ends = [self.started[id] + self.lengths[id] for id in self.started]
            back_s = self.failure_s + self.downtime_s
            now_s = min(t for t in [*ends, self.failure_s, back_s] if t > now_s)
            for id in [id for id in self.started if self.started[id] + self.lengths[id] <= now_s]:
                self.flows[id] = now_s - self.jobs.pop(id).submit_s
                self.leave(id)
            if now_s == back_s:
                self.down.clear()
            if now_s == self.failure_s:
                if self.failed_node in self.held:
                    self.interrupt(self.held[self.failed_node], "failure", now_s)
                self.down.add(self.failed_node)
        return [self.flows[id] for id in self.lengths]

    def view(self, job: JobView, now_s: float) -> JobView:
        if job.id not in self.started:
            return replace(job, remaining_s=self.lengths[job.id])
        return replace(
            job,
            state="running",
            nodes=job.min_nodes,
            start_s=self.started[job.id],
            remaining_s=self.started[job.id] + self.lengths[job.id] - now_s,
            restart_s=self.lengths[job.id],
        )

    def interrupt(self, id: str, why: Any, now_s: float) -> None:
        self.leave(id)
        self.jobs[id] = replace(self.jobs[id], interruption=why, interrupted_s=now_s)

    def leave(self, id: str) -> None:
        del self.started[id]
        self.held = {node: job for node, job in self.held.items() if job != id}


def rigid(id: str, nodes: int, **fields: Any) -> JobView:
    return JobView(id=id, kind="rigid", start_nodes=nodes, min_nodes=nodes, max_nodes=nodes, **fields)


def example(failure_s: float = 1.0) -> Machine:
    """Table 3.1 of ADMIRE (2023, D3.3): eight nodes, the third fails after 1 and is back after 5."""
    sizes = {"J1": (1, 8.0), "J2": (1, 5.0), "J3": (6, 10.0), "J4": (6, 10.0), "J5": (1, 2.0)}
    return Machine(
        nodes=8,
        jobs={id: rigid(id, nodes) for id, (nodes, _) in sizes.items()},
        lengths={id: length for id, (_, length) in sizes.items()},
        failure_s=failure_s,
        failed_node=3,
        downtime_s=5.0,
    )


@pytest.mark.parametrize("tie", ["latest-submission", "shortest-execution"])
def test_the_published_example_with_stealing(tie: str) -> None:
    assert example().play("sfsj", tie=tie) == [8, 11, 11, 21, 10]


def test_the_published_example_without_stealing() -> None:
    assert example().play("sfsj", timing="never") == [8, 5, 15, 25, 3]


def test_the_published_example_without_a_failure() -> None:
    assert example(failure_s=inf).play("sfsj") == [8, 5, 10, 20, 7]


# ------------------------------------------------------------------------ rules


def running(id: str, nodes: int, *, lo: int = 1, hi: int = 16, **fields: Any) -> JobView:
    fields.setdefault("kind", "rigid")
    return JobView(id=id, state="running", nodes=nodes, min_nodes=lo, max_nodes=hi, start_s=0.0, **fields)


def failed(id: str, nodes: int, **fields: Any) -> JobView:
    return rigid(id, nodes, interruption="failure", interrupted_s=9.0, **fields)


def ask(
    *jobs: JobView, idle: int = 0, state: StealingState | None = None, **params: Any
) -> tuple[Any, StealingState]:
    policy = create("sfsj", **params)
    view = ClusterSnapshot(now_s=10.0, trigger="node-lost", jobs=jobs, idle_nodes=idle)
    return policy.decide(view, state or policy.initial_state())


def acts(decision: Any) -> list[tuple[str, str, int]]:
    return [
        (a.TAG, a.job, a.stolen_nodes if isinstance(a, Steal) else a.nodes)
        for a in decision.actions
        if not isinstance(a, Hold)
    ]


def test_a_free_node_is_taken_before_any_is_stolen() -> None:
    assert acts(ask(failed("thief", 2), running("v", 1), idle=2)[0]) == [("start", "thief", 2)]


def test_the_smallest_job_is_the_victim_and_only_strictly_smaller_ones() -> None:
    small, smaller, equal = running("a", 3), running("b", 2), running("c", 4)
    found = acts(ask(failed("thief", 4), small, smaller, equal, idle=3)[0])
    assert found == [("steal", "b", 1), ("start", "thief", 4)]
    assert acts(ask(failed("thief", 4), equal, idle=3)[0]) == [], "nobody is smaller: as without stealing"


def test_ties_go_to_the_one_submitted_last_or_run_the_shortest() -> None:
    first = running("first", 1, submit_s=0.0)
    last = running("last", 1, submit_s=5.0)
    young = replace(first, start_s=8.0)
    thief = failed("thief", 4)
    assert acts(ask(thief, young, last, idle=3)[0])[0] == ("steal", "last", 1)
    assert acts(ask(thief, young, last, idle=3, tie="shortest-execution")[0])[0] == ("steal", "first", 1)


def test_a_victim_is_looked_for_once_for_a_failure() -> None:
    thief, victim = failed("thief", 4), running("v", 1)
    decision, state = ask(thief, running("equal", 4), idle=3)
    assert acts(decision) == []
    assert acts(ask(thief, victim, idle=3, state=state)[0]) == []
    again = replace(thief, interrupted_s=9.5)
    assert acts(ask(again, victim, idle=3, state=state)[0])[0] == ("steal", "v", 1)


@pytest.mark.parametrize("timing", ["next-checkpoint", "proactive-checkpoint"])
def test_a_victim_that_checkpoints_first_gives_its_nodes_later(timing: str) -> None:
    decision, state = ask(failed("thief", 4), running("v", 1), idle=3, timing=timing)
    (steal,) = [a for a in decision.actions if isinstance(a, Steal)]
    assert (steal.job, steal.thief, steal.timing) == ("v", "thief", timing)
    assert acts(decision) == [("steal", "v", 1)], "it cannot start yet"
    # The nodes have come: it starts, and nobody else is robbed.
    robbed = rigid("v", 1, interruption="theft", interrupted_s=12.0)
    after, _ = ask(failed("thief", 4), robbed, running("w", 1), idle=4, state=state, timing=timing)
    assert acts(after) == [("start", "thief", 4)]


def test_failed_jobs_come_first_in_order_of_arrival_then_robbed_ones_then_the_rest() -> None:
    order = [
        rigid("new", 1, submit_s=0.0, priority=9),
        rigid("robbed", 1, submit_s=1.0, interruption="theft"),
        failed("late", 1, submit_s=3.0),
        failed("early", 1, submit_s=2.0),
    ]
    for idle in range(5):
        starts = [job for _, job, _ in acts(ask(*order, idle=idle)[0])]
        assert starts == ["early", "late", "robbed", "new"][:idle]


def test_the_rest_of_a_victim_is_not_given_to_those_behind_it() -> None:
    # The victim of three nodes gives one. It can have three again when another job ends.
    thief, victim = failed("thief", 4), running("v", 3, lo=3, hi=3, start_nodes=3, restart_s=50.0)
    ending = replace(running("ending", 1, remaining_s=5.0), state="adapting")
    other = rigid("other", 1, submit_s=2.0, remaining_s=60.0)
    decision, _ = ask(thief, ending, victim, other, idle=3)
    assert acts(decision) == [("steal", "v", 1), ("start", "thief", 4)]
    short = replace(other, remaining_s=5.0)
    decision, _ = ask(thief, ending, victim, short, idle=3)
    assert acts(decision)[-1] == ("start", "other", 1), "it is over in time"


def test_a_malleable_victim_is_not_interrupted_and_gets_its_node_back() -> None:
    small, big = running("small", 1), running("m", 4, kind="malleable")
    thief = failed("thief", 2, submit_s=5.0)
    decision, state = ask(thief, small, big, idle=1)
    assert acts(decision) == [("shrink", "m", 3), ("start", "thief", 2)]
    (shrink,) = [a for a in decision.actions if isinstance(a, Shrink)]
    assert shrink.reason.code is ReasonCode.NODE_STOLEN
    assert state.robbed == {"m": 4}
    # It is served before a job that has waited longer, and then the debt is forgotten.
    waiting = rigid("w", 1, submit_s=0.0)
    decision, state = ask(waiting, replace(big, nodes=3), idle=1, state=state)
    assert acts(decision) == [("expand", "m", 4)]
    _, state = ask(waiting, big, state=state)
    assert state.robbed == {}


def test_a_job_that_is_robbed_again_keeps_no_nodes_from_those_behind_it() -> None:
    # it runs: it has no need of a place in the plan
    robbed = running("m", 4, kind="malleable", constraint="pof2")
    state = StealingState(robbed={"m": 8})
    decision, after = ask(failed("thief", 2), robbed, rigid("small", 1), idle=1, state=state)
    assert acts(decision) == [("shrink", "m", 2), ("start", "thief", 2), ("start", "small", 1)]
    assert after.robbed == {"m": 8}, "it gets back what it had before it was robbed first"


def test_malleable_victims_can_be_switched_off() -> None:
    small, big = running("small", 1), running("m", 4, kind="malleable")
    found = acts(ask(failed("thief", 2), small, big, idle=1, malleable_victims=False)[0])
    assert found == [("steal", "small", 1), ("start", "thief", 2)]


def test_a_malleable_job_at_its_minimum_is_a_victim_like_any_other() -> None:
    tight = running("m", 2, lo=2, kind="malleable")
    assert acts(ask(failed("thief", 4), tight, idle=3)[0])[0] == ("steal", "m", 1)


def test_a_running_job_below_its_minimum_takes_a_node_from_a_malleable_one() -> None:
    # What a live cluster shows after a worker was lost: the job goes on with what is left.
    hurt, rich = running("hurt", 1, lo=2, kind="malleable"), running("rich", 2, kind="malleable")
    decision, _ = ask(hurt, rich)
    assert acts(decision) == [("shrink", "rich", 1), ("expand", "hurt", 2)]
    assert acts(ask(hurt, rich, idle=1)[0]) == [("expand", "hurt", 2)]
    poor = replace(rich, min_nodes=2)
    assert acts(ask(hurt, poor)[0]) == [], "the other one has its minimum only, and is not smaller"


def test_whoever_waits_is_behind_a_running_job_that_still_lacks_nodes() -> None:
    later = JobView(id="later", kind="rigid", min_nodes=1, max_nodes=1, submit_s=5.0, remaining_s=10.0)
    decision, _ = ask(running("hurt", 1, lo=4, hi=4), later, idle=1)
    assert acts(decision) == [("expand", "hurt", 2)]
    (hold,) = [a for a in decision.actions if isinstance(a, Hold)]
    assert (hold.job, hold.reason.code) == ("later", ReasonCode.BEHIND_HEAD), "nothing is promised to it"


def test_a_malleable_job_that_has_outlived_its_time_gives_a_node_and_goes_on() -> None:
    hurt = running("hurt", 3, lo=4, hi=4)
    late = running("late", 3, kind="malleable", remaining_s=0.0)
    assert acts(ask(hurt, late)[0]) == [("shrink", "late", 2), ("expand", "hurt", 4)]
    # a thief that waits has the node for as long as it takes
    thief = failed("thief", 4, remaining_s=30.0)
    assert acts(ask(thief, late, idle=3)[0]) == [("shrink", "late", 2), ("start", "thief", 4)]


def test_without_estimates_nobody_overtakes() -> None:
    decision, _ = ask(running("r", 4), rigid("head", 4), rigid("small", 1), idle=2)
    assert acts(decision) == []
    timed = [running("r", 4, remaining_s=9.0), rigid("head", 4), rigid("small", 1, remaining_s=9.0)]
    assert acts(ask(*timed, idle=2)[0]) == [("start", "small", 1)]


def test_conservative_backfilling_delays_nobody() -> None:
    machine = [running("r", 4, remaining_s=10.0), rigid("a", 6, remaining_s=10.0)]
    second = rigid("b", 5, remaining_s=10.0)
    # c would be over before a begins on nodes that a does not need, but b needs them at that time.
    long = rigid("c", 2, remaining_s=15.0)
    assert acts(ask(*machine, second, long, idle=4)[0]) == [("start", "c", 2)]
    assert acts(ask(*machine, second, replace(long, remaining_s=25.0), idle=3)[0]) == []
