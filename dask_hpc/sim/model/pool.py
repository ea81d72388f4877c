"""A machine whose nodes come when they are asked for, and go: what a batch system grants.

Rules of the file: a frozen dataclass; numbers alone. Every node is a request of its own, as where each worker
is a job of the batch system: it is asked for, waits in the queue of the system (the wait), then starts (the
boot), is there, and goes when its walltime is over or when it is given back.
"""

from __future__ import annotations

from dataclasses import dataclass

from dask_hpc.errors import WorkloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """How many nodes are there at the start, and how others come; `Machine.nodes` is the most there can be.

    Raises
    ------
    WorkloadError
        When a number is out of range.
    """

    #: Nodes that are there when the run begins: those with the lowest numbers.
    initial_nodes: int
    #: Seconds that a node is waited for before it begins to start. With `wait_sigma` the median of a
    #: lognormal law, drawn from the run's seed, for each node by itself. None: nobody grants or takes back
    #: any node, and who asks for it is refused.
    wait_s: float | None = 0.0
    #: Standard deviation of the logarithm of the wait; 0: all waits are equal.
    wait_sigma: float = 0.0
    #: Seconds that a node needs to start.
    boot_s: float = 0.0
    #: Seconds from when a node is there until it goes; None: it stays.
    walltime_s: float | None = None
    #: The same for the nodes that are there at the start, from the begin of the run on, by their numbers
    #: (None: it stays); those beyond the last have `walltime_s`.
    initial_walltimes_s: tuple[float | None, ...] = ()

    def __post_init__(self) -> None:
        least = {"initial_nodes": self.initial_nodes, "wait_s": self.wait_s or 0.0,
                 "wait_sigma": self.wait_sigma, "boot_s": self.boot_s}  # fmt: skip
        for name, value in least.items():
            if not 0 <= value < float("inf"):
                raise WorkloadError(f"pool: {name} is {value!r}; expected a number of at least 0")
        for given_s in (self.walltime_s, *self.initial_walltimes_s):
            if given_s is not None and not 0 < given_s < float("inf"):
                raise WorkloadError(f"pool: a walltime is {given_s!r} s; expected more than 0 s, or none")
