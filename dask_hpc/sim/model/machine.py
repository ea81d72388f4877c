"""The machine that a workload runs on: nodes, bandwidths, failures, what a resize costs, what nodes draw.

Rules of the file: frozen dataclasses, pure functions. Links and the file system carry bytes at a rate that
all nodes doing I/O share equally: `nodes` of them together get min(nodes * link, file system).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.model.corridor import Corridor
from dask_hpc.sim.model.domains import Domains
from dask_hpc.sim.model.pool import Pool
from dask_hpc.sim.model.power import NodePower
from dask_hpc_policies.model import COMPUTE, ROLES, Lock
from dask_hpc_policies.rules.losses import Severity

#: What a single failure may take; see `dask_hpc_policies.rules.losses.Severity`, whose names these are.
FAILING: tuple[Severity, ...] = ("process", "host", "domain")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """What fails at `t_s`, and is down for `downtime_s` seconds."""

    WRITTEN: ClassVar[tuple[str, ...]] = ("t_s", "node", "downtime_s")

    t_s: float
    #: Number of the node, from 0.
    node: int
    downtime_s: float
    #: ``host``: all nodes of its host. ``domain``: all nodes of its failure domain. ``process``: what runs
    #: there, and the node stays usable. None: the node, and nobody asks what failed.
    severity: Severity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """When nodes fail: those listed, and random ones when a mean time between failures is given.

    Random failures of each class come at exponential distances, drawn from the run's seed, and strike any
    node, or domain, alike.
    """

    WRITTEN: ClassVar[tuple[str, ...]] = ("listed", "node_mtbf_s", "downtime_s")

    listed: tuple[NodeFailure, ...] = ()
    #: Mean time between failures of one node, which is one host unless `Machine.hosts` says otherwise; None:
    #: no random ones.
    node_mtbf_s: float | None = None
    #: How long a node that failed at random is down.
    downtime_s: float = 3600.0
    #: The same for the processes of one node, and for one failure domain; None: no random ones.
    process_mtbf_s: float | None = None
    domain_mtbf_s: float | None = None

    @property
    def occur(self) -> bool:
        """Whether anything may fail."""
        return bool(self.listed) or any(mtbf_s is not None for mtbf_s in self.mtbf_s.values())

    @property
    def mtbf_s(self) -> Mapping[Severity, float | None]:
        """Mean times between random failures by class."""
        return {"process": self.process_mtbf_s, "host": self.node_mtbf_s, "domain": self.domain_mtbf_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptationCost:
    """Seconds that a resize holds an application up, from the begin of its window to the commit.

    latency = base + slope * (larger size - 2), which is 0 whenever both are, plus the time to move data:
    the share of `Job.data_bytes` that changes hands between two layouts in equal blocks,
    1 - smaller / larger, through the links of the smaller side.
    """

    expand_base_s: float = 0.0
    expand_slope_s: float = 0.0
    shrink_base_s: float = 0.0
    shrink_slope_s: float = 0.0

    def seconds(self, from_nodes: int, to_nodes: int, data_bytes: float, link_bytes_s: float | None) -> float:
        """Time of a resize from `from_nodes` to `to_nodes`; `link_bytes_s` None moves data in no time."""
        if to_nodes > from_nodes:
            small, large, base_s, slope_s = from_nodes, to_nodes, self.expand_base_s, self.expand_slope_s
        else:
            small, large, base_s, slope_s = to_nodes, from_nodes, self.shrink_base_s, self.shrink_slope_s
        seconds = base_s + slope_s * max(0, large - 2)
        if data_bytes and link_bytes_s and small:
            seconds += data_bytes * (1 - small / large) / (small * link_bytes_s)
        return seconds


#: Nothing is lost in a resize.
FREE = AdaptationCost()
#: Linear fit of ours to the times published by Chadha (2019, section 7.5): 0.11 s from 1 to 2 nodes to
#: 1.29 s from 15 to 16, and 0.05 s from 2 to 1 nodes to 2.25 s from 16 to 15.
PUBLISHED = AdaptationCost(
    expand_base_s=0.11, expand_slope_s=1.18 / 14, shrink_base_s=0.05, shrink_slope_s=2.20 / 14
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a simulation runs on."""

    WRITTEN: ClassVar[tuple[str, ...]] = (
        "nodes", "link_bytes_s", "file_system_bytes_s", "failures", "adaptation",
    )  # fmt: skip

    #: The most there can be; all of them are there unless `pool` says otherwise.
    nodes: int
    #: Bytes per second of one node's link; None: without limit.
    link_bytes_s: float | None = None
    #: Bytes per second of the shared file system; None: without limit.
    file_system_bytes_s: float | None = None
    failures: Failures = field(default_factory=Failures)
    adaptation: AdaptationCost = FREE
    #: How nodes come and go; None: all are there from the begin to the end.
    pool: Pool | None = None
    #: Nodes that play another role than to compute, by role, those with the highest numbers first; ``{}``:
    #: none yet, but a policy may say so (`SetRole`). None: all nodes compute, and none is followed one by
    #: one.
    roles: Mapping[str, int] | None = None
    #: What nodes draw; None: energy is not accounted for.
    power: NodePower | None = None
    #: Which nodes fail together; None: it is not known, and no domain can fail.
    domains: Domains | None = None
    #: Which nodes are on one host; None: each has one for itself.
    hosts: Domains | None = None
    #: Bytes per second of each node's link to another node, beside the one to the file system; None: without
    #: limit. Copies of checkpoints take it (`Transfer.beside`).
    network_bytes_s: float | None = None
    #: Between which bounds all nodes together are to draw power; needs `power`. None: whatever they draw.
    corridor: Corridor | None = None

    @property
    def initial_nodes(self) -> int:
        """Nodes that are there at the start."""
        return self.nodes if self.pool is None else self.pool.initial_nodes

    @property
    def tells_losses(self) -> bool:
        """Whether it is said what fails, so that each loss is noted with its class."""
        failures = self.failures
        others = failures.process_mtbf_s is not None or failures.domain_mtbf_s is not None
        classed = any(one.severity is not None for one in failures.listed)
        return failures.occur and (classed or others or self.domains is not None)

    def check(self) -> None:
        """See whether the parts fit together.

        Raises
        ------
        WorkloadError
            When more nodes are to be there at the start than there can be, a role is not known, so many
            nodes play others that none computes, or failure domains or hosts are not known or too few.
        """
        failures, there = self.failures, self.initial_nodes
        if self.hosts is not None:
            self.hosts.labels(self.nodes, "host")
        known = self.domains is not None and any(self.domains.labels(self.nodes))
        fail = failures.domain_mtbf_s is not None or any(one.severity == "domain" for one in failures.listed)
        if fail and not known:
            raise WorkloadError(
                "failures: a domain fails, but no domains are given; say which nodes share one"
            )
        if there > self.nodes:
            raise WorkloadError(f"pool: initial_nodes is {there}, the machine has {self.nodes} nodes")
        roles = self.roles or {}
        if self.corridor is not None and self.power is None:
            raise WorkloadError("corridor: nobody says what nodes draw; give power (idle_w, busy_w)")
        for role, count in roles.items():
            if role not in ROLES or count < 0:
                raise WorkloadError(
                    f"roles: {role!r} for {count} nodes; expected at least 0 nodes for {', '.join(ROLES)}"
                )
        others = sum(count for role, count in roles.items() if role != COMPUTE)
        if others and others >= there:
            raise WorkloadError(f"roles: {others} nodes of {there} play others, so that none computes")
        if sum(roles.values()) > there:
            raise WorkloadError(
                f"roles: {sum(roles.values())} nodes have one, {there} are there at the start"
            )

    def node_rate_bytes_s(self, io_nodes: int) -> float:
        """Bytes per second that each of `io_nodes` nodes doing I/O gets; infinite without any limit."""
        rate = float("inf") if self.link_bytes_s is None else self.link_bytes_s
        if self.file_system_bytes_s is not None and io_nodes:
            rate = min(rate, self.file_system_bytes_s / io_nodes)
        return rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of one run."""

    #: Seed of everything random in the run (failures).
    seed: int = 0
    #: Ask the policy every so many seconds as well, while any job waits or runs; None: at events alone.
    tick_s: float | None = None
    #: Seconds from asking the policy to its answer being carried out; it is not asked meanwhile.
    #: ``measured``: what `decide` really takes, so that the run is no function of its inputs any more.
    decision_s: float | Literal["measured"] = 0.0
    lock: Lock = "job"
    #: Which nodes a job holds is followed: for node maps and for failures.
    node_ids: bool = False
    #: Build snapshots for every call, also where the policy has an incremental form.
    snapshots: bool = False
    #: Note the rate of the file system over time.
    file_system_series: bool = False
    #: What is switched on of capabilities, by their names: values by the names of their settings.
    extra: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
