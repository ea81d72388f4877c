"""Announced bounds: who is kept for a higher one, and who would leave no room for a lower one.

Rules of the file: pure, and asked where the policy looks ahead. A job is held for bounds alone that come
while it may still run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from dask_hpc_policies.model import ClusterSnapshot, JobRequest, JobView
from dask_hpc_policies.power.view import PowerView
from dask_hpc_policies.power.watts import node_w


class Ahead:
    """What is announced, for all jobs of a picture: they may be as many as the nodes are."""

    def __init__(self, view: ClusterSnapshot, power: PowerView) -> None:
        self._now_s, self._power, self._nodes = view.now_s, power, view.pool_nodes
        #: Nodes that those which hold some leave, as small as can be, and most watts of those.
        self._left, self._most_w = self._nodes, power.base_w + power.unexplained_w[1]
        for one in (*view.running, *view.adapting):
            least = _least_nodes(one)
            self._left -= least
            self._most_w += least * node_w(one, least, power.busy_w)[1]
        #: When announced bounds begin, and the least upper one until then.
        self._times = [step[0] for step in power.announced]
        self._uppers = list(accumulate([step[2] for step in power.announced], min))
        self._lower_w = max([step[1] for step in power.announced], default=0.0)

    def hungry(self, job: JobRequest) -> bool:
        """Whether a lower bound, of now or announced, needs jobs that draw as much as this one.

        Jobs that could fill the machine and stay below the bound do not help to reach it.
        """
        power = self._power
        if power.lower_w is None:
            return False
        most_w = max(power.lower_w, self._lower_w)
        return self._nodes * node_w(job, job.max_nodes, power.busy_w)[0] + power.base_w >= most_w

    def leaves_room(self, job: JobView, starting: Iterable[JobView] = ()) -> bool:
        """Whether `job` and those that run and start, as small as can be, keep upper bounds of its time."""
        within = self._within(job)
        if not within:
            return True
        total, most_w = self._left, self._most_w
        for one in (*starting, job):
            least = _least_nodes(one)
            total -= least
            most_w += least * node_w(one, least, self._power.busy_w)[1]
        return most_w + max(0, total) * self._power.idle_w <= self._uppers[within - 1]

    def _within(self, job: JobView) -> int:
        """Announced steps before the job's end were it started now; of an unknown one, those in sight.

        What is recorded of jobs like it is all that is known of one that has not run yet and has no walltime.
        """
        for length_s in (job.walltime_s, job.remaining_s, job.recorded_s, self._power.horizon_s):
            if length_s is not None:
                return bisect_left(self._times, self._now_s + length_s)
        return len(self._times)


def _least_nodes(job: JobView) -> int:
    """The fewest nodes that the job can have once it runs."""
    if job.kind == "malleable":
        return job.min_nodes
    return job.nodes or job.start_nodes or job.min_nodes
