"""What completed jobs took and drew, by name and nodes, and the laws of time and watts fitted to that.

Rules of the file: a run counts when it had one size all the time; runs stay when the corridor is cleared. The
laws are fitted when a run is booked, so that to tell them costs next to nothing, however often that is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import takewhile
from typing import Any

from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc_policies.power.bill import Use
from dask_hpc_policies.power.scaling import Run, ScalingError, fit_scaling

#: Names that are remembered, and the latest runs of each.
_NAMES, _RUNS = 200, 32
#: Names that are told of, those that ran last, and the latest runs of each: a few kB to send.
_NAMES_TOLD, _RUNS_TOLD = 50, 8


class Runs:
    """Runs by name."""

    def __init__(self) -> None:
        self._runs: dict[str, deque[Run]] = {}
        #: The laws of all that is remembered of each name.
        self._fits: dict[str, dict[str, float] | None] = {}
        #: The job that was looked at last.
        self._last = ""

    def book(self, ended: Sequence[JobRecord], uses: Mapping[str, Use]) -> None:
        """Take jobs that have ended since, the latest of which is the last; `uses`: what each has drawn."""
        fresh = list(takewhile(lambda job: job.id != self._last, reversed(ended)))
        for job in reversed(fresh):
            self._last = job.id
            sizes, use = {nodes for _, nodes in job.sizes if nodes}, uses.get(job.id)
            if job.state != "completed" or job.paused_s or len(sizes) != 1 or not use or not use.known_s:
                continue
            if job.start_s is None or job.end_s is None or job.end_s <= job.start_s or use.energy_j <= 0:
                continue
            runs = self._runs.pop(job.name, None) or deque(maxlen=_RUNS)
            runs.append((sizes.pop(), job.end_s - job.start_s, use.energy_j / use.known_s))
            self._runs[job.name], self._fits[job.name] = runs, _fitted(runs)
            while len(self._runs) > _NAMES:
                oldest = next(iter(self._runs))
                del self._runs[oldest], self._fits[oldest]

    def told(self) -> dict[str, Any]:
        """By name the latest ``runs``, rows of (nodes, s, W), and ``fitted``, the `Scaling` of more of them.

        None in place of that below two sizes. The 50 names that ran last, the one that ran last at the end.
        """
        return {
            name: {"runs": [list(run) for run in list(runs)[-_RUNS_TOLD:]], "fitted": self._fits[name]}
            for name, runs in list(self._runs.items())[-_NAMES_TOLD:]
        }


def _fitted(runs: Sequence[Run]) -> dict[str, float] | None:
    try:
        return asdict(fit_scaling(runs))
    except ScalingError:
        return None
