"""What the plugin does for every step of every task: the usual steps, in full.

Those of plain tasks, queued by stock or placed once their data is there, are what a job that has nothing to
do costs everybody else; those of a job's own tasks are most of what being in a job costs. Each is a call
from the scheduler and little more, so what is looked at is bound once, and what workers report with a result
is named (the rest of a call's arguments would be put into a dictionary; arguments that can only be named take
longer to find).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask_hpc.scheduler.internals.allotment import Lane
from dask_hpc.scheduler.internals.durations import taken_s
from dask_hpc.scheduler.internals.stock_plugins import ENDS, NO_RUN
from dask_hpc.scheduler.internals.writes import restrict
from dask_hpc.scheduler.placing.admission import Admission
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.small import SmallResults

#: States of a task that is forgotten without more ado.
_AT_REST = ("memory", "released")


def counting(
    owner: dict[Any, Lane],
    tasks: dict[Any, Any],
    admission: Admission,
    small: SmallResults,
    maybe_done: Callable[[JobRecord], None],
    other: Callable[..., None],
    shuffles: Callable[..., Any],
    stealing: Callable[..., Any],
) -> Callable[..., None]:
    """The plugin's ``transition``; `other` gets every step that is not a usual one.

    `shuffles` and `stealing` get those that stock's plugins look at (`stock_plugins`).

    All of these are bound: they have to be the same objects for as long as the plugin is in the scheduler.
    """
    lane_of, held, doubtful = owner.get, small.held, small.doubtful
    lending, loans = admission.lending, admission.lending.loans
    queue, (rounds, producers) = admission.queue, admission.watched
    serving, plain = admission.state.serving, admission.state.plain
    freed, ended, came = admission.freed, lending.ended, small.came

    def transition(
        key: Any,
        start: str,
        finish: str,
        stimulus_id: str,
        worker: str | None = None,
        nbytes: int | None = None,
        startstops: Any = None,
        type: Any = None,
        typename: Any = None,
        thread: Any = None,
        **more: Any,
    ) -> None:
        """Take note of one step of one task: what stock calls of every plugin."""
        lane = lane_of(key)
        if lane is None:
            if startstops is NO_RUN or (start != "processing" != finish and finish not in ENDS):
                return  # it waits for data, or has got it: it takes no slot, and cannot be stolen
        elif lane.own:
            job = lane.job
            if start == "processing":
                if finish == "memory" and startstops and nbytes is not None:
                    freed(worker, lane, key)
                    if worker in loans:
                        ended(worker, key)
                    job.processing -= 1
                    job.unfinished -= 1
                    job.expected.ended(tasks[key].prefix, job.meter.observe(startstops))
                    came(key, nbytes)
                    if job.unfinished == job.guests:
                        maybe_done(job)
                    stealing(key, start, finish)
                    return
            elif finish == "processing":
                if start == "no-worker" or start == "queued":
                    job.held -= 1
                job.processing += 1
                stealing(key, start, finish)
                return
            elif start == "released" and finish == "waiting" and not job.resting:
                job.unfinished += 1
                return
            elif start == "waiting" and finish == "no-worker" and lane.kind == "root":
                job.held += 1
                job.park(tasks[key])
                return
        elif lane.plain:
            job = lane.job
            if start == "waiting":
                if finish == "processing":
                    job.processing += 1
                    stealing(key, start, finish)
                    return
                if finish == "queued":
                    job.held += 1
                    return
            elif start == "processing":
                if finish == "memory" and startstops:
                    # otherwise stock fills the slot
                    if lending.wanted or queue.closed or worker in loans or rounds or producers:
                        freed(worker, lane, key)
                        if worker in loans:
                            ended(worker, key)
                    elif lane.kind != "queue" and (job.queue or worker in serving or len(plain) > 1):
                        freed(worker, lane, key)
                    job.processing -= 1
                    job.unfinished -= 1
                    job.expected.done_s += taken_s(startstops)
                    if job.unfinished == job.guests:
                        maybe_done(job)
                    stealing(key, start, finish)
                    return
            elif start == "queued":
                if finish == "processing":
                    job.held -= 1
                    job.processing += 1
                    stealing(key, start, finish)
                    return
            elif start == "released" and finish == "waiting":
                ts = tasks[key]
                # a new one that no job needs is as it was claimed (`reads.was_sent`, written out)
                if ts.run_id is None and not lane.inherited:
                    for dependent in ts.dependents:
                        needs = lane_of(dependent.key)
                        if needs is not None and not needs.plain:
                            break
                    else:
                        job.unfinished += 1
                        return
        if lane is not None:
            if finish == "forgotten" and start in _AT_REST:
                del owner[key]
                if doubtful or held:
                    small.forget(key)
                shuffles(key, start, finish, stimulus_id=stimulus_id)
                return
            if finish == "released" and start == "memory" and (lane.own or lane.plain):
                try:
                    shuffles(key, start, finish, stimulus_id=stimulus_id)
                finally:
                    restrict(tasks[key], lane)
                    if held and key in held:
                        small.left_memory(key)
                return
        # as with stock, an error of one plugin, which it logs, keeps nothing from the others
        try:
            if finish in ENDS:
                shuffles(key, start, finish, stimulus_id=stimulus_id)
        finally:
            try:
                if start == "processing" or finish == "processing":
                    stealing(key, start, finish)
            finally:
                other(key, start, finish, lane, worker, nbytes, startstops)

    return transition
