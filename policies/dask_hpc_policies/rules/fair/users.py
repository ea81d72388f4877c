"""What a user may start while others wait: no more than fits into the share of the user.

Every job that runs holds its smallest size, so that a user with many jobs would hold more than one with few
by starting them all. Rules of the file: whoever runs nothing may start, however large the job is; and nodes
that would be idle are there for everybody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from dask_hpc_policies.decision import Reason, ReasonCode
from dask_hpc_policies.model import JobView
from dask_hpc_policies.rules.admission import Pass
from dask_hpc_policies.rules.fair.shares import Part, divide_users
from dask_hpc_policies.rules.fair.terms import Params, level, weight_at
from dask_hpc_policies.rules.sizing import lowest_size
from dask_hpc_policies.wording import counted


class Shares:
    """The shares of users, counting what waits, and the least that their jobs hold."""

    def __init__(
        self, plan: Pass, givers: Collection[JobView], waiting: Sequence[JobView], params: Params
    ) -> None:
        resizable = {job.id for job in givers}
        holding = [job for job in plan.view.jobs if job.nodes and not job.is_default]
        parts = [
            _part(job, lowest_size(job), max(job.max_nodes, job.nodes), params)
            if job.id in resizable
            else _part(job, job.nodes, job.nodes, params)
            for job in holding
        ]
        #: Nodes that jobs can not make use of even at their largest sizes.
        self.idle_nodes = plan.idle_nodes + sum([part.job.nodes - part.high for part in parts])
        self._held: Counter[str] = Counter()
        for part in parts:
            self._held[part.job.user] += part.low
        parts += [_part(job, 0, _largest(job), params) for job in waiting]
        # of one user alone nothing has to be divided
        alone = len({part.job.user for part in parts}) < 2
        total = plan.idle_nodes + sum([job.nodes for job in holding])
        self._shares = {} if alone else divide_users(parts, total, params)

    def allow(self, job: JobView, need: int) -> bool:
        """Whether the job fits into the share of its user on `need` nodes."""
        held = self._held[job.user]
        return job.is_default or held == 0 or held + need <= self._shares.get(job.user, held + need)

    def start(self, job: JobView, need: int) -> None:
        """The job starts."""
        self._held[job.user] += need
        self.idle_nodes -= _largest(job)

    def reason(self, job: JobView) -> Reason:
        """Why the job does not start."""
        held, share = self._held[job.user], self._shares[job.user]
        text = f"other jobs of its user hold at least {counted(held)}; the user's share is {share}"
        return Reason(ReasonCode.POOL_SHARED, text, {"held_nodes": held, "share_nodes": share})


def _part(job: JobView, low: int, high: int, params: Params) -> Part:
    part = Part(job, low, high, high, level=level(job.attained_node_s, params))
    part.weight = weight_at(part.level, params)
    return part


def _largest(job: JobView) -> int:
    """The most nodes that a waiting job can come to hold."""
    return job.max_nodes if job.kind == "malleable" else job.start_nodes or job.max_nodes
