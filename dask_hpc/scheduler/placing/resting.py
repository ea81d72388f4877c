"""Jobs that have nothing to do: plain work has the use of their nodes, as if they were its own.

A job that asked for no nodes keeps those it was given between two graphs, and before its first. Its idle
threads are lent one short task at a time, but what depends on other tasks stays on its owner's nodes, and
holding what stock would queue costs time. So a job rests until its first task, and once it has had none for
as long as tasks may be that are lent a slot (``hpc.lend``); the next task that comes ends that. What
executes then is waited for, as when the job starts.
"""

from __future__ import annotations

from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.state import State


class Resting:
    """Knows which jobs rest."""

    def __init__(self, state: State) -> None:
        self._state = state

    def look(self) -> None:
        """Let those rest that have had nothing to do for long enough."""
        state = self._state
        now_s, patience_s = state.now_s(), state.settings.lend_s
        for job in state.jobs.named:
            if job.unfinished or job.reach is not state.common:
                job.quiet_since_s = None
                if job.resting:
                    state.set_resting(job, False)
            elif job.quiet_since_s is None:
                job.quiet_since_s = now_s
            if not job.resting and job.state == "running" and job.quiet_for(patience_s, now_s):
                state.set_resting(job, True)

    def work(self, job: JobRecord) -> None:
        """A job that rests has something to do."""
        job.quiet_since_s = None
        self._state.set_resting(job, False)
