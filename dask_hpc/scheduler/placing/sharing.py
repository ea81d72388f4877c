"""Sharing: a job without a node, which asked for none, takes turns on nodes of others that asked for none.

There may be more jobs than nodes. Who declared nothing but a name then has a node as little as anybody else
has a right to one: the slots of such nodes are dealt in turn as they open, in proportion to weights (weighted
fair queueing; Demers, Keshav and Shenker 1989, with tasks in place of packets). A job's weight is that of its
user, divided among the user's jobs, and falls with what it has had (the levels of the policy `fair`), so that
a small question is answered soon and nobody starves.

Nodes of a producer, pinned ones, those that take part in a round, and those of a job that is ``exclusive`` or
asked for nodes are not shared. ``hpc.lend: 0 s`` ends sharing, too.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.parts import Parts
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.rules.fair.terms import PARAMETERS, level, weight_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Levels as `fair` has them when nobody sets them.
_LEVELS = {parameter.name: parameter.default for parameter in PARAMETERS}


class Sharing:
    """Says who takes turns on which node, and whose turn it is."""

    def __init__(self, state: State, parts: Parts) -> None:
        self.state = state
        self._parts = parts
        #: Jobs without a node that take turns, since `look`.
        self.waiting: list[JobRecord] = []
        self._weights: dict[JobRecord, float] = {}

    def look(self, wants: Callable[[JobRecord], bool]) -> None:
        """See who takes turns now; `wants` says whether a job has held tasks that may run anywhere."""
        state = self.state
        jobs = state.jobs.active.values() if state.settings.lend_s > 0 else ()
        self.waiting = [job for job in jobs if not len(job.allotment) and _shares(job) and wants(job)]
        if not self.waiting:
            return
        now_s = state.now_s()
        mates = Counter([job.request.user for job in state.jobs.named])
        self._weights = {
            job: job.request.weight
            / max(1, mates[job.request.user])
            * weight_at(level(job.attained_node_s(now_s) + job.borrowed_s, _LEVELS), _LEVELS)
            for job in state.jobs.active.values()
        }

    def on(self, address: str) -> list[JobRecord]:
        """Whose held tasks take turns on the worker; nobody's where only its holder runs."""
        node = self.state.nodes.at.get(address)
        if node is None or node.reserved or not self._parts.lends(node):
            return []
        holders = self.state.served_by(address)
        if not all(_shares(job) for job in holders):
            return []
        return [*holders, *[job for job in self.waiting if job not in holders]]

    def turn(self, jobs: Sequence[JobRecord], dealt: Counter[JobRecord]) -> JobRecord | None:
        """Whose turn it is: who has the fewest tasks on workers for its weight; None when nobody holds any.

        `dealt` counts tasks that are about to be sent.
        """
        able = [job for job in jobs if job.first() is not None]
        return min(able, key=lambda job: self._load(job, dealt), default=None)

    def _load(self, job: JobRecord, dealt: Counter[JobRecord]) -> tuple[float, float]:
        return (job.processing + dealt[job] + 1) / self._weights.get(job, 1.0), job.submit_s


def _shares(job: JobRecord) -> bool:
    """Whether the job has asked for no nodes of its own."""
    spec = job.spec
    return spec.nodes is None and spec.min_nodes is None and not job.request.exclusive
