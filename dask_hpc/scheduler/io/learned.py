"""What earlier jobs of a name have read and written on how many nodes, and the laws of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from dask_hpc_policies.model import JobRequest
from dask_hpc_policies.rules.io import law

#: Names that are remembered, and runs of each at one size, the latest.
_NAMES = 1000
_RUNS = 8


class Run(NamedTuple):
    """One job that has completed at one size."""

    io_s: float
    task_s: float
    nbytes: int


class Learned:
    """Runs by name and nodes."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[int, deque[Run]]] = {}
        #: How many there were of each name, those that are not remembered among them.
        self._counts: dict[str, int] = {}

    def add(self, name: str, nodes: int, run: Run) -> None:
        """A job of that name has completed, on so many nodes all the time."""
        sizes = self._runs.pop(name, {})
        self._runs[name] = sizes
        sizes.setdefault(nodes, deque(maxlen=_RUNS)).append(run)
        self._counts[name] = self.count(name) + 1
        while len(self._runs) > _NAMES:
            oldest = next(iter(self._runs))
            del self._runs[oldest], self._counts[oldest]

    def count(self, name: str) -> int:
        """How many jobs of a name that is remembered have completed at one size."""
        return self._counts.get(name, 0)

    def shares(self, request: JobRequest) -> dict[int, float]:
        """Share of its time that such a job spends in I/O, by nodes; empty: nothing is known."""
        return law.shares_by_size(
            request, self._by_nodes(request.name, "io_s"), self._by_nodes(request.name, "task_s")
        )

    def laws(self, name: str) -> dict[str, Any] | None:
        """How seconds in I/O, and the bandwidth of one task, go with the nodes of such jobs.

        Each with ``kind``, ``a``, ``b``, ``error`` and ``sizes`` (see `dask_hpc_policies.rules.io.law.Law`).
        None while fewer than two sizes are known.
        """
        seconds, rates = law.fit(self._by_nodes(name, "io_s")), law.fit(self._rates(name))
        if seconds is None:
            return None
        return {"io_s": _row(seconds), "bandwidth_bytes_s": None if rates is None else _row(rates)}

    def _by_nodes(self, name: str, field: str) -> Mapping[int, list[float]]:
        sizes = self._runs.get(name, {})
        return {nodes: [float(getattr(run, field)) for run in runs] for nodes, runs in sizes.items()}

    def _rates(self, name: str) -> Mapping[int, list[float]]:
        sizes = self._runs.get(name, {})
        return {n: [run.nbytes / run.io_s for run in runs if run.io_s > 0] for n, runs in sizes.items()}


def _row(found: law.Law) -> dict[str, Any]:
    return {"kind": found.kind, "a": found.a, "b": found.b, "error": found.error, "sizes": list(found.sizes)}
