"""I/O intensity of jobs, of the running mix and of the whole workload.

ADMIRE (2023, D3.3, section 4.2.2): the intensity of a job is the share of its time that it spends in
file-system I/O, a number from 0 to 1 that depends on its size. That of a set of jobs is the mean over their
nodes. *System*: running jobs at their sizes. *Workload*: running jobs at their sizes and queued ones at
their preferred sizes. The source divides the latter by the nodes of the cluster, but describes a machine that
could run all jobs at once; here it is the nodes of that machine, the sum over all jobs.
"""

from __future__ import annotations

from typing import NamedTuple

from dask_hpc_policies.jobs.constraints import largest_at_most
from dask_hpc_policies.model import JobView
from dask_hpc_policies.numeric import between
from dask_hpc_policies.rules.admission import needed_nodes


def job_intensity(job: JobView, nodes: int) -> float:
    """Share of time in I/O of `job` on `nodes` nodes, from 0 to 1.

    From `io_by_nodes` (straight lines between the sizes given, the nearest outside them), else
    `io_intensity` at every size, else 0.
    """
    return between(job.io_by_nodes, nodes) if job.io_by_nodes else job.io_intensity or 0.0


def preferred_size(job: JobView) -> int:
    """Size at which a queued job counts in the workload: the one it asked for, else its preferred one.

    Without either the largest it may have; 0 for a job that has no legal size.
    """
    need = needed_nodes(job)
    if need is None:
        return 0
    if job.is_default or job.start_nodes is not None:
        return need
    wanted = job.max_nodes if job.preferred_nodes is None else job.preferred_nodes
    return largest_at_most(job.constraint, max(wanted, need), need) or need


#: Intensities are summed in whole numbers of this fraction: what comes and goes then leaves no rounding
#: errors behind, and a sum that was kept up equals the one computed anew.
_UNIT = 1 << 40


class Mix(NamedTuple):
    """A set of jobs as two sums, so that jobs come and go at no cost."""

    #: Sum of intensity times nodes, in units of 2 ** -40.
    io_units: int = 0
    nodes: int = 0

    @property
    def io_nodes(self) -> float:
        """Sum of intensity times nodes."""
        return self.io_units / _UNIT

    @property
    def intensity(self) -> float:
        """Mean over the nodes; 0 without any."""
        return self.io_units / (_UNIT * self.nodes) if self.nodes else 0.0

    def plus(self, intensity: float, nodes: int) -> Mix:
        """With a job of `nodes` nodes more; of -`nodes` nodes: with that job less."""
        return Mix(self.io_units + round(intensity * _UNIT) * nodes, self.nodes + nodes)

    def joined(self, other: Mix) -> Mix:
        """Both sets together."""
        return Mix(self.io_units + other.io_units, self.nodes + other.nodes)
