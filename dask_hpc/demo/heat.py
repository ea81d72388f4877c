"""A 2-D heat equation as an elastic producer: explicit steps on a grid that is split by rows.

Every value of a step is computed from the same five values in the same order, however the grid is
split, so a run that was resized gives the field of an undisturbed run bit for bit. The example is that
of Chadha (2019, section 3.2), with an explicit step in place of Jacobi's iteration.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from dask_hpc_policies.layout import Part


@dataclass(frozen=True)
class Heat:
    """A grid of `rows` by `columns` points; `diffusivity` times the time step is stable up to 0.25."""

    rows: int = 256
    columns: int = 256
    diffusivity: float = 0.2

    def start(self, part: Part, status: str = "NEW") -> xr.DataArray:
        """Rows ``part.start`` to ``part.stop`` of the initial field: two warm spots on a cold plate."""
        y = np.arange(part.start, part.stop)[:, None] / self.rows
        x = np.arange(self.columns)[None, :] / self.columns
        spots = np.exp(-80 * ((y - 0.3) ** 2 + (x - 0.4) ** 2)) + np.exp(
            -40 * ((y - 0.8) ** 2 + (x - 0.7) ** 2)
        )
        rows = np.arange(part.start, part.stop)
        return xr.DataArray(spots, dims=("y", "x"), coords={"y": rows}, name="temperature")

    def step(self, block: xr.DataArray, before: Any, after: Any) -> xr.DataArray:
        """The block one time step later; the border of the plate lets no heat through."""
        values = block.values
        above = values[:1] if before is None else before.values
        below = values[-1:] if after is None else after.values
        tall = np.concatenate([above, values, below])
        wide = np.concatenate([tall[:, :1], tall, tall[:, -1:]], axis=1)
        here = wide[1:-1, 1:-1]
        flow = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:] - 4 * here
        return block.copy(data=here + self.diffusivity * flow)

    def undisturbed(self, steps: int) -> xr.DataArray:
        """The whole field after `steps` steps, computed here and in one piece."""
        *_, field = self.fields(steps)
        return field

    def fields(self, steps: int) -> Iterator[xr.DataArray]:
        """The whole field at the start and after each of so many steps, computed here and in one piece."""
        field = self.start(Part("", 0, self.rows))
        yield field
        for _ in range(steps):
            field = self.step(field, None, None)
            yield field


def peak_and_checksum(field: np.ndarray) -> tuple[float, int]:
    """The highest temperature, and a number that depends on every bit: what the coupled analysis looks at."""
    return float(field.max()), zlib.crc32(field.tobytes())


def mean_and_peak(block: xr.DataArray) -> tuple[float, float]:
    """Sum of a block's temperatures and its highest one: what in situ analytics look at."""
    return float(block.sum()), float(block.max())
