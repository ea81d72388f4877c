"""How a measured quantity goes with the number of nodes: a power law, or Amdahl's, whichever errs less.

*Power law*: ``a * n ** b``. *Amdahl's* (1967): ``a + b / n``, a part that every node has in full and one that
is shared out, neither below nothing. Both are fitted to the median of each size by least squares of relative
errors. The error of a law is how far it is off, at the root of the mean square, at a size that it was not
fitted to, each size left out in turn; it takes three sizes to know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from dask_hpc_policies.jobs.constraints import legal_sizes
from dask_hpc_policies.model import JobRequest

Kind = Literal["power", "amdahl"]
#: Nodes and the value there.
Rows = Sequence[tuple[int, float]]
#: A law is tabulated at so many sizes at most; between them it is straight.
_MOST_SIZES = 64
#: No power law is steeper, up or down: two neighbouring sizes that differ by chance would make it one that
#: no number holds at others.
_STEEPEST = 10.0


@dataclass(frozen=True, slots=True)
class Law:
    """What `fit` has found.

    Attributes
    ----------
    kind
        ``power`` or ``amdahl``.
    a, b
        Its two numbers; see the module.
    error
        Relative error at sizes it was not fitted to; None: fewer than three sizes are known.
    sizes
        Nodes that it was fitted to, ascending.
    """

    kind: Kind
    a: float
    b: float
    error: float | None
    sizes: tuple[int, ...]

    def at(self, nodes: int) -> float:
        """The value on so many nodes."""
        return self.a * nodes**self.b if self.kind == "power" else self.a + self.b / nodes


def fit(found: Mapping[int, Sequence[float]]) -> Law | None:
    """The law of values by number of nodes; None while fewer than two sizes have a value above 0.

    With two sizes both laws meet them: it is Amdahl's then, where its parts are not below nothing. None also
    where neither does: the values differ more between them than nodes account for.
    """
    rows = [(n, middle) for n, values in sorted(found.items()) if values and (middle := median(values)) > 0]
    if len(rows) < 2:
        return None
    sizes = tuple(n for n, _ in rows)
    kinds: tuple[Kind, ...] = ("amdahl", "power")
    if len(rows) == 2:
        meets = [kind for kind in kinds if all(math.isclose(_at(kind, rows, n), y) for n, y in rows)]
        return Law(meets[0], *_FITS[meets[0]](rows), None, sizes) if meets else None
    error, kind = min(((_left_out(kind, rows), kind) for kind in kinds), key=lambda each: each[0])
    return Law(kind, *_FITS[kind](rows), error, sizes)


def shares_by_size(
    request: JobRequest, io_s: Mapping[int, Sequence[float]], task_s: Mapping[int, Sequence[float]]
) -> dict[int, float]:
    """Share of its time that a job spends in I/O, 0 to 1, by nodes, for `JobRequest.io_by_nodes`.

    As measured at sizes that have been; by the two laws at other sizes that the job may have.

    Parameters
    ----------
    io_s, task_s
        Seconds in I/O, and in all, of earlier runs, by nodes.
    """
    sizes = [n for n, values in task_s.items() if values and median(values) > 0 and io_s.get(n)]
    found = {n: min(1.0, median(io_s[n]) / median(task_s[n])) for n in sizes}
    part, whole = fit(io_s), fit(task_s)
    if part is not None and whole is not None:
        for n in _some(legal_sizes(request.constraint, request.min_nodes, request.max_nodes)):
            if n not in found and whole.at(n) > 0:
                found[n] = min(1.0, max(0.0, part.at(n) / whole.at(n)))
    return dict(sorted(found.items()))


def _some(sizes: Iterable[int]) -> list[int]:
    """The sizes, thinned out evenly to `_MOST_SIZES`."""
    every = list(sizes)
    step = max(1, math.ceil(len(every) / _MOST_SIZES))
    return sorted({*every[::step], *every[-1:]})


def _left_out(kind: Kind, rows: Rows) -> float:
    """Relative error at each size by a law of the others, at the root of the mean square."""
    off = [_at(kind, [*rows[:i], *rows[i + 1 :]], n) / value - 1 for i, (n, value) in enumerate(rows)]
    return math.sqrt(sum(each * each for each in off) / len(off))


def _at(kind: Kind, rows: Rows, n: int) -> float:
    """The value on `n` nodes by the law of that kind that is fitted to `rows`."""
    return Law(kind, *_FITS[kind](rows), None, ()).at(n)


def _power(rows: Rows) -> tuple[float, float]:
    points = [(math.log(n), math.log(value)) for n, value in rows]
    slope, _ = _line([(x, y, 1.0) for x, y in points])
    slope = max(-_STEEPEST, min(_STEEPEST, slope))
    return math.exp(fmean(y - slope * x for x, y in points)), slope


def _amdahl(rows: Rows) -> tuple[float, float]:
    weighted = [(1.0 / n, value, 1.0 / value**2) for n, value in rows]
    shared, own = _line(weighted)
    if shared < 0:
        return _mean([value for _, value, _ in weighted], [w for _, _, w in weighted]), 0.0
    if own < 0:
        return 0.0, _mean([value / x for x, value, _ in weighted], [w * x * x for x, _, w in weighted])
    return own, shared


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)


def _line(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Slope and level of the weighted least-squares line through (x, y, weight)."""
    weight = sum(w for _, _, w in rows)
    x0 = sum(w * x for x, _, w in rows) / weight
    y0 = sum(w * y for _, y, w in rows) / weight
    spread = sum(w * (x - x0) ** 2 for x, _, w in rows)
    slope = sum(w * (x - x0) * (y - y0) for x, y, w in rows) / spread if spread else 0.0
    return slope, y0 - slope * x0


_FITS: Mapping[Kind, Callable[[Rows], tuple[float, float]]] = {"power": _power, "amdahl": _amdahl}
