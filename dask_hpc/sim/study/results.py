"""What the runs of a study come to: rows, changes against the baseline, published figures, conditions.

Rules of the file: pure functions of the study and its runs.

Definitions: a row is the runs of one workload and policy that differ in the factors of `Study.over` alone;
its value of a metric is their median, its spread the lowest and highest of them. The change of a run is
100 * (value / value of the baseline - 1), per cent, against the run of the baseline policy with the same
workload and the same factors, as far as that one has them; the change of a row is the median over its runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask_hpc.sim.study.conditions import Amount, Term
from dask_hpc.sim.study.metrics import METRICS
from dask_hpc.sim.study.model import Study
from dask_hpc.sim.study.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A run and the run of the baseline that it is compared with."""

    factors: Mapping[str, Any]
    values: Mapping[str, Any]
    baseline: Mapping[str, Any]

    def change(self, metric: str) -> float | None:
        """Change of a metric against the baseline, in per cent; None without both, or against 0."""
        value, base = self.values.get(metric), self.baseline.get(metric)
        if not isinstance(value, (int, float)) or not isinstance(base, (int, float)) or base == 0:
            return None
        return 100.0 * (value / base - 1.0)

    def verdict(self, metric: str) -> str | None:
        """``better``, ``equal`` or ``worse`` than the baseline; None when there is nothing to compare."""
        value, base = self.values.get(metric), self.baseline.get(metric)
        if not isinstance(value, (int, float)) or not isinstance(base, (int, float)):
            return None
        if value == base:
            return "equal"
        return "better" if (value > base) == (METRICS[metric].better == "higher") else "worse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The runs of one workload and policy that differ in the factors behind a row alone."""

    workload: str
    policy: str
    #: Factors that tell this row from others.
    factors: Mapping[str, Any]
    #: Runs that were done, without those that failed.
    runs: tuple[Run, ...]
    #: The same, as far as there is a baseline; empty for the baseline itself.
    pairs: tuple[Pair, ...] = ()

    @property
    def place(self) -> dict[str, Any]:
        """Workload, policy and factors by name."""
        return {"workload": self.workload, "policy": self.policy, **self.factors}

    def values(self, metric: str) -> list[float]:
        """Of each run that has it, in order."""
        found = [run.values.get(metric) for run in self.runs]
        return [float(value) for value in found if isinstance(value, (int, float))]

    def statistic(self, metric: str, name: str = "median") -> Amount:
        """A statistic (see `study_conditions`) of a metric; None when nothing was measured."""
        if METRICS[metric].by_job:
            lists = {tuple(run.values[metric]) for run in self.runs if run.values.get(metric) is not None}
            return lists.pop() if len(lists) == 1 else None
        if name == "change":
            changes = [change for pair in self.pairs if (change := pair.change(metric)) is not None]
            return statistics.median(changes) if changes else None
        if name in ("better", "equal", "worse"):
            verdicts = [found for pair in self.pairs if (found := pair.verdict(metric)) is not None]
            return 100.0 * verdicts.count(name) / len(verdicts) if verdicts else None
        values = self.values(metric)
        return _OF[name](values) if values else None

    def to_json(self, metrics: Sequence[str]) -> dict[str, Any]:
        """Place, number of runs, and statistics of `metrics`, as plain JSON data."""
        found: dict[str, Any] = {**self.place, "runs": len(self.runs)}
        for metric in metrics:
            if METRICS[metric].by_job:
                value = self.statistic(metric)
                found[metric] = list(value) if isinstance(value, tuple) else None
                continue
            found[metric] = {name: self.statistic(metric, name) for name in _OF}
            if self.pairs:
                found[metric]["change_percent"] = self.statistic(metric, "change")
        return found


