"""What an analysis, or a step of a simulation, takes: learned from measured samples.

Rules of the file: pure values; a learner and a sample give the next learner. What a user says beforehand is
a prior: an estimate without samples. A sample far from the estimate is kept aside: when the next is as far on
the same side, what is measured has changed, and the estimate begins anew with the two. Else it was an
outlier, and counts as no farther than samples may be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dask_hpc_policies.placement.view import AnalysisView, SimulationView

#: Samples that an estimate remembers: later ones outweigh earlier ones.
MEMORY = 16
#: How far a sample may be from the estimate, relative, or in standard deviations where these are more.
NEAR = 0.25
DEVIATIONS = 4.0
#: Samples in a row that are farther on one side: a change.
CHANGED = 2
#: Times at another number of cores after which it is learned how work scales: the first may be of before.
SCALED = 8
#: Share of the way that an estimate of a peak goes down to a lower one.
_DOWN = 1 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one value of an analysis, or one step, took. None: not measured."""

    #: Seconds of all cores together, waiting excluded.
    core_s: float | None = None
    #: From its beginning to its end, and on how many cores.
    wall_s: float | None = None
    cores: int = 1
    #: Most memory at once, and bytes read, on all nodes together.
    memory_bytes: float | None = None
    input_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The mean of samples, the latest `MEMORY` weighing most."""

    #: None: neither measured nor said.
    mean: float | None = None
    #: Samples so far; 0: the mean is a hint.
    samples: int = 0
    #: So many samples the mean weighs; a hint weighs one.
    weight: int = 1
    variance: float = 0.0
    #: Differences up to this are no change, whatever the mean.
    least: float = 0.0
    #: Samples that were far from the mean, in a row and on one side, until they are believed.
    far: tuple[float, ...] = ()

    @property
    def spread(self) -> float:
        """Standard deviation over the mean."""
        return math.sqrt(self.variance) / self.mean if self.mean else 0.0

    def after(self, value: float) -> Estimate:
        """The estimate when `value` has been measured as well."""
        counted = replace(self, samples=self.samples + 1)
        if self.mean is None:
            return replace(counted, mean=value)
        if abs(value - self.mean) <= self._reach:
            return counted._weighed(self.far)._weighed((value,))
        if self.far and (self.far[-1] > self.mean) == (value > self.mean):
            far = (*self.far, value)
            return counted._anew(far) if len(far) == CHANGED else replace(counted, far=far)
        return replace(counted._weighed(self.far), far=(value,))

    @property
    def _reach(self) -> float:
        """How far from the mean a sample may be."""
        return max(NEAR * (self.mean or 0.0), DEVIATIONS * math.sqrt(self.variance), self.least)

    def _weighed(self, values: tuple[float, ...]) -> Estimate:
        """With values that are no change; none of them is taken for farther than it may be."""
        found = replace(self, far=())
        for value in values:
            assert found.mean is not None
            reach = found._reach
            difference = min(max(value - found.mean, -reach), reach)
            weight = min(found.weight + 1, MEMORY)
            found = replace(
                found,
                mean=found.mean + difference / weight,
                weight=weight,
                variance=(1 - 1 / weight) * (found.variance + difference * difference / weight),
            )
        return found

    def _anew(self, values: tuple[float, ...]) -> Estimate:
        """An estimate of these values alone; noise in proportion stays what it was."""
        mean = math.fsum(values) / len(values)
        deviation = self.spread * mean
        return replace(
            self,
            mean=mean,
            weight=len(values),
            variance=deviation * deviation,
            far=(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """What is known of one analysis, or of the steps of a simulation."""

    one_core_s: Estimate = Estimate()
    #: Share of the work that no second core speeds up (Amdahl).
    serial_fraction: Estimate = Estimate(least=NEAR)
    memory_bytes: float | None = None
    input_bytes: float | None = None
    #: Of work that only times are known of: these at the present number of cores, and what they were before.
    cores: int = 0
    wall_s: Estimate = Estimate()
    other: tuple[int, float] | None = None

    @classmethod
    def said(
        cls,
        *,
        one_core_s: float | None = None,
        serial_fraction: float | None = None,
        memory_bytes: float | None = None,
        input_bytes: float | None = None,
    ) -> Learner:
        """With what a user says beforehand; None: nothing."""
        return cls(
            one_core_s=Estimate(mean=one_core_s),
            serial_fraction=Estimate(mean=serial_fraction, least=NEAR),
            memory_bytes=memory_bytes,
            input_bytes=input_bytes,
        )

    def after(self, sample: Sample) -> Learner:
        """What is known when this was measured as well.

        Without `Sample.core_s` the work follows from the time and the serial fraction that is known, and that
        from the first times at another number of cores.
        """
        known = self
        if sample.core_s is not None:
            known = self._worked(sample.core_s, sample.wall_s, sample.cores)
        elif sample.wall_s is not None:
            known = self._timed(sample.wall_s, sample.cores)
        return replace(
            known,
            memory_bytes=_peak(self.memory_bytes, sample.memory_bytes),
            input_bytes=self.input_bytes if sample.input_bytes is None else sample.input_bytes,
        )

    def _worked(self, work_s: float, wall_s: float | None, cores: int) -> Learner:
        """What is known when it has worked for so long on all of so many cores together."""
        serial = self.serial_fraction
        if wall_s is not None and cores > 1 and work_s > 0:
            alone = (wall_s * cores / work_s - 1) / (cores - 1)
            serial = serial.after(min(max(alone, 0.0), 1.0))
        return replace(self, one_core_s=self.one_core_s.after(work_s), serial_fraction=serial)

    def _timed(self, wall_s: float, cores: int) -> Learner:
        """What is known when it has taken so long on so many cores, and nothing else was measured."""
        there, other = self.wall_s, self.other
        if cores != self.cores:
            other = None if there.mean is None else (self.cores, there.mean)
            there = Estimate()
        there, serial, work = there.after(wall_s), self.serial_fraction, self.one_core_s
        assert there.mean is not None
        if other is not None and there.samples == SCALED:
            serial = replace(serial, mean=_serial(*other, cores, there.mean))
            # what was taken for work was so by another one; noise in proportion stays what it was
            mean = there.mean / scaled(1.0, serial.mean or 0.0, cores)
            work = replace(work, mean=mean, variance=(work.spread * mean) ** 2, far=())
        work = work.after(wall_s / scaled(1.0, serial.mean or 0.0, cores))
        return replace(self, one_core_s=work, serial_fraction=serial, cores=cores, wall_s=there, other=other)

    def after_sizes(self, memory_bytes: float, input_bytes: float) -> Learner:
        """With sizes that follow from what it reads, where nothing larger was measured or said."""
        return replace(
            self, memory_bytes=max(self.memory_bytes or 0.0, memory_bytes), input_bytes=input_bytes
        )

    def of_analysis(self, view: AnalysisView) -> AnalysisView:
        """`view` with what is known."""
        return replace(
            view,
            one_core_s=self.one_core_s.mean,
            serial_fraction=self.serial_fraction.mean or 0.0,
            memory_bytes=self.memory_bytes,
            input_bytes=self.input_bytes,
            samples=self.one_core_s.samples,
            spread=self.one_core_s.spread,
        )

    def of_simulation(self) -> SimulationView:
        """What is known, of the steps of a simulation."""
        return SimulationView(
            one_core_s=self.one_core_s.mean,
            serial_fraction=self.serial_fraction.mean or 0.0,
            memory_bytes=self.memory_bytes or 0.0,
            samples=self.one_core_s.samples,
            spread=self.one_core_s.spread,
        )


def scaled(one_core_s: float, serial_fraction: float, cores: float) -> float:
    """How long work takes on so many cores (Amdahl)."""
    return one_core_s * (serial_fraction + (1 - serial_fraction) / cores)


def _serial(cores: int, wall_s: float, other_cores: int, other_s: float) -> float:
    """The serial fraction of work that takes so long on these numbers of cores, which are not the same."""
    parallel_s = (wall_s - other_s) / (1 / cores - 1 / other_cores)
    alone_s = wall_s - parallel_s / cores
    # what gets slower with more cores, or faster than they are more
    parallel_s, alone_s = max(parallel_s, 0.0), max(alone_s, 0.0)
    return alone_s / (parallel_s + alone_s) if parallel_s + alone_s > 0 else 0.0


def _peak(known: float | None, measured: float | None) -> float | None:
    """A peak at once when it is higher, little by little when it is lower."""
    if measured is None or known is None or measured >= known:
        return known if measured is None else measured
    return known - _DOWN * (known - measured)
