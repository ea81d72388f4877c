"""How long a job will run: from what the same application took before, else from what the user asked for.

Rules of the file: pure; a book of recorded runs is a value, and recording a run gives another one. Runs are
kept by application and number of nodes, as recorded on a machine of one's own (ADMIRE 2023, deliverable
D3.3, section 4.1.1: estimates come from recorded runs rather than from walltimes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

#: Where an estimate comes from: runs of that size, runs of other sizes, the walltime.
Source = Literal["recorded", "scaled", "walltime"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An expected run time in seconds."""

    seconds: float
    source: Source
    #: Number of recorded runs behind it.
    runs: int = 0


@dataclass(frozen=True, slots=True)
class RecordedRuns:
    """Completed runs: for each application and size their number and the sum of their run times."""

    #: (application, nodes) to (number of runs, their seconds together).
    totals: Mapping[tuple[str, int], tuple[int, float]] = field(default_factory=dict)

    def with_run(self, application: str, nodes: int, runtime_s: float) -> RecordedRuns:
        """The book with one more run; a run without application or of no length teaches nothing.

        Raises
        ------
        ValueError
            When `nodes` is below 1 or `runtime_s` is negative or not finite.
        """
        if nodes < 1 or not 0 <= runtime_s < float("inf"):
            raise ValueError(f"a run of {runtime_s!r} s on {nodes!r} nodes: both must be positive and finite")
        if not application or runtime_s == 0:
            return self
        totals = dict(self.totals)
        number, seconds = totals.pop((application, nodes), (0, 0.0))
        totals[application, nodes] = (number + 1, seconds + runtime_s)
        return RecordedRuns(totals)

    def latest(self, number: int) -> RecordedRuns:
        """The book with no more than `number` pairs of application and size: those that ran last."""
        if len(self.totals) <= number:
            return self
        return RecordedRuns(dict(list(self.totals.items())[-number:]))

    def mean_s(self, application: str, nodes: int) -> float | None:
        """Mean run time of the application on that size; None when it never ran on it."""
        found = self.totals.get((application, nodes))
        return None if found is None else found[1] / found[0]

    def estimate(self, application: str, nodes: int, walltime_s: float | None) -> Estimate | None:
        """What a run of `application` on `nodes` nodes is expected to take.

        The mean of the runs on that size; else that of the nearest size that was recorded (of two as near,
        the smaller), as if it did the same node-seconds; never more than the walltime, after which the job
        is ended; else the walltime. None without any of them.
        """
        sizes = sorted(n for name, n in self.totals if name == application)
        if not sizes:
            return None if walltime_s is None else Estimate(seconds=walltime_s, source="walltime")
        nearest = min(sizes, key=lambda n: (abs(n - nodes), n))
        number, seconds = self.totals[application, nearest]
        expected_s = seconds / number * nearest / nodes
        if walltime_s is not None:
            expected_s = min(expected_s, walltime_s)
        source: Source = "recorded" if nearest == nodes else "scaled"
        return Estimate(seconds=expected_s, source=source, runs=number)


def remaining_s(elapsed_s: float, recorded_s: float | None, walltime_s: float | None) -> float | None:
    """How long a job that has run for `elapsed_s` is expected to run on, at least 0.

    To the end of its recorded time; once it has outlasted that, to its walltime, which then is all that is
    known (predictions are corrected when jobs outlive them: Tsafrir, Etsion and Feitelson 2007). None
    without either.
    """
    if walltime_s is None:
        return None if recorded_s is None else max(0.0, recorded_s - elapsed_s)
    end_s = walltime_s
    if recorded_s is not None and elapsed_s < recorded_s:
        end_s = min(recorded_s, walltime_s)
    return max(0.0, end_s - elapsed_s)
