"""Commits: a job saves its state, which holds it up, and goes on while the rest is moved.

Rules of the file: whether and when is decided elsewhere (`Checkpoints`, or who calls `ask`). A commit whose
level is still being moved by an earlier one leaves that level out, so that transfers never pile up. What
holds a job up ends with an entry of the calendar; a failure in between breaks the commit.
"""

from __future__ import annotations

from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.calendar import COMMIT, Calendar
from dask_hpc.sim.engine.checkpoints import under_way
from dask_hpc.sim.engine.progress import Progress
from dask_hpc.sim.engine.saving import Saved, useful_node_s
from dask_hpc.sim.engine.world import World
from dask_hpc_policies.rules.commits import suffices


class Commits:
    """The commits of one run."""

    def __init__(self, world: World, calendar: Calendar, progress: Progress) -> None:
        self._world = world
        self._calendar = calendar
        self._progress = progress
        #: How many have ended, and levels that they left out because those before were still being moved.
        self.commits = 0
        self.left_out = 0

    def ask(self, active: ActiveJob, level: str | None = None) -> str | None:
        """Have a running job commit: now, or at the end of its present stage; why it cannot, if so.

        One that commits already, reads what it begins again from, or is being resized does so when it goes
        on; one that says nothing of checkpoints cannot.
        """
        saving, spec, id = active.saving, active.job.checkpoints, active.job.id
        if saving is None or spec is None or active.state == "pending":
            return f"job {id} does not run, or says nothing of checkpoints"
        enough = [one for one in spec.levels if suffices(one.survives, level)]
        if not enough:
            kept = ", ".join(one.survives for one in spec.levels)
            return f"no level of job {id} is as good as {level!r}; what its commits survive: {kept}"
        if level is not None and all(under_way(active, one) for one in enough):
            return f"what an earlier commit of job {id} has saved at {level} is still being moved"
        least = [one for one in (saving.least, level) if one is not None]
        saving.asked, saving.least = True, max(least, default=None)
        if active.job.program is None and saving.held is None and not active.paused:
            self._calendar.enter(self._world.now_s, COMMIT, active, active.version)
        return None

    def begin(self, active: ActiveJob) -> bool:
        """The job commits, and whether that holds it up. Its present stage stands still."""
        saving, spec, now_s = active.saving, active.job.checkpoints, self._world.now_s
        assert saving is not None
        assert spec is not None
        if active.stage is not None:
            self._progress.pause(active)
        saving.asked = False
        saving.since_s = now_s
        saving.number += 1
        place = active.done if active.walker is None else active.walker.copy()
        useful = useful_node_s(active, now_s)
        due = spec.levels_of(saving.number, saving.least)
        saving.least = None
        taking = [level for level in due if not under_way(active, level)]
        self.left_out += len(due) - len(taking)
        saving.taking = tuple(Saved(level, saving.number, place, useful) for level in taking)
        blocking_s = sum(level.blocking_s for level in taking)
        if blocking_s > 0:
            saving.hold("commit", active, now_s)
            self._calendar.enter(now_s + blocking_s, COMMIT, active, active.version)
            return True
        self._take(active)
        return False

    def over(self, active: ActiveJob) -> None:
        """What held the job up is over: it may go on."""
        saving = active.saving
        assert saving is not None
        commits = saving.held == "commit"
        saving.let_go(active, self._world.now_s)
        if commits:
            self._take(active)

    def _take(self, active: ActiveJob) -> None:
        """The blocking part is over: what is to be moved is moved, the rest is saved."""
        saving = active.saving
        assert saving is not None
        taking, saving.taking = saving.taking, ()
        if taking:
            self.commits += 1
            active.checkpoints += 1
        for saved in taking:
            if saved.level.node_bytes:
                size_bytes = saved.level.node_bytes * active.nodes
                self._progress.transfers.begin(active, size_bytes, saved.level.path, keeps=saved)
            else:
                saving.note(saved)
