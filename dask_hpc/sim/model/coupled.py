"""A coupled run: a simulation that hands over its steps to analyses, in situ or in transit.

Rules of the file: frozen dataclasses; what is measured in such a run is in `engine.coupled`.
"""

from __future__ import annotations

from dataclasses import dataclass

from dask_hpc_policies.placement.application import Application, Mode
from dask_hpc_policies.placement.view import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """From a step on, the work of an analysis is so many times what it was."""

    step: int
    analysis: str
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Who has to have the values of a step before it is done."""

    #: For each step, and once more before it goes on with that step.
    seconds: float = 0.0
    stalls: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Coupled:
    """A coupled run on all nodes of a job, as a stage of its program; steps count from 0.

    How long things take is what the planner's models say (`dask_hpc_policies.placement.times`): the nodes of
    the simulation give helper cores to analyses in situ, which run one after another; staging nodes take what
    they are sent, then compute, one analysis after another, or both at once (`Platform.pipelined`).
    """

    #: Its name.
    flow: str
    steps: int
    #: What its parts take. The user knows that beforehand (hints), and not how it drifts.
    application: Application
    #: How it is split unless a policy says otherwise.
    split: Split
    mode: Mode = "asynchronous"
    #: Steps in flight, and what becomes of one for which there is no room (`coupling.contract.WHEN_FULL`).
    queue: int = 2
    when_full: str = "wait"
    drifts: tuple[Drift, ...] = ()
    #: Standard deviation of the logarithm of each time.
    noise: float = 0.0
    #: None: nobody reads.
    reader: Reader | None = None

    def work_s(self, analysis: str, one_core_s: float, step: int) -> float:
        """Work of a step of an analysis on one core, without noise."""
        for drift in self.drifts:
            if drift.analysis == analysis and step >= drift.step:
                one_core_s *= drift.factor
        return one_core_s
