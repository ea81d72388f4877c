"""When running jobs will end, said early and held against what came.

A forecast is kept when the first of a job's tasks has ended, and after a quarter, half and three quarters of
them; the interval that is stated with each comes from what came of earlier ones
(`dask_hpc_policies.jobs.forecasts`). What others leave when they end goes to those that wait, then to those
that run (`dask_hpc_policies.rules.shared_ends`). Only jobs that are closed are forecast: into others more may
come. Jobs that did not complete, or not by computing, teach nothing; and what was said while another policy
decided is said anew, as it was about that one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dask_hpc.report.looks import format_seconds
from dask_hpc.scheduler.internals import crowds, durations
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.jobs.forecasts import LEVEL, Calibration, Interval, last_s, work_left_s
from dask_hpc_policies.jobs.habits import NONE, habits_of
from dask_hpc_policies.protocol import Policy
from dask_hpc_policies.rules.lending import sent_ahead
from dask_hpc_policies.rules.shared_ends import Share, ends_s
from dask_hpc_policies.wording import counted

#: Outcomes that the status tells, the latest.
_TOLD = 10
#: Parts of a job's tasks after which a forecast is kept; that after `_SHOWN` is the one that is shown later.
_PARTS, _SHOWN = (0.0, 0.25, 0.5, 0.75), 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A forecast that was made: when, after which part of the tasks, and what it said."""

    part: float
    category: str
    #: How long the job had run then, in seconds.
    ran_s: float
    interval: Interval


#: Running jobs, and waiting ones, that are followed together; of more, each is taken for alone.
_FOLLOWED = 50


class _Watch:
    """What is remembered of one running job."""

    __slots__ = ("done_s", "kept", "node_s")

    def __init__(self, done_s: float, node_s: float) -> None:
        #: Seconds of its tasks, and node-seconds it had held, at the first look.
        self.done_s, self.node_s = done_s, node_s
        self.kept: list[Kept] = []