_OF: Mapping[str, Callable[[list[float]], float]] = {
    "median": statistics.median, "mean": statistics.fmean, "lowest": min, "highest": max,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A published figure beside ours."""

    of: str
    place: Mapping[str, Any]
    published: float
    source: str
    ours: float | None

    @property
    def difference(self) -> float | None:
        """Ours less the published one."""
        return None if self.ours is None else self.ours - self.published


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A condition on a row, and whether it holds."""

    condition: str
    place: Mapping[str, Any]
    #: True, False, or None: not checked, as no run is left that it speaks of.
    ok: bool | None
    #: What its terms came to.
    found: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""


def rows_of(study: Study, runs: Sequence[Run]) -> list[Row]:
    """The rows of `study`, in the order of its runs."""
    done = [run for run in runs if not run.error]
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        kept = {name: value for name, value in run.scenario.factors.items() if name not in study.over}
        key = (run.scenario.workload, run.scenario.policy, tuple(kept.items()))
        # a row whose runs all failed stands there too, without values
        group = groups.setdefault(key, [])
        if not run.error:
            group.append(run)
    bases = [run for run in done if run.scenario.policy == study.baseline]
    find = _Baseline(bases)
    found = []
    for (workload, policy, kept_items), ok in groups.items():
        pairs: tuple[Pair, ...] = ()
        if policy != study.baseline:
            pairs = tuple(
                Pair(factors=run.scenario.factors, values=run.values, baseline=base.values)
                for run in ok
                if (base := find(run)) is not None
            )
        found.append(
            Row(workload=workload, policy=policy, factors=dict(kept_items), runs=tuple(ok), pairs=pairs)
        )
    return found


class _Baseline:
    """Finds the run of the baseline that has the workload and the factors of another run."""

    def __init__(self, runs: Sequence[Run]) -> None:
        #: By workload: the names of the factors that the baseline has there, and its runs by their values.
        self._by: dict[str, tuple[tuple[str, ...], dict[tuple[Any, ...], Run]]] = {}
        for run in runs:
            factors = run.scenario.factors
            names, table = self._by.setdefault(run.scenario.workload, (tuple(factors), {}))
            table[tuple(factors[name] for name in names)] = run

    def __call__(self, run: Run) -> Run | None:
        names, table = self._by.get(run.scenario.workload, ((), {}))
        factors = run.scenario.factors
        missing = [name for name in names if name not in factors]
        if missing:
            # a run that has fewer factors than the baseline: the value it is fixed at
            factors = {**run.scenario.settings, **factors}
        return table.get(tuple(factors.get(name) for name in names))


def beside(study: Study, rows: Sequence[Row]) -> list[Beside]:
    """Published figures beside ours: one for each row that they are of."""
    return [
        Beside(
            of=str(one.of),
            place=row.place,
            published=one.value,
            source=one.source,
            ours=_number(_worth(one.of, row, rows), one.of.times),
        )
        for one in study.published
        for row in rows
        if _matches(row, one.at)
    ]


def checked(study: Study, rows: Sequence[Row]) -> list[Checked]:
    """Every condition on every row that it is for."""
    found = []
    for expectation in study.expect:
        chosen = [row for row in rows if _matches(row, expectation.at)]
        for condition in expectation.that:
            for row in chosen:
                terms = {term: _worth(term, row, rows) for term in condition.terms()}
                found.append(
                    Checked(
                        condition=condition.text,
                        place=row.place,
                        # that its runs failed is told once
                        ok=condition.holds(terms.__getitem__) if row.runs else None,
                        found={str(term): _plain(value) for term, value in terms.items()},
                        where=expectation.place,
                    )
                )
            if not chosen:
                # a condition of the file itself that nothing answers to is a mistake
                ok = None if study.changed else False
                found.append(
                    Checked(condition=condition.text, place=expectation.at, ok=ok, where=expectation.place)
                )
    return found


def _matches(row: Row, at: Mapping[str, Any]) -> bool:
    place = row.place
    return all(name in place and place[name] in values for name, values in at.items())


def _worth(term: Term, row: Row, rows: Sequence[Row]) -> Amount:
    """The value of `term` for `row`, or for the row of the policy that it names."""
    meant = _meant(term, row, rows)
    return None if meant is None else meant.statistic(term.metric, term.statistic)


def _meant(term: Term, row: Row, rows: Sequence[Row]) -> Row | None:
    """The row of the policy in `term` with the same workload and the same factors, as far as it has them."""
    if term.policy in (None, row.policy):
        return row
    for other in rows:
        same = all(row.factors.get(name, value) == value for name, value in other.factors.items())
        if other.policy == term.policy and other.workload == row.workload and same:
            return other
    return None


def _number(value: Amount, times: float) -> float | None:
    return times * value if isinstance(value, (int, float)) else None


def _plain(value: Amount) -> Any:
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Where the change of a metric against the baseline changes its sign along a factor."""

    metric: str
    place: Mapping[str, Any]
    factor: str
    #: Values of the factor, by linear interpolation between neighbours; several when it turns back.
    at: tuple[float, ...]
    #: Change at the lowest and at the highest value, per cent.
    first: float
    last: float


def turns(study: Study, rows: Sequence[Row]) -> list[Turn]:
    """Where changes against the baseline turn along `Study.sign_change`, per workload, policy and metric."""
    along = study.sign_change
    if along is None:
        return []
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.pairs and isinstance(row.factors.get(along), (int, float)):
            rest = tuple((name, value) for name, value in row.place.items() if name != along)
            groups.setdefault(rest, []).append(row)
    found = []
    for rest, group in groups.items():
        for metric in study.metrics:
            points = sorted(
                (float(row.factors[along]), change)
                for row in group
                if isinstance(change := row.statistic(metric, "change"), (int, float))
            )
            if len(points) > 1:
                at = tuple(sign_changes(points))
                ends = {"first": points[0][1], "last": points[-1][1]}
                found.append(Turn(metric=metric, place=dict(rest), factor=along, at=at, **ends))
    return found


def sign_changes(points: Sequence[tuple[float, float]]) -> list[float]:
    """Where a function through `points` (ascending, straight between them) goes from one sign to the other.

    Zeros are of neither sign: one that lies between two signs is where it turns, several in a row turn at the
    first of them.
    """
    found = []
    before: tuple[float, float] | None = None
    zero: float | None = None
    for x, y in points:
        if y == 0:
            zero = x if zero is None else zero
            continue
        if before is not None and (before[1] < 0) != (y < 0):
            x0, y0 = before
            found.append(zero if zero is not None else x0 + (x - x0) * y0 / (y0 - y))
        before, zero = (x, y), None
    return found
