"""Whether an action can be carried out now, checked before anything is changed; which nodes are given up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.decision import Expand, Reason, Shrink, Start, Steal
from dask_hpc_policies.rules import feasible


def refusal(state: State, action: Start | Expand | Shrink | Steal, reconfiguring: bool) -> Reason | None:
    """Why `action` is refused; None when it is not. See `dask_hpc_policies.rules.feasible`.

    Parameters
    ----------
    reconfiguring
        Whether any round is under way (it matters with ``hpc.lock: system``).
    """
    thief = facts(state, action.thief) if isinstance(action, Steal) else None
    locked = reconfiguring and state.settings.lock == "system"
    return feasible.refusal(action, facts(state, action.job), thief, locked=locked)


def facts(state: State, id: str) -> feasible.Facts | None:
    """What is known of an active job now; None when there is none of that id."""
    job = state.jobs.active.get(id)
    if job is None:
        return None
    now_s = state.now_s()
    return feasible.Facts(
        id=id,
        request=job.request,
        # plain work that runs without a node queues like any other job
        state="pending" if state.starving(job) else job.state,
        nodes=state.nodes_up(job),
        reconfiguring=job.reconfig_id != 0,
        interrupted=job.interruption != "none",
        is_default=job.is_default,
        no_shrink_s=max(0.0, job.no_shrink_before_s - now_s),
        no_grow_s=max(0.0, job.no_grow_before_s - now_s),
    )


def easiest(nodes: Sequence[Node], count: int, cost: Callable[[Node], tuple[float, ...]]) -> list[Node]:
    """The `count` nodes that are up whose giving up costs least; equal ones in the given order."""
    up = [node for node in nodes if node.workers]
    if count >= len(up):
        return up
    # most often enough of them cost nothing, and then none has to be compared
    costless = list(islice((node for node in up if not any(cost(node))), count))
    return costless if len(costless) == count else sorted(up, key=cost)[:count]