class Forecasts:
    """Forecasts of one scheduler.

    Parameters
    ----------
    target
        Tells how many nodes a job is getting that is being resized.
    turn
        Tells the place of a job among those that take turns; None: it does not.
    policy
        Tells which policy decides.
    """

    def __init__(
        self,
        state: State,
        target: Callable[[JobRecord], int | None],
        turn: Callable[[JobRecord], int | None],
        policy: Callable[[], Policy],
    ) -> None:
        self._state = state
        self._target, self._turn, self._policy = target, turn, policy
        #: The policy that decided when it was last looked at, and what it does.
        self._by: Policy | None = None
        self._habits = NONE
        self._watched: dict[JobRecord, _Watch] = {}
        self._told: deque[dict[str, Any]] = deque(maxlen=_TOLD)
        self.calibration = Calibration()

    def tick(self, now_s: float) -> None:
        """Hold what ended against what was said, and say when the others will end."""
        self._settle()
        running, idle = self._running(now_s)
        if not any(job.closed for job, _ in running):
            return
        if self._by is not self._policy():
            self._by = self._policy()
            self._habits = habits_of(self._by)
            for watch in self._watched.values():
                watch.kept.clear()
        shares = [share for _, share in running]
        few = len(shares) <= _FOLLOWED
        found = ends_s(shares, self._waiting(shares), idle, self._habits) if few else _alone_s(shares)
        for (job, share), left_s in zip(running, found, strict=True):
            if job.closed:
                self._keep(job, now_s, left_s + last_s(share.task_s, job.unfinished, share.slots))

    def status(self) -> Mapping[str, Any]:
        """How many ends were forecast, the share of them inside the stated interval, and the latest."""
        self._settle()
        found = self.calibration
        share, assumed = found.inside, found.assumed
        if not found.ends and not assumed:
            return {}
        told = []
        if share is not None:
            told.append(f"{share:.0%} of {counted(found.ends, 'forecast')} held the end")
            told.append(f"their intervals state {LEVEL:.0%}")
        if assumed:
            earlier = counted(assumed, "earlier forecast")
            told.append(f"the intervals of {earlier} were assumed and state nothing")
        text = "; ".join(told)
        return {
            "forecasts": {
                "level": LEVEL,
                "ends": found.ends,
                "inside": share,
                "assumed": assumed,
                "text": text,
                "by": {
                    name: {
                        "ends": one.ends,
                        "inside": one.inside / one.ends if one.ends else None,
                        "assumed": one.assumed,
                    }
                    for name, one in found.categories.items()
                },
                "last": list(self._told),
            }
        }

    def _running(self, now_s: float) -> tuple[list[tuple[JobRecord, Share]], float]:
        """Jobs of which tasks have ended with what is left of them, and slots that are nobody's."""
        state, found = self._state, []
        idle = float(sum(sum(n for n, _ in node.workers.values()) for node in state.nodes.free()))
        for job in state.jobs.named:
            threads = [sum(n for n, _ in node.workers.values()) for node in state.nodes_of(job)]
            up = [count for count in threads if count]
            if up and job.start_s is not None and job.unfinished and job.expected.ended_tasks:
                found.append((job, self._share(job, now_s, sum(up) / len(up), len(up))))
        return found, idle

    def _share(self, job: JobRecord, now_s: float, each: float, nodes: int) -> Share:
        expected = job.expected
        watch = self._watched.get(job)
        if watch is None:
            watch = self._watched[job] = _Watch(expected.done_s, job.attained_node_s(now_s))
        mean_s = expected.done_s / expected.ended_tasks
        slots = max(1.0, each * (self._target(job) or nodes))
        work_s = expected.left_s(lambda kind: durations.of_kind(kind) or mean_s, job.unfinished)
        # of what it held since the first look, when that is enough to tell
        slot_s = (job.attained_node_s(now_s) - watch.node_s) * each
        done_s = expected.done_s - watch.done_s
        use = done_s / slot_s if done_s > 0 and slot_s > 4 * slots * mean_s else 1.0
        task_s = work_s / job.unfinished
        borrows, turn = self._borrows(job, task_s), self._turn(job)
        least, most = _bounds(job, each)
        if turn is not None:
            # while it is not its turn it waits for nothing else
            use = 1.0
        return Share(
            work_s=work_left_s(work_s, job.unfinished, job.processing, slots, use),
            task_s=task_s,
            slots=slots,
            gains=borrows or job.request.kind != "rigid",
            borrows=borrows,
            ahead=self._ahead(each),
            turn=turn,
            least=None if turn is not None else least,
            most=None if turn is not None else most,
        )

    def _borrows(self, job: JobRecord, task_s: float) -> bool:
        """Whether tasks of the job are lent slots, as far as can be told of their mean."""
        return task_s <= self._state.settings.lend_s and not job.request.exclusive

    def _ahead(self, threads: float) -> float:
        """Tasks that a node is sent ahead of one of its threads, for each of them."""
        saturation = crowds.sent_to_a_thread(self._state.scheduler)
        return sent_ahead(threads, saturation) / threads

    def _waiting(self, running: list[Share]) -> list[Share]:
        """The first jobs that wait; tasks of which nothing is known are as long as those that run."""
        mean_s = sum(one.task_s for one in running) / len(running)
        pending = [job for job in self._state.jobs.named if job.state == "pending"]
        each = self._state.scheduler.total_nthreads / max(1, self._state.nodes.up())
        return [
            Share(
                work_s=job.unfinished * task_s,
                task_s=task_s,
                slots=job.smallest_start * each,
                gains=borrows or job.request.kind != "rigid",
                borrows=borrows,
                least=least,
                most=most,
            )
            for job in pending[:_FOLLOWED]
            for task_s in [durations.learned_task_s(job.first_held(1)) or mean_s]
            for borrows in [self._borrows(job, task_s)]
            for least, most in [_bounds(job, each)]
        ]

    def _keep(self, job: JobRecord, now_s: float, left_s: float) -> None:
        expected, watch = job.expected, self._watched[job]
        part = max(
            one for one in _PARTS if expected.ended_tasks >= one * (expected.ended_tasks + job.unfinished)
        )
        kind = "rigid" if job.request.kind == "rigid" else "resizable"
        kind = kind if self._turn(job) is None else "in turn"
        category = f"{kind}, {part:.0%} ran"
        made = Kept(
            part=part,
            category=category,
            ran_s=job.elapsed_s(now_s),
            interval=self.calibration.interval(category, left_s),
        )
        if not watch.kept or watch.kept[-1].part < part:
            watch.kept.append(made)
        low_s, expected_s, high_s = (
            now_s + one for one in (made.interval.low_s, made.interval.expected_s, made.interval.high_s)
        )
        job.forecast = {**_row(made), "ends_s": [low_s, expected_s, high_s]}

    def _settle(self) -> None:
        """What has ended is held against each forecast of it."""
        for job, watch in list(self._watched.items()):
            if job.active:
                continue
            del self._watched[job]
            if job.state != "completed" or job.end_s is None or job.released_tasks:
                job.forecast = None
                continue
            if not watch.kept:  # it was open until it had ended
                continue
            took_s = job.elapsed_s(job.end_s)
            for kept in watch.kept:
                left_s = max(0.0, took_s - kept.ran_s)
                self.calibration = self.calibration.with_end(kept.category, kept.interval, left_s)
            shown = next((one for one in watch.kept if one.part >= _SHOWN), watch.kept[0])
            job.forecast = _row(shown)
            text = f"predicted {format_seconds(job.forecast['predicted_s'])}, took {format_seconds(took_s)}"
            job.forecast |= {"took_s": took_s, "text": text}
            self._told.append({"job": job.id, "name": job.name, **job.forecast})


def _bounds(job: JobRecord, each: float) -> tuple[float | None, float | None]:
    """Slots that the job may be resized to, of nodes with so many threads each; None: it is not resized."""
    request = job.request
    return (
        (request.min_nodes * each, request.max_nodes * each) if request.kind == "malleable" else (None, None)
    )


def _alone_s(shares: list[Share]) -> list[float]:
    return [one.work_s / one.slots for one in shares]


def _row(kept: Kept) -> dict[str, Any]:
    """Run times, in seconds from the job's start, and the part of its tasks that had run when it was said."""
    ran_s, interval = kept.ran_s, kept.interval
    sure = f"with {LEVEL:.0%}" if interval.errors else "assumed, as too few ends are known yet"
    return {
        "part": kept.part,
        "predicted_s": ran_s + interval.expected_s,
        "low_s": ran_s + interval.low_s,
        "high_s": ran_s + interval.high_s,
        "errors": interval.errors,
        "took_s": None,
        # least, most likely and most on the clock of the cluster, while it runs
        "ends_s": None,
        "text": f"predicted {format_seconds(ran_s + interval.expected_s)}, "
        f"{format_seconds(ran_s + interval.low_s)} to {format_seconds(ran_s + interval.high_s)} {sure}",
    }
