"""When a running job will end, from its tasks, and an interval that holds the share of ends that it states.

Rules of the file: pure; a calibration is a value, and an outcome gives another one.

The interval is that of split conformal prediction (Vovk, Gammerman and Shafer 2005, section 4.2, in its
inductive form), with jobs told apart by how much of them has run and whether they may be resized (the
categories of their section 4.5). The error of a forecast is the logarithm of what a job still took over what
it was expected to still take; of `n` earlier errors those of rank ``ceil((n + 1) * (1 + level) / 2)`` from
below and from above bound the next with that probability when they are exchangeable. They are not where load
changes: the level that is asked for follows the misses (Gibbs and Candes 2021, section 2, equation 2).

An interval that is assumed, as too few errors are known, states no share: its error is learned from, but it
neither counts as held or missed, nor moves the level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, exp, log

#: The share of ends that an interval is to hold.
LEVEL = 0.9
#: Errors from which such a share can be told at all: one in twenty may be beyond either bound.
LEAST_ERRORS = 19
#: The factor either way while fewer are known.
ASSUMED_FACTOR = 1.5
#: Errors of a category that are remembered, the latest.
ERRORS_KEPT = 200
#: How far one outcome moves the level that is asked for, and the range that it keeps to.
_STEP, _LEAST_LEVEL, _MOST_LEVEL = 0.02, 0.7, 0.99
#: What is shorter than a clock tells is no error.
_CLOCK_S = 0.01
#: Less use of its slots than that is taken for a pause.
_LEAST_USE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Seconds that a job still takes, and the bounds of them."""

    expected_s: float
    low_s: float
    high_s: float
    #: Earlier errors behind it; 0: the bounds are assumed.
    errors: int = 0


@dataclass(frozen=True, slots=True)
class Category:
    """Errors of one category, the level that is asked of it, and how many ends its intervals held."""

    errors: tuple[float, ...] = ()
    level: float = LEVEL
    inside: int = 0
    #: Ends of which an interval was stated, and those of which one was assumed.
    ends: int = 0
    assumed: int = 0


@dataclass(frozen=True, slots=True)
class Calibration:
    """What came of earlier forecasts, by category."""

    categories: Mapping[str, Category] = field(default_factory=dict)

    def interval(self, category: str, expected_s: float) -> Interval:
        """The interval about `expected_s` (seconds) for a job of the category.

        A category that has shown too little is taken to err as all of them together.

        Raises
        ------
        ValueError
            When `expected_s` is negative or not finite.
        """
        if not 0 <= expected_s < float("inf"):
            raise ValueError(f"expected_s is {expected_s!r}; needed: a number of seconds, 0 or more")
        own = self.categories.get(category, Category())
        errors = own.errors
        if len(errors) < LEAST_ERRORS:
            errors = tuple(error for one in self.categories.values() for error in one.errors)
        if len(errors) < LEAST_ERRORS:
            return _within(expected_s, 1 / ASSUMED_FACTOR, ASSUMED_FACTOR, 0)
        rank = min(len(errors), ceil((len(errors) + 1) * (1 + own.level) / 2))
        errors = tuple(sorted(errors))
        # what is expected is inside, also where all were late
        low, high = min(0.0, errors[-rank]), max(0.0, errors[rank - 1])
        return _within(expected_s, exp(low), exp(high), len(errors))

    def with_end(self, category: str, told: Interval, took_s: float) -> Calibration:
        """The calibration once a job of which `told` was said has taken `took_s` seconds from then on.

        Raises
        ------
        ValueError
            When `took_s` is negative or not finite.
        """
        if not 0 <= took_s < float("inf"):
            raise ValueError(f"took_s is {took_s!r}; needed: a number of seconds, 0 or more")
        old = self.categories.get(category, Category())
        error = log((took_s + _CLOCK_S) / (told.expected_s + _CLOCK_S))
        new = replace(old, errors=(*old.errors, error)[-ERRORS_KEPT:])
        if told.errors:
            inside = told.low_s <= took_s <= told.high_s
            level = old.level + _STEP * ((0 if inside else 1) - (1 - LEVEL))
            level = min(_MOST_LEVEL, max(_LEAST_LEVEL, level))
            new = replace(new, level=level, inside=old.inside + inside, ends=old.ends + 1)
        else:
            new = replace(new, assumed=old.assumed + 1)
        return Calibration({**self.categories, category: new})

    @property
    def ends(self) -> int:
        """Forecasts with a stated interval that have been held against what came."""
        return sum(one.ends for one in self.categories.values())

    @property
    def assumed(self) -> int:
        """Forecasts with an assumed interval whose jobs have ended."""
        return sum(one.assumed for one in self.categories.values())

    @property
    def inside(self) -> float | None:
        """Share of the ends that were inside their stated intervals; None: there was none yet."""
        ends = self.ends
        return sum(one.inside for one in self.categories.values()) / ends if ends else None


def _within(expected_s: float, low: float, high: float, errors: int) -> Interval:
    # the error is about seconds and the grain of a clock: so are the bounds
    low_s = max(0.0, (expected_s + _CLOCK_S) * low - _CLOCK_S)
    high_s = (expected_s + _CLOCK_S) * high - _CLOCK_S
    return Interval(expected_s=expected_s, low_s=low_s, high_s=high_s, errors=errors)


def work_left_s(work_s: float, tasks: int, on_workers: int, slots: float, use: float = 1.0) -> float:
    """Seconds of one slot that a job's tasks still need.

    Those on workers are half done, as they are on average.

    Parameters
    ----------
    work_s
        What the tasks take together, in seconds of one slot.
    tasks, on_workers
        Those that have not ended, and those of them that are on workers.
    slots
        Tasks that may run at once, above 0.
    use
        Share of its slots that the job has kept busy, 0 to 1: the rest waits for data, or for other tasks.
    """
    if tasks < 1:
        return 0.0
    begun = min(on_workers, slots, tasks)
    return (work_s - work_s / tasks * begun / 2) / min(1.0, max(use, _LEAST_USE))


def last_s(task_s: float, tasks: int, slots: float) -> float:
    """Seconds by which the last of the tasks ends later than they do on average.

    They end one after the other: of `k` ends spread evenly the last is ``(k - 1) / (2 (k + 1))`` of a task
    after the mean.
    """
    width = min(slots, tasks)
    return task_s * (width - 1) / (2 * (width + 1)) if width > 1 else 0.0
