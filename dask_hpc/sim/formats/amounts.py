"""Amounts of work, bytes and time that a file gives as numbers or formulas.

Rules of the file: a formula is worked out for every size that the job may take when the file is read; what
the simulation gets is a number or a table, so that a workload that has been read cannot fail later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dask_hpc.sim.formats.fields import Field, short
from dask_hpc.sim.formats.formula import Formula, FormulaError, compile_formula
from dask_hpc.sim.model.job import Amount, Repeat, Stage, amount

#: Most sizes that a job with formulas may have.
MOST_SIZES = 100_000
#: Largest amount of anything.
LARGEST = 1e24
#: Most steps of one job, and deepest nesting.
MOST_STEPS = 10_000_000
DEEPEST = 20


@dataclass(frozen=True, slots=True)
class BySize:
    """An amount that was worked out for each size from `low` nodes on; the nearest outside."""

    low: int
    values: tuple[float, ...]

    def __call__(self, nodes: int) -> float:
        """The amount on `nodes` nodes."""
        return self.values[min(max(nodes - self.low, 0), len(self.values) - 1)]


@dataclass(slots=True)
class Sizes:
    """The job that a model is read for: its sizes, and what its formulas may name."""

    low: int
    high: int
    #: Values of the names, such as the job's arguments.
    values: Mapping[str, float] = field(default_factory=dict)
    #: Arguments that are texts, which no formula may use.
    texts: Mapping[str, str] = field(default_factory=dict)
    #: What formulas call the number of nodes.
    size_name: str = "nodes"
    #: Whether an amount may be a mapping from numbers of nodes to values as well.
    tables: bool = False
    #: Counts of what is simulated otherwise than the file says.
    notes: dict[str, int] = field(default_factory=dict)

    @property
    def rigid(self) -> bool:
        """Has it one size only?"""
        return self.low == self.high

    def note(self, text: str) -> None:
        """Count one case of `text`."""
        self.notes[text] = self.notes.get(text, 0) + 1


def read_formula(place: Field) -> Formula | None:
    """The formula at `place`; None when there is no text but a number.

    Raises
    ------
    WorkloadError
        When the text is no formula.
    """
    if not isinstance(place.value, str):
        return None
    try:
        return compile_formula(place.value)
    except FormulaError as error:
        place.fail(str(error))


def read_amount(
    place: Field,
    sizes: Sizes,
    more: Mapping[str, float] | None = None,
    clip: Callable[[float], float] | None = None,
) -> Amount:
    """The number or formula at `place`, from 0 to `LARGEST`, for every size of the job.

    Parameters
    ----------
    more
        Further names and their values.
    clip
        Applied to each result.

    Raises
    ------
    WorkloadError
        When it is neither, names what is not known or a text, divides by zero or leaves the range at any
        size.
    """
    if sizes.tables and isinstance(place.value, dict):
        return _read_table(place, sizes, clip)
    formula = read_formula(place)
    if formula is None:
        number = place.number(0.0, LARGEST)
        return clip(number) if clip else number
    values = {**sizes.values, **(more or {})}
    for name in sorted(formula.names & sizes.texts.keys() - values.keys() - {sizes.size_name}):
        place.fail(
            f"{formula.text!r} uses the argument {name!r}, which is the text {short(sizes.texts[name])}; "
            "an argument of a formula must be a number"
        )
    depends = sizes.size_name in formula.names
    if depends and sizes.high - sizes.low >= MOST_SIZES:
        place.fail(f"a formula for {sizes.high - sizes.low + 1} sizes; at most {MOST_SIZES} are worked out")
    results = []
    for nodes in range(sizes.low, sizes.high + 1 if depends else sizes.low + 1):
        values[sizes.size_name] = float(nodes)
        try:
            result = formula(values)
        except FormulaError as error:
            place.fail(str(error))
        if not 0 <= result <= LARGEST:
            where = f" on {nodes} nodes" if depends else ""
            place.fail(f"{formula.text!r} is {result:g}{where}; it must be from 0 to {LARGEST:g}")
        results.append(clip(result) if clip else result)
    return _table(sizes, results)


def _read_table(place: Field, sizes: Sizes, clip: Callable[[float], float] | None) -> Amount:
    """A value for every size of the job; values for other sizes are not used."""
    if sizes.high - sizes.low >= MOST_SIZES:
        place.fail(f"a table for {sizes.high - sizes.low + 1} sizes; at most {MOST_SIZES} are read")
    values = dict(place.items())
    results = []
    for nodes in range(sizes.low, sizes.high + 1):
        if str(nodes) not in values:
            place.fail(
                f"no value for {nodes} nodes; a table has one for each size, {sizes.low} to {sizes.high}"
            )
        value = values[str(nodes)].number(0.0, LARGEST)
        results.append(clip(value) if clip else value)
    return _table(sizes, results)


def by_size(sizes: Sizes, function: Callable[[int, float], float], value: Amount = 0.0) -> Amount:
    """The amount that is ``function(nodes, value on so many nodes)``."""
    return _table(sizes, [function(n, amount(value, n)) for n in range(sizes.low, sizes.high + 1)])


def most_steps(stages: tuple[Stage, ...] | list[Stage]) -> float:
    """Stages that a job goes through, at most."""
    total = 0.0
    for stage in stages:
        total += 1
        if isinstance(stage, Repeat):
            times = stage.times
            most = max(times.values) if isinstance(times, BySize) else amount(times, 1)
            total += most * most_steps(stage.stages)
    return total


def repeated(stages: list[Stage], times: int) -> list[Stage]:
    """`stages` so many times."""
    if times == 1 or not stages:
        return stages
    return [Repeat(stages=tuple(stages), times=float(times))] if times else []


def _table(sizes: Sizes, results: list[float]) -> Amount:
    """One number when it is the same at every size."""
    return results[0] if len(set(results)) == 1 else BySize(sizes.low, tuple(results))
