"""When a job saves its state next, and what of its work is saved.

Rules of the file: pure functions of one job and the time.
"""

from __future__ import annotations

from dask_hpc.sim.engine.active import ActiveJob

#: A commit so close to the end, as a share of what is left, saves nothing.
_TOLERANCE = 1e-6


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
    """When a job without a program takes its next checkpoint; None when it never does.

    Of one with `Job.checkpoints`: when its next commit holds it up no longer.
    """
    job = active.job
    saving = active.saving
    if job.checkpoints is not None and saving is not None:
        if saving.held == "commit":
            return saving.held_s + sum(saved.level.blocking_s for saved in saving.taking)
        at_s = None if saving.held or job.program is not None else next_commit_s(active, now_s)
        return None if at_s is None else at_s + sum(level.blocking_s for level in job.checkpoints.levels)
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
