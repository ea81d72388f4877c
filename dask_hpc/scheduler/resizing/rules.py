"""Whether an action can be carried out now, checked before anything is changed; which nodes are given up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from dask_hpc.scheduler.internals import reads
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.decision import Expand, Reason, Shrink, Start, Steal
from dask_hpc_policies.rules import feasible

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler


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
    resolved, now_s = job.resolved, state.now_s()
    return feasible.Facts(
        id=id,
        # plain work that runs without a node queues like any other job
        state="pending" if state.starving(job) else job.state,
        kind=resolved.kind,
        nodes=state.nodes_up(job),
        start_nodes=resolved.start_nodes,
        min_nodes=resolved.min_nodes,
        max_nodes=resolved.max_nodes,
        constraint=job.spec.constraint,
        reconfiguring=job.reconfig_id != 0,
        interrupted=job.interruption != "none",
        is_default=job.is_default,
        no_shrink_s=max(0.0, job.no_shrink_before_s - now_s),
        no_grow_s=max(0.0, job.no_grow_before_s - now_s),
    )


def easiest(
    scheduler: Scheduler, nodes: Sequence[Node], count: int, keeps_state: Callable[[Node], bool]
) -> list[Node]:
    """The `count` nodes that hold no state, no shuffle, no actor, little work and little data.

    Parameters
    ----------
    keeps_state
        Whether a producer keeps state on the node.
    """
    up = [node for node in nodes if node.workers]
    if count >= len(up):
        return up

    def cost(node: Node) -> tuple[int, int, int, int, int]:
        workers = [scheduler.workers[a] for a in node.workers]
        return (
            keeps_state(node),
            sum(len(reads.shuffles_on(scheduler, ws.address)) for ws in workers),
            sum(reads.host_actors(ws) for ws in workers),
            sum(len(ws.processing) for ws in workers),
            sum(ws.nbytes for ws in workers),
        )

    # most often enough of them give up nothing, and then none has to be compared
    is_bare = partial(reads.is_bare, scheduler)
    bare = (node for node in up if all(map(is_bare, node.workers)) and not keeps_state(node))
    costless = list(islice(bare, count))
    return costless if len(costless) == count else sorted(up, key=cost)[:count]
