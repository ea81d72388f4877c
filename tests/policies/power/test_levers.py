"""The levers ``pool`` and ``steal``: what they do to a picture; neither acts unasked or for nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.combine.corridor import amended
from dask_hpc_policies.decision import Decision, Hold, Reason, ReasonCode, ReleaseNodes, Start
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView
from dask_hpc_policies.power.program import solve
from dask_hpc_policies.power.question import Terms, drawn_w, planned
from dask_hpc_policies.power.view import DEFAULT_LEVERS, Mode, PowerView, seen
from dask_hpc_policies.rules.pool_range import pool_range, pool_step

IDLE_W = 50.0
BOTH = (*DEFAULT_LEVERS, "pool", "steal")


def job(id: str, watts: float, nodes: int, low: int, high: int) -> JobView:
    """A malleable job; it runs when it has nodes."""
    more: dict[str, Any] = {"min_power_w": watts, "max_power_w": watts, "kind": "malleable"}
    state: Any = "running" if nodes else "pending"
    return JobView(id=id, name=id, nodes=nodes, state=state, min_nodes=low, max_nodes=high, **more)


def shown(
    lower_w: float, upper_w: float, *jobs: JobView, nodes: int = 4, mode: Mode = "policy", levers: Any = BOTH
) -> tuple[ClusterSnapshot, PowerView]:
    """A picture with the plan, and what it says of power."""
    view = ClusterSnapshot(
        now_s=0.0,
        nodes=tuple(NodeView(id=f"n{i}") for i in range(nodes)),
        jobs=jobs,
        idle_nodes=nodes - sum(one.nodes for one in jobs),
    )
    power = PowerView(mode=mode, lower_w=lower_w, upper_w=upper_w, idle_w=IDLE_W, busy_w=200.0, levers=levers)
    low_w, high_w = drawn_w(view, power)
    power = replace(power, draw_w=low_w, min_w=low_w, max_w=high_w)
    view = planned(view, power, Terms(), solve)
    found = seen(view)
    assert found is not None
    return view, found


def pulled(view: ClusterSnapshot, decision: Decision | None = None) -> list[Any]:
    return list(amended(view, decision or Decision()).actions)


def test_a_theft_leads_inside_or_is_left() -> None:
    jobs = job("hungry", 250.0, 3, 3, 4), job("modest", 100.0, 0, 2, 2)
    hold = Hold(job="modest", reason=Reason(ReasonCode.CORRIDOR, "its watts"))
    view, _ = shown(0.0, 600.0, *jobs)
    [theft] = pulled(view)
    assert (theft.job, theft.thief, theft.stolen_nodes) == ("hungry", "modest", 1)
    assert theft.timing == "proactive-checkpoint"
    assert "the draw is 300 to 300 W" in theft.reason.text
    # where the policy might let nobody overtake the waiting job starts with it
    view, _ = shown(0.0, 600.0, *jobs, mode="enforce")
    first, second = pulled(view, Decision(actions=(hold,)))
    assert (first.timing, type(second), second.job, second.nodes) == ("now", Start, "modest", 2)
    # 300 W are outside, too
    assert not pulled(shown(0.0, 250.0, *jobs)[0])
    assert not pulled(shown(500.0, 600.0, *jobs)[0])
    # the draw is inside, sizes mend it, or nobody has asked
    assert not pulled(shown(0.0, 900.0, *jobs)[0])
    assert not pulled(shown(0.0, 600.0, job("hungry", 250.0, 3, 1, 4), jobs[1])[0])
    assert not pulled(shown(0.0, 600.0, *jobs, levers=DEFAULT_LEVERS)[0])
    assert not pulled(shown(0.0, 600.0, *jobs, mode="advise")[0])


def test_what_sizes_mend_is_not_mended_by_the_pool() -> None:
    # it may shrink to one node: 400 W with three idle ones
    view, power = shown(0.0, 500.0, job("a", 250.0, 3, 1, 4))
    allowed = pool_range(view, power)
    assert allowed is not None
    assert allowed.most == 4
    # it may not: 800 W with the idle one, which goes
    view, power = shown(0.0, 760.0, job("a", 250.0, 3, 3, 4))
    allowed = pool_range(view, power)
    assert allowed is not None
    step = pool_step(view, allowed)
    assert isinstance(step, ReleaseNodes)
    assert step.nodes == 3
    assert "allowed are 0 to 760 W" in step.reason.text
    for levers, mode in ((DEFAULT_LEVERS, "policy"), (BOTH, "monitor"), (BOTH, "advise")):
        assert pool_range(*shown(0.0, 760.0, job("a", 250.0, 3, 3, 4), levers=levers, mode=mode)) is None


@given(st.integers(1, 12), st.integers(0, 12), st.floats(0, 1500), st.floats(0, 1500))
def test_the_range_keeps_nodes_of_jobs_and_idle_ones_within_the_bounds(held, idle, lower_w, more_w) -> None:
    upper_w = lower_w + more_w
    rigid = replace(job("r", 100.0, held, held, held), kind="rigid")
    view, power = shown(lower_w, upper_w, rigid, nodes=held + idle)
    allowed = pool_range(view, power)
    assert allowed is not None
    assert allowed.least <= allowed.most
    assert allowed.most >= held

    def at(nodes: int) -> float:
        return 100.0 * held + IDLE_W * (nodes - held)

    # as many as there are watts for, and not one less
    assert at(allowed.most) <= upper_w + 1e-6 or allowed.most == held
    assert at(allowed.most + 1) > upper_w - 1e-6
    if allowed.least > held:
        assert at(allowed.least) >= lower_w - 1e-6 or allowed.least == allowed.most
        assert at(allowed.least - 1) < lower_w + 1e-6


@given(st.integers(0, 6), st.integers(0, 3), st.floats(0, 1500))
def test_nodes_that_start_are_asked_for_again_and_take_their_watts(idle, starting, upper_w) -> None:
    rigid = replace(job("r", 100.0, 2, 2, 2), kind="rigid")
    view, power = shown(0.0, upper_w, rigid, nodes=2 + idle)
    extra_w = starting * (IDLE_W + 40.0 - 5.0)
    begun = replace(power, off_w=5.0, boot_w=IDLE_W + 40.0, boot_nodes=starting, base_w=extra_w)
    none = replace(power, off_w=5.0, boot_w=IDLE_W + 40.0)
    # whoever has begun to start is among those that there are watts for, not beside them
    assert pool_range(view, begun) == pool_range(view, none)
    allowed = pool_range(view, begun)
    assert allowed is not None
    came = allowed.most - (2 + idle)
    if came > 0:
        assert 200.0 + idle * IDLE_W + came * (IDLE_W + 35.0) <= upper_w + 1e-6
