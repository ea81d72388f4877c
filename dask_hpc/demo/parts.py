"""What the demo shows and checks, part by part. Another part is one function and one `register`.

Rules of the file: a part gets what a run gave and says what it found; it starts nothing and prints nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask_hpc.trace.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """One demo: what each act gave on stock Dask and under the policy, and the last trace of the latter."""

    #: By the name of the act, one mapping a round.
    stock: Sequence[Mapping[str, Any]]
    managed: Sequence[Mapping[str, Any]]
    records: Sequence[Record]

    def pairs(self, act: str) -> list[tuple[Any, Any]]:
        """What an act gave in each round, on stock Dask and under the policy."""
        return [(stock[act], ours[act]) for stock, ours in zip(self.stock, self.managed, strict=True)]


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of the closing table, once for each round."""

    what: str
    stock: Sequence[float]
    ours: Sequence[float]
    shown: Callable[[float], str]

    @classmethod
    def of(
        cls,
        what: str,
        pairs: Sequence[tuple[Any, Any]],
        figure: Callable[[Any], float],
        shown: Callable[[float], str] = "{:g}".format,
    ) -> Row:
        """The row of a figure of what an act gave."""
        return cls(what, [figure(stock) for stock, _ in pairs], [figure(ours) for _, ours in pairs], shown)

    @property
    def stock_median(self) -> float:
        """Over the rounds."""
        return statistics.median_low(self.stock)

    @property
    def ours_median(self) -> float:
        """Over the rounds."""
        return statistics.median_low(self.ours)

    @property
    def change(self) -> str:
        """From stock Dask's to ours, in a few words."""
        before, after = self.shown(self.stock_median), self.shown(self.ours_median)
        number, _, unit = before.partition(" ")
        return f"{number if after.endswith(f' {unit}') else before} to {after}"

    def cells(self) -> dict[str, str]:
        """Texts of the row: medians, and the spread over the rounds where there is any."""
        return {"what": self.what, "stock": self._cell(self.stock), "ours": self._cell(self.ours)}

    def as_data(self, name: str) -> dict[str, Any]:
        """The values of all rounds for JSON."""
        return {name: list(self.ours), f"stock_{name}": list(self.stock)}

    def _cell(self, values: Sequence[float]) -> str:
        shown = self.shown(statistics.median_low(values))
        low, high = self.shown(min(values)), self.shown(max(values))
        return shown if low == high else f"{shown} ({low} to {high})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one part has found."""

    #: Printed as results: text by name.
    results: Mapping[str, str] = field(default_factory=dict)
    #: Shown in the report: text by title.
    notes: Mapping[str, str] = field(default_factory=dict)
    #: Entries of the summary as JSON.
    summary: Mapping[str, Any] = field(default_factory=dict)
    #: Rows of the closing table.
    table: Sequence[Row] = ()
    #: What a newcomer would quote, without a full stop; empty: nothing, as where nothing was gained.
    quote: str = ""
    #: What did not pay on this machine, a sentence each without a full stop; no error.
    unpaid: Sequence[str] = ()
    #: What is not as it should be, a sentence each without a full stop; the exit code tells of it.
    errors: Sequence[str] = ()


Part = Callable[[DemoRun], Verdict]

_parts: list[Part] = []


def register(*parts: Part) -> None:
    """Have every demo from now on show what `parts` find, after what it shows already."""
    _parts.extend(parts)


def find(run: DemoRun) -> list[Verdict]:
    """What all parts find."""
    return [part(run) for part in _parts]
