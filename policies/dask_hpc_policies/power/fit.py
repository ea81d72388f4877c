"""What a node draws at a load, from measurements: idle watts and a curve that never falls.

The curve is a penalised spline of degree one (Eilers and Marx 1996) over loads from 0 to 1: short straight
pieces, each rising or level, with a light penalty on bends. A straight line will not do, for cores that clock
down together under load bend it far; nor will a formula with a few parameters, for processors bend in either
direction. Where nothing was measured the last slope goes on.

Its error is what it misses points by that it was not fitted to: each is left out in turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dask_hpc_policies.params import shown
from dask_hpc_policies.power.checks import MOST_TOTAL_W, watts
from dask_hpc_policies.power.load_curve import LoadCurve

#: Straight pieces from load 0 to 1.
PIECES = 20
#: What a bend counts beside a missed point. Ten times more or less changes the error by less than a fifth.
BEND = 1e-4
#: Fewer points do not tell a curve from a line.
FEWEST_POINTS = 3
#: With more points than this several are left out at a time.
MOST_FITS = 100

_Values = NDArray[np.float64]


class FitError(ValueError):
    """What was measured cannot be, or is too little; the message names it and says what is needed."""


def fit_curve(loads: Sequence[float], measured_w: Sequence[float]) -> LoadCurve:
    """The curve nearest to measured watts.

    Parameters
    ----------
    loads
        From 0 to 1, in any order; several measurements at one load all count.

    Raises
    ------
    FitError
        When a load is outside of 0 to 1, or there are fewer than `FEWEST_POINTS` different ones.
    ProgramError
        When watts are no number from 0 on.
    """
    for number, (load, value) in enumerate(zip(loads, measured_w, strict=True), start=1):
        if not (isinstance(load, (int, float)) and 0 <= load <= 1):
            raise FitError(f"point {number}: the load is {shown(load)}; allowed: 0 to 1, as 0 to 100 %")
        watts(f"point {number}: ", "the power", value, MOST_TOTAL_W)
    if len(set(loads)) < FEWEST_POINTS:
        raise FitError(
            f"{len(set(loads))} different loads; a curve needs {FEWEST_POINTS}: measure idle, half and full"
        )
    x, y = np.asarray(loads, dtype=float), np.asarray(measured_w, dtype=float)
    if y.max() <= 0:
        raise FitError("every power is 0 W: the sensor measures nothing; take another source")
    values = _fit(x, y)
    ends = np.linspace(0.0, 1.0, PIECES + 1)
    points = tuple((float(load), float(value)) for load, value in zip(ends, values, strict=True))
    return LoadCurve(points, float(np.mean(np.abs(_left_out(x, y) - y))) / float(y.max()))


def _fit(x: _Values, y: _Values) -> _Values:
    """Watts at the ends of the pieces: the first of them, then rises, none below 0."""
    # brings a library of processes with it
    from scipy.optimize import nnls

    bends = np.zeros((PIECES - 1, PIECES + 1))
    at = np.arange(PIECES - 1)
    bends[at, at + 1], bends[at, at + 2] = -1.0, 1.0
    scale = float(y.max()) or 1.0
    rows = np.vstack([_design(x), math.sqrt(BEND) * PIECES * bends])
    rises, _ = nnls(rows, np.concatenate([y / scale, np.zeros(len(bends))]))
    return np.cumsum(rises) * scale


def _design(x: _Values) -> _Values:
    """For each load, how much of the first value and of each rise counts."""
    parts = np.clip(x[:, None] * PIECES - np.arange(PIECES)[None, :], 0.0, 1.0)
    return np.column_stack([np.ones(len(x)), parts])


def _left_out(x: _Values, y: _Values) -> _Values:
    """What curves say of the points that they were not fitted to."""
    said = np.empty(len(x))
    folds = min(len(x), MOST_FITS)
    for fold in range(folds):
        out = np.arange(len(x)) % folds == fold
        said[out] = np.interp(x[out], np.linspace(0.0, 1.0, PIECES + 1), _fit(x[~out], y[~out]))
    return said
