"""The shared file system as a fluid: every node that does I/O gets the same rate.

Rules of the file: one number, the bytes that a node would have moved had it done I/O since the beginning,
says how far everybody is. A transfer of B bytes by n nodes ends when that number has grown by B / n, so a
change of the load changes the rate of the number and no transfer has to be looked at: adding, removing and
finding the next end cost the logarithm of the number of transfers. The model, min(n * link, file system)
shared equally per node, is that of ADMIRE deliverable 3.3 (2023, section 4.2).
"""

from __future__ import annotations

import heapq
from math import inf

from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.model.machine import Machine

#: Transfers that end within this share of each other end together.
_TOGETHER = 1e-12


class FileSystem:
    """Transfers under way."""

    def __init__(self, machine: Machine) -> None:
        self._link = inf if machine.link_bytes_s is None else machine.link_bytes_s
        self._whole = inf if machine.file_system_bytes_s is None else machine.file_system_bytes_s
        #: Transfers take no time at all.
        self.unlimited = self._link == self._whole == inf
        #: Bytes that a node doing I/O all the time would have moved, now.
        self._level = 0.0
        self._at_s = 0.0
        self._rate = 0.0
        self._heap: list[tuple[float, int, ActiveJob]] = []
        self._sequence = 0
        #: Of each transfer: level at its end, nodes, number of its entry, whether it reads.
        self._open: dict[int, tuple[float, int, int, bool]] = {}
        self.io_nodes = 0
        #: Whether the load has changed in this moment.
        self.changed = False
        #: Bytes moved so far, from the rates.
        self.moved_bytes = 0.0

    @property
    def rates_bytes_s(self) -> tuple[float, float]:
        """Bytes per second read and written, by all transfers together."""
        reading = sum(nodes for _, nodes, _, reads in self._open.values() if reads)
        return self._rate * reading, self._rate * (self.io_nodes - reading)

    def add(self, active: ActiveJob, size_bytes: float, nodes: int, now_s: float, reads: bool) -> None:
        """A job begins to move `size_bytes` with `nodes` nodes."""
        self._advance(now_s)
        self._sequence += 1
        entry = (self._level + size_bytes / nodes, self._sequence, active)
        self._open[active.key] = (entry[0], nodes, entry[1], reads)
        heapq.heappush(self._heap, entry)
        self._load(self.io_nodes + nodes)

    def remove(self, active: ActiveJob, now_s: float) -> float:
        """A job stops; returns the bytes that are left."""
        self._advance(now_s)
        end, nodes, _, _ = self._open.pop(active.key)
        left_bytes = max(0.0, (end - self._level) * nodes)
        self._load(self.io_nodes - nodes)
        return left_bytes

    def next_end_s(self) -> float | None:
        """When the next transfer ends at the present rate; None when there is none."""
        self._drop_stale()
        if not self._heap:
            return None
        return self._at_s + max(0.0, self._heap[0][0] - self._level) / self._rate

    def ended(self, now_s: float) -> list[ActiveJob]:
        """Jobs whose transfers end now, in the order in which they began; asked at `next_end_s`."""
        self._drop_stale()
        if not self._heap:
            return []
        self._advance(now_s)
        due = self._heap[0][0]
        self._level = max(self._level, due)
        limit = due + abs(due) * _TOGETHER
        jobs = []
        while self._heap and self._heap[0][0] <= limit:
            _, number, active = heapq.heappop(self._heap)
            entry = self._open.get(active.key)
            if entry is not None and entry[2] == number:
                del self._open[active.key]
                self._load(self.io_nodes - entry[1])
                jobs.append((number, active))
        if len(jobs) > 1:
            jobs.sort(key=lambda job: job[0])
        return [active for _, active in jobs]

    def _advance(self, now_s: float) -> None:
        grown = self._rate * (now_s - self._at_s)
        self._level += grown
        self.moved_bytes += grown * self.io_nodes
        self._at_s = now_s

    def _load(self, io_nodes: int) -> None:
        self.io_nodes, self.changed = io_nodes, True
        rate = 0.0
        if io_nodes:
            # `Machine.node_rate_bytes_s`, without its questions
            rate = self._whole / io_nodes
            if rate > self._link:
                rate = self._link
        self._rate = rate
        if not self._open:
            # Nobody's end is measured from it any more: begin anew, and keep the digits.
            self._level = 0.0
            self._heap.clear()

    def _drop_stale(self) -> None:
        heap = self._heap
        while heap:
            _, number, active = heap[0]
            entry = self._open.get(active.key)
            if entry is not None and entry[2] == number:
                return
            heapq.heappop(heap)
