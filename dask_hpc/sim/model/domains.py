"""Failure domains: which nodes of a machine fail together.

Rules of the file: a frozen dataclass; a domain is a name that several nodes have (a rack, a switch, a power
supply).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dask_hpc.errors import WorkloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class Domains:
    """Domains of equal size, ``d0``, ``d1`` and so on, or the name of each node's domain.

    Raises
    ------
    WorkloadError
        When neither or both are given.
    """

    #: Nodes in each domain, in the order of their numbers; the last may have fewer. 0: `names` are given.
    size: int = 0
    #: Domain of each node, by its number; a machine may have fewer nodes.
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.size < 0 or bool(self.size) == bool(self.names):
            raise WorkloadError(
                f"domains: size {self.size!r} and {len(self.names)} names; expected a size of at least 1, or "
                "one name for each node"
            )

    def labels(self, nodes: int) -> Sequence[str]:
        """The domain of each of `nodes` nodes.

        Raises
        ------
        WorkloadError
            When fewer nodes have a name.
        """
        if self.size:
            return [f"d{node // self.size}" for node in range(nodes)]
        if len(self.names) < nodes:
            raise WorkloadError(
                f"domains: {len(self.names)} nodes have a domain, the machine has {nodes}; give one name for "
                "each node, or a size"
            )
        return self.names[:nodes]
