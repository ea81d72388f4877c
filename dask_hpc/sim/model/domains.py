"""Hosts and failure domains: which nodes of a machine are on one host, and which fail together.

Rules of the file: a frozen dataclass; a domain is a name that several nodes have (a rack, a switch, a power
supply), and a host is one, too (a computer on which several nodes are).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dask_hpc.errors import WorkloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class Domains:
    """Domains, or hosts, of equal size, or the name of each node's.

    Raises
    ------
    WorkloadError
        When neither or both are given.
    """

    #: Nodes in each domain, in the order of their numbers; the last may have fewer. 0: `names` are given.
    size: int = 0
    #: Domain of each node, by its number; a machine may have fewer nodes. None: it is not known.
    names: tuple[str | None, ...] = ()

    def __post_init__(self) -> None:
        if self.size < 0 or bool(self.size) == bool(self.names):
            raise WorkloadError(
                f"domains or hosts: size {self.size!r} and {len(self.names)} names; expected a size of at "
                "least 1, or one name for each node"
            )

    def labels(self, nodes: int, what: Literal["domain", "host"] = "domain") -> Sequence[str | None]:
        """What each of `nodes` nodes is in, or on; those of equal size are ``d0``, ``d1``, or ``h0``, ``h1``.

        Raises
        ------
        WorkloadError
            When fewer nodes have a name.
        """
        if self.size:
            return [f"{what[0]}{node // self.size}" for node in range(nodes)]
        if len(self.names) < nodes:
            raise WorkloadError(
                f"{what}s: {len(self.names)} nodes have a {what}, the machine has {nodes}; give one name for "
                "each node, or a size"
            )
        return self.names[:nodes]
