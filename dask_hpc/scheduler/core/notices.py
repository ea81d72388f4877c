"""Notices: what a client is told unasked, as that a computation of it has been waiting for nodes."""

from __future__ import annotations

from dask_hpc.scheduler.internals import crowds, reads, writes
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.state import State
from dask_hpc.wire import notice_topic
from dask_hpc_policies.wording import counted


class Notices:
    """Looks now and then at what waits."""

    def __init__(self, state: State) -> None:
        self._state = state

    def tick(self, now_s: float) -> None:
        """Tell the client of every job that has tasks and has stood still for ``hpc.held-notice``.

        It has no node, or all its workers are paused or on their way out.
        """
        for job in list(self._state.jobs.active.values()):
            self._look(job, now_s)

    def _look(self, job: JobRecord, now_s: float) -> None:
        state = self._state
        without = state.starving(job) if job in state.plain else state.nodes_up(job) == 0
        # with tasks on borrowed slots it does not stand still
        if not job.held or not ((without and not job.processing) or self._paused(job)):
            job.held_since_s = None
            return
        if job.held_since_s is None:
            job.held_since_s = now_s
        held_s = now_s - job.held_since_s
        if job.noticed or held_s < state.settings.held_notice_s:
            return
        job.noticed = True
        least = job.is_default or job.smallest_start <= 1
        fewer = "" if least else f"ask for fewer than {counted(job.smallest_start)}, "
        running = ", ".join(other.id for other in state.jobs.named if other.nodes) or "none is running"
        remedy = f"wait, {fewer}cancel a running job ({running}) or add workers"
        why = job.reason
        if not without:
            why = "none of its workers takes tasks, since its memory is full or it is being closed"
            remedy = "let go of results or add workers"
        text = f"Job {job.id} has been held for {held_s:.0f} s: {why}. Remedy: {remedy}."
        notify(state, job.client, text, job.id)

    def _paused(self, job: JobRecord) -> bool:
        """Whether no worker of the job takes tasks, and nothing of it is on others."""
        state, there = self._state, job.reach
        if not len(there) or crowds.any_running(state.scheduler, there):
            return False
        keys = [key for address in there for key in reads.keys_on(state.scheduler, address)]
        lanes = [lane for key in keys if (lane := state.owner.get(key)) is not None]
        return job.processing <= sum(lane.job is job for lane in lanes)


def notify(state: State, client: str | None, text: str, waits: str = "") -> None:
    """Tell a client something that it did not ask for; `waits`: of a job that waits, as panels show."""
    if client is not None:
        writes.tell(state.scheduler, notice_topic(client), {"job": waits, "text": text})
