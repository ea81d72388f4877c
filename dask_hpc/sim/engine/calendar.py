"""The calendar: what is going to happen, and in which order.

Rules of the file: entries are ordered by (time, kind, sequence number), so that equal times have one order
and a run is a function of its inputs and its seed. An entry about a job carries the job's version; it is
stale when the job has another one by then.
"""

from __future__ import annotations

import heapq
from math import inf
from typing import Any

from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.model.machine import NodeFailure

#: Kinds of entries, in the order in which they happen at one moment. What happens with the submissions of
#: the workload, or later, is `SUBMIT` and after. Something of a coupled run is over. A commit is due, or what
#: it (or reading back what was saved) held up goes on. A node that was asked for is granted, then it is up;
#: it goes at the end of its walltime, and the policy has a look in time for one more commit. The bounds of
#: the power corridor change.
(
    NODE_BACK, NODE_GRANTED, NODE_UP, STAGE, IO, LINK, FLOW, COMMIT, WINDOW, THEFT, NODE_FAILS, NODE_GOES,
    SUBMIT, ANSWER, TICK, LOOK, CORRIDOR
) = range(17)  # fmt: skip

#: Kinds whose entries carry the version of their job.
VERSIONED = (STAGE, FLOW, COMMIT, WINDOW)

#: Kinds of which one follows the other for as long as there is a run.
_ENDLESS = (TICK, LOOK, ANSWER)
#: There are never so many entries of those, and of random failures, at once.
_FEW = 8

#: Time, kind, sequence number, job, and what the kind needs to know.
Entry = tuple[float, int, int, ActiveJob | None, Any]


class Calendar:
    """The entries of one run."""

    __slots__ = ("_sequence", "entries")

    def __init__(self) -> None:
        #: A heap: the next entry is the first. The engine takes entries out of it directly.
        self.entries: list[Entry] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self.entries)

    def next_s(self) -> float:
        """When the next entry happens, without those that a resize has overtaken; infinite without any."""
        entries = self.entries
        while entries:
            at_s, kind, _, active, data = entries[0]
            if active is None or kind not in VERSIONED or active.version == data:
                return at_s
            heapq.heappop(entries)
        return inf

    def leads_on(self) -> bool:
        """Whether anything is to come but what comes for ever: ticks, and random failures."""
        entries = self.entries
        return len(entries) > _FEW or any(
            isinstance(data, NodeFailure) if kind == NODE_FAILS else kind not in _ENDLESS
            for _, kind, _, _, data in entries
        )

    def enter(self, at_s: float, kind: int, active: ActiveJob | None = None, data: Any = None) -> int:
        """Something of this kind happens at `at_s`; returns the sequence number of the entry."""
        self._sequence += 1
        heapq.heappush(self.entries, (at_s, kind, self._sequence, active, data))
        return self._sequence
