"""When a job saves its state next, and what of its work is saved.

Rules of the file: pure functions of jobs and the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.saving import Saved
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.checkpoints import Level
from dask_hpc.sim.model.job import Compute, Delay, Repeat, Stage, amount
from dask_hpc.sim.model.machine import Machine
from dask_hpc_policies.resilience.commit_times import History

#: A commit so close to the end, as a share of what is left, saves nothing.
_TOLERANCE = 1e-6


def under_way(active: ActiveJob, level: Level) -> bool:
    """Whether what an earlier commit saved to this level is still being moved."""
    moving = () if active.lanes is None else active.lanes.moving
    return any(isinstance(one.keeps, Saved) and one.keeps.level == level for one in moving)


def next_levels(active: ActiveJob) -> tuple[Level, ...]:
    """The levels of the next commit of a job; it leaves out those that are still being moved by then."""
    saving, spec = active.saving, active.job.checkpoints
    if saving is None or spec is None:
        return ()
    return spec.levels_of(saving.number + 1, saving.least)


def history(active: ActiveJob, world: World, ends_s: Mapping[int, float]) -> History | None:
    """What a policy may know of the commits of a job; None: it makes none, or does not run.

    Parameters
    ----------
    ends_s
        When the walltimes of nodes end, by node.
    """
    saving, spec, nodes = active.saving, active.job.checkpoints, active.nodes
    if saving is None or spec is None or active.state == "pending":
        return None
    program, given_s = active.job.program, world.options.decision_s
    ahead_s = 0.0 if given_s == "measured" else given_s
    if program is not None:
        ahead_s += _longest_s(program.stages, nodes)
    return History(
        # as on a live cluster from its begin until it is whole
        since_s=max(saving.since_s, saving.written_s),
        cost_s=_whole_s(next_levels(active), world.machine, nodes),
        held_up_s=spec.mean_blocking_s,
        under_way=saving.asked
        or saving.held is not None
        or any(under_way(active, level) for level in spec.levels),
        end_s=min((ends_s[node] for node in active.node_ids if node in ends_s), default=None),
        ahead_s=ahead_s,
    )


def next_look_s(world: World, ends_s: Mapping[int, float]) -> float | None:
    """When a policy is to be asked at the latest, because a node of some job is given up soon; None: never.

    It is the moment from which `commit_times.due` says so.
    """
    found = [history(active, world, ends_s) for active in world.active.values() if active.saving is not None]
    times_s = [one.last_s for one in found if one is not None and not one.under_way]
    return min((t for t in times_s if t is not None and t > world.now_s), default=None)


def _whole_s(levels: Iterable[Level], machine: Machine, nodes: int) -> float:
    """Seconds until all is saved of a commit to these levels, when nobody else uses the file system."""
    rates = {"file-system": machine.node_rate_bytes_s(nodes), "link": machine.network_bytes_s or inf}
    moving_s = dict.fromkeys(rates, 0.0)
    blocking_s = 0.0
    for level in levels:
        blocking_s += level.blocking_s
        moving_s[level.path] += level.node_bytes / rates[level.path]
    return blocking_s + max(moving_s.values())


def _longest_s(stages: Iterable[Stage], nodes: int) -> float:
    """The longest that a program on so many nodes computes, or waits, between two stages."""
    longest_s = 0.0
    for stage in stages:
        if isinstance(stage, Repeat):
            longest_s = max(longest_s, _longest_s(stage.stages, nodes))
        elif isinstance(stage, Compute):
            longest_s = max(longest_s, amount(stage.work, nodes) / stage.speed(nodes))
        elif isinstance(stage, Delay):
            longest_s = max(longest_s, amount(stage.seconds, nodes))
    return longest_s


def commit_due(active: ActiveJob, now_s: float) -> bool:
    """Whether a job between two stages commits now; not when all its work is done."""
    saving, spec, walker = active.saving, active.job.checkpoints, active.walker
    if saving is None or spec is None or walker is None:
        return False
    due = spec.every_s is not None and now_s >= saving.since_s + spec.every_s
    return (saving.asked or due) and walker.copy().next(active.nodes) is not None


def next_commit_s(active: ActiveJob, now_s: float) -> float | None:
    """When a job without a program that goes on now commits next; None: it ends before."""
    saving, spec = active.saving, active.job.checkpoints
    if saving is None or spec is None or (spec.every_s is None and not saving.asked):
        return None
    at_s = now_s if saving.asked else max(now_s, saving.since_s + (spec.every_s or 0.0))
    left_s = active.left * active.length_s
    return at_s if at_s < active.began_s + left_s * (1 - _TOLERANCE) else None


def next_checkpoint_s(active: ActiveJob, now_s: float) -> float | None:
    """When a job with neither a program nor commits takes its next checkpoint; None when it never does."""
    job = active.job
    if job.program is not None or job.checkpoint_interval_s is None or active.length_s <= 0:
        return None
    share = job.checkpoint_interval_s / job.runtime_s
    done = active.done + (now_s - active.began_s) / active.length_s
    wanted = (int(done / share + 1e-9) + 1) * share
    if wanted >= 1.0:
        return None
    return active.began_s + (wanted - active.done) * active.length_s


def saved_share(active: ActiveJob, now_s: float) -> float:
    """Share of a job's work, without a program, that its last checkpoint holds at `now_s`."""
    job = active.job
    if active.saving is not None:
        best = active.saving.best()
        return best.place if best is not None and isinstance(best.place, float) else 0.0
    kept = active.kept if isinstance(active.kept, float) else 0.0
    if job.program is not None or job.checkpoint_interval_s is None or job.runtime_s <= 0:
        return kept
    done = active.done
    if active.stage is not None and not active.paused and active.length_s > 0:
        done += min(active.left, (now_s - active.began_s) / active.length_s)
    share = job.checkpoint_interval_s / job.runtime_s
    # A checkpoint that is due at this very moment has been taken, whatever the rounding.
    return max(kept, min(done, int(done / share + 1e-9) * share))
