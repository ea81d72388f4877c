"""How well jobs scale, measured while they run: time in communication over time in computation.

The measure is the MTCT of a phase, ``T_comm / T_compute``, dimensionless; high means bound by
communication. ``m2p``, the share of communication in the phase, is ``mtct / (1 + mtct)``. (Chadha 2019,
sections 3.2 and 5.3; John 2024, on the MTCT; there T_comm is time in MPI calls.) Here both times are what
workers report with every task that ends: see `durations.spent`. The sources average over the processes;
this is the ratio of the sums over a job's tasks, which is that average weighted by computing time and is
defined also when one process has computed nothing.

The tasks that have ended since the last sample are the open sample. A tick closes it when it holds
enough (the sources poll), and so does the beginning of the next phase, at once (there, the application
pushes). A task counts for the phase in which it ends.

What cannot be told from the reports, and is in neither time:

* reading a task's own function and arguments (``deserialize`` is a documented action that no supported
  release sends), spills below 5 ms, spills by the worker's memory manager between tasks: workers put these
  into the metrics of their heartbeats by kind of task, where two jobs cannot be told apart;
* runs that end without a result and without an error: retried, cancelled or stolen ones;
* what clients scatter or gather, and replicas that are made for other reasons than a task.

What counts for the other side: time a P2P shuffle exchanges data in, and time a task waits for tasks of
its own (`worker_client`), are computation as far as its worker knows. A transfer that fetches data for
several tasks counts for one of them. Transfers overlap with the computation of other tasks and count in
full all the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dask_hpc.scheduler.internals.durations import spent

#: Tasks that must have ended before a tick closes a sample: one transfer alone says little.
LEAST_TASKS = 4
#: Phases remembered for a job, and characters of a phase's name.
_PHASES_KEPT = 100
_NAME_LENGTH = 200


def ratio(comm_s: float, compute_s: float) -> float | None:
    """The MTCT of these times; None when it has none (nothing was computed, as far as clocks can tell)."""
    if compute_s <= 0:
        return None
    mtct = comm_s / compute_s
    return mtct if math.isfinite(mtct) else None


def share(mtct: float | None) -> float | None:
    """The m2p that belongs to an MTCT: communication as a share of the phase, 0 to 1."""
    return None if mtct is None else mtct / (1.0 + mtct)


class Phase:
    """Closed samples of one phase of a job: their sums, and the ratios of the last two.

    Attributes
    ----------
    elastic
        Whether its samples are for resizing.
    comm_s, compute_s, tasks
        Seconds of communication and of computation, and tasks that ended.
    mtct, mtct_previous
        Of the latest closed sample and the one before.
    """

    __slots__ = ("comm_s", "compute_s", "elastic", "mtct", "mtct_previous", "name", "samples", "tasks")

    def __init__(self, name: str, elastic: bool = True) -> None:
        self.name = name
        self.elastic = elastic
        self.comm_s = self.compute_s = 0.0
        self.tasks = self.samples = 0
        self.mtct: float | None = None
        self.mtct_previous: float | None = None


class Meter:
    """What is measured of one job: its open sample, its phases, and the figures that policies see.

    All is O(1) but `rows`, and all runs on the scheduler's loop.

    Attributes
    ----------
    comm_s, compute_s, tasks
        The open sample: what has ended since the last one was closed, all in the present phase.
    since_s
        Since when the open sample has held anything; None before the first look at it.
    mtct, mtct_previous
        Of the job's latest sample of an elastic phase and the one before.
    """

    __slots__ = ("comm_s", "compute_s", "mtct", "mtct_previous", "phase", "phases", "since_s", "tasks")

    def __init__(self) -> None:
        self.comm_s = self.compute_s = 0.0
        self.tasks = 0
        self.since_s: float | None = None
        self.mtct: float | None = None
        self.mtct_previous: float | None = None
        self.phase = Phase("")
        self.phases: dict[str, Phase] = {"": self.phase}

    def observe(self, startstops: Sequence[Mapping[str, Any]]) -> float:
        """Add what the worker reports about one task of the job that has ended; returns its seconds.

        Runs for every task.
        """
        if len(startstops) == 1 and (row := startstops[0])["action"] == "compute":  # most: `spent`
            seconds: float = max(0.0, row["stop"] - row["start"])
            self.compute_s += seconds
            self.tasks += 1
            return seconds
        comm_s, compute_s = spent(startstops)
        self.comm_s += comm_s
        self.compute_s += compute_s
        self.tasks += 1
        return comm_s + compute_s

    def sample(self, now_s: float, interval_s: float) -> bool:
        """Close the open sample if it holds enough; returns whether it was closed.

        Enough are `LEAST_TASKS` tasks, and `interval_s` since the last sample was closed. Time in which
        the sample was empty does not count: after a pause, a sample begins anew.
        """
        if self.since_s is None or not self.tasks:
            self.since_s = now_s
        if self.tasks < LEAST_TASKS or now_s - self.since_s < interval_s:
            return False
        self.close(now_s)
        return True

    def begin_phase(self, now_s: float, name: str, *, elastic: bool = True) -> None:
        """A phase begins: the open sample is closed at once, for the phase before.

        Parameters
        ----------
        name
            The phase may have been there before; its figures go on then.
        elastic
            Whether samples of the phase are for resizing. Those of a rigid phase are kept for `rows`, and
            leave what policies see as it was.

        Raises
        ------
        ValueError
            For a name that is no text or too long.
        """
        if not isinstance(name, str) or len(name) > _NAME_LENGTH:
            shown = repr(name) if len(repr(name)) <= 60 else f"{repr(name)[:60]}..."
            raise ValueError(f"phase is {shown}; allowed: a text of at most {_NAME_LENGTH} characters")
        if self.tasks:
            self.close(now_s)
        self.since_s = now_s
        phase = self.phases.get(name)
        if phase is None:
            phase = self.phases[name] = Phase(name)
            while len(self.phases) > _PHASES_KEPT:
                del self.phases[next(iter(self.phases))]
        phase.elastic = elastic
        self.phase = phase

    def close(self, now_s: float) -> None:
        """Make the open sample the current one of its phase, and of the job when the phase is elastic."""
        phase = self.phase
        mtct = ratio(self.comm_s, self.compute_s)
        phase.mtct, phase.mtct_previous = mtct, phase.mtct
        phase.comm_s += self.comm_s
        phase.compute_s += self.compute_s
        phase.tasks += self.tasks
        phase.samples += 1
        if phase.elastic:
            self.mtct, self.mtct_previous = mtct, self.mtct
        self.comm_s = self.compute_s = 0.0
        self.tasks = 0
        self.since_s = now_s

    def resized(self, now_s: float) -> None:
        """The job has another size now: policies wait for a sample of it (the sources use one once)."""
        if self.tasks:
            self.close(now_s)
        self.mtct = self.mtct_previous = None

    def rows(self) -> list[dict[str, Any]]:
        """Figures of the phases as plain data, in the order they were first entered.

        Returns
        -------
        list of dict
            ``phase``, ``elastic``, ``current``; over the whole phase so far ``tasks``, ``comm_s``,
            ``compute_s`` (seconds), ``mtct`` and ``m2p``; of its closed samples ``samples`` (how many),
            ``mtct_sample`` and ``mtct_sample_previous``. A ratio without computation is None.
        """
        return [self._row(phase) for phase in self.phases.values() if phase.tasks or phase is self.phase]

    def _row(self, phase: Phase) -> dict[str, Any]:
        comm_s, compute_s, tasks = phase.comm_s, phase.compute_s, phase.tasks
        if phase is self.phase:
            comm_s, compute_s, tasks = comm_s + self.comm_s, compute_s + self.compute_s, tasks + self.tasks
        mtct = ratio(comm_s, compute_s)
        return {
            "phase": phase.name,
            "elastic": phase.elastic,
            "current": phase is self.phase,
            "tasks": tasks,
            "comm_s": comm_s,
            "compute_s": compute_s,
            "mtct": mtct,
            "m2p": share(mtct),
            "samples": phase.samples,
            "mtct_sample": phase.mtct,
            "mtct_sample_previous": phase.mtct_previous,
        }
