"""Statistics of a synthetic monthly climate field, chunked by year, as labelled xarray.

The field is a seasonal cycle, a warming that is stronger towards the poles, and smooth weather noise.
Each chunk is made from the seed and its own position, so that it is the same wherever it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

#: Years at scale 1; one chunk a year: 12 x 180 x 360 values of 8 bytes, 6.2 MB each.
YEARS = 48
MONTHS, LATITUDES, LONGITUDES = 12, 180, 360
FIRST_YEAR = 1975
SEED = 1_975
#: A month is the mean of this many weather patterns.
PATTERNS_PER_MONTH = 4
#: Radius of the weather patterns, in grid steps.
RADIUS_STEPS = 6.0


def coordinates(years: int) -> dict[str, NDArray[Any]]:
    """Values along each dimension of the field, in the order of its dimensions."""
    return {
        "year": np.arange(FIRST_YEAR, FIRST_YEAR + years),
        "month": np.arange(1, MONTHS + 1),
        "latitude": np.linspace(-89.5, 89.5, LATITUDES),
        "longitude": np.linspace(0.5, 359.5, LONGITUDES),
    }


def smooth_noise(rng: np.random.Generator) -> Array:
    """Unit white noise on the grid, smoothed by a Gaussian of `RADIUS_STEPS` (periodic)."""
    white = rng.standard_normal((LATITUDES, LONGITUDES))
    ky = np.fft.fftfreq(LATITUDES)[:, np.newaxis]
    kx = np.fft.rfftfreq(LONGITUDES)[np.newaxis, :]
    damping = np.exp(-2 * (np.pi * RADIUS_STEPS) ** 2 * (ky**2 + kx**2))
    smooth = np.fft.irfft2(np.fft.rfft2(white) * damping, s=white.shape)
    return np.asarray(smooth * (2 * np.sqrt(np.pi) * RADIUS_STEPS))


def field_chunk(block_id: tuple[int, ...], seed: int) -> Array:
    """One year of the field in degrees Celsius, shape (1, 12, latitude, longitude): one task."""
    year = block_id[0]
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(year,)))
    latitude = np.radians(coordinates(1)["latitude"])[:, np.newaxis]
    warming = 0.02 * year * (1 + np.sin(latitude) ** 2)
    out = np.empty((1, MONTHS, LATITUDES, LONGITUDES))
    for month in range(MONTHS):
        season = -15 * np.sin(latitude) * np.cos(2 * np.pi * (month + 0.5) / MONTHS)
        weather = sum(smooth_noise(rng) for _ in range(PATTERNS_PER_MONTH)) / PATTERNS_PER_MONTH
        out[0, month] = 28 * np.cos(latitude) - 5 + season + warming + weather
    return out


def years_at(scale: float) -> int:
    """Number of years (chunks) at `scale`."""
    return max(2, round(YEARS * scale))


def build(scale: float = 1.0) -> xr.Dataset:
    """Variance map, zonal mean by year and global mean by year of the anomaly from the climatology.

    A dask-backed dataset; `scale` multiplies the number of years. The anomaly needs the climatology of
    all years first: every chunk is used twice.
    """
    import dask.array as da
    import xarray as xr

    years = years_at(scale)
    # Without shapes there is nothing else for dask to find out: `meta` says what a chunk is.
    values = da.map_blocks(
        field_chunk,
        seed=SEED,
        chunks=((1,) * years, (MONTHS,), (LATITUDES,), (LONGITUDES,)),
        dtype=np.float64,
        meta=np.empty((0, 0, 0, 0)),
        name=f"climate-field-{years}-{SEED}",
    )
    coords = coordinates(years)
    field = xr.DataArray(values, dims=tuple(coords), coords=coords)
    anomaly = field - field.mean("year", skipna=False)
    area = np.cos(np.radians(field.latitude))
    zonal = anomaly.mean(("month", "longitude"), skipna=False)
    return xr.Dataset(
        {
            "variance": (anomaly**2).mean(("year", "month"), skipna=False),
            "zonal_mean": zonal,
            "global_mean": (zonal * area).sum("latitude", skipna=False) / area.sum(),
        }
    )


def describe(result: xr.Dataset) -> str:
    """The result in one line."""
    series = result["global_mean"].values
    decades = (len(series) - 1) / 10
    return (
        f"global mean {float(series[-1] - series[0]) / decades:+.3f} degrees a decade over "
        f"{len(series)} years, mean variance {float(result['variance'].mean()):.3f}"
    )
