"""What a user may start while others wait: no more than fits into the share of the user.

Every job that runs holds its smallest size, so that a user with many jobs would hold more than one with few
by starting them all. Rules of the file: whoever runs nothing may start, however large the job is; and nodes
that would be idle are there for everybody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from dask_hpc_policies.decision import Reason, ReasonCode
from dask_hpc_policies.model import JobView
from dask_hpc_policies.rules.admission import Pass
from dask_hpc_policies.rules.fair.shares import Part, by_user, divide_users, part_of
from dask_hpc_policies.rules.fair.terms import Params
from dask_hpc_policies.wording import counted


class Shares:
    """The shares of users, counting what waits, and the least that their jobs hold."""

    def __init__(self, plan: Pass, held: Sequence[Part], waiting: Sequence[JobView], params: Params) -> None:
        self._held: Counter[str] = Counter()
        self._shares: dict[str, int] = {}
        #: Nodes that jobs can not make use of even at their largest sizes.
        self.idle_nodes = 0
        if len({*[part.job.user for part in held], *[job.user for job in waiting]}) <= 1:
            return  # of one user alone nothing has to be divided, and all is allowed
        for part in held:
            self._held[part.job.user] += part.low
        highest = [_at_most(part) for part in held]
        nodes = sum([part.job.nodes for part in held])
        self.idle_nodes = plan.idle_nodes + nodes - sum(highest)
        parts = [replace(part, high=high) for part, high in zip(held, highest, strict=True)]
        parts += [part_of(job, 0, _largest(job), params) for job in waiting]
        self._shares = divide_users(by_user(parts), plan.idle_nodes + nodes, params)

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


def _at_most(part: Part) -> int:
    """The most nodes that a job can come to hold that holds some."""
    return max(part.job.max_nodes, part.job.nodes) if part.resizable else part.job.nodes


def _largest(job: JobView) -> int:
    """The most nodes that a waiting job can come to hold."""
    return job.max_nodes if job.kind == "malleable" else job.start_nodes or job.max_nodes
