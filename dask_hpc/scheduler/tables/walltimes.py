"""When the Slurm jobs that workers are in end, asked again while they run.

A worker knows when its job was to end as it began. A time limit can be changed since, so Slurm is asked
every ``hpc.slurm.poll``, while the runtime is awake: one question for all jobs, whatever their number of
nodes. What cannot be asked stays as it was.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Mapping
from typing import Any

from dask_hpc.errors import SlurmError
from dask_hpc.slurm import commands

logger = logging.getLogger(__name__)

#: Of a worker's section ``node``: its job, and when it ends whatever Slurm says (see `worker.node`).
_JOB, _LIMIT = "slurm_job", "limit_end_s"
#: Ends that differ by less are the same.
_SAME_S = 1.0
#: A job, and when it was to end as a worker in it began: one that Slurm starts again keeps its number.
_Run = tuple[str, float]


class Walltimes:
    """The ends of jobs as Slurm told them last."""

    def __init__(self) -> None:
        #: By run of a job, in seconds since 1970; infinity: it has no limit.
        self._ends_s: dict[_Run, float] = {}
        self._asked_s = -math.inf
        self._asking: asyncio.Task[None] | None = None
        self._trouble = ""

    def look(self, sections: Collection[Mapping[str, Any]], now_s: float, poll_s: float) -> None:
        """Ask again if it is time, without waiting for the answer.

        Parameters
        ----------
        sections
            What workers say of their nodes.
        now_s, poll_s
            The time, and how often to ask, in seconds.
        """
        if now_s - self._asked_s < poll_s or (self._asking is not None and not self._asking.done()):
            return
        runs = {_run(section) for section in sections if section.get(_JOB)}
        if runs:
            self._asked_s = now_s
            self._asking = asyncio.ensure_future(self._ask(runs))

    async def _ask(self, runs: set[_Run]) -> None:
        try:
            told = await commands.job_ends_s({job for job, _ in runs})
        except (SlurmError, OSError) as error:
            if str(error) != self._trouble:
                logger.warning("Whether jobs of Slurm have got another time limit is not known: %s", error)
            self._trouble = str(error)
            return
        self._trouble = ""
        kept = {run: end_s for run, end_s in self._ends_s.items() if run in runs}
        self._ends_s = kept | {run: told[run[0]] for run in runs if run[0] in told}

    def end_s(self, section: Mapping[str, Any]) -> tuple[float | None, bool]:
        """When a worker has to end, in seconds since 1970, and whether that is sooner than it knows itself.

        None: nobody knows of an end.
        """
        _, own_s = run = _run(section)
        asked_s = self._ends_s.get(run)
        if asked_s is None:
            return (own_s if own_s < math.inf else None), False
        end_s = min(asked_s, _seconds(section.get(_LIMIT)))
        return (end_s if end_s < math.inf else None), end_s < own_s - _SAME_S

    def stop(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()


def _run(section: Mapping[str, Any]) -> _Run:
    return str(section.get(_JOB)), _seconds(section.get("end_s"))


def _seconds(said: Any) -> float:
    """What a worker says; infinity: nothing that can be used."""
    return float(said) if isinstance(said, int | float) and math.isfinite(said) else math.inf
