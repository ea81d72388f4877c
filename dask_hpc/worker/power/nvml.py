"""NVIDIA's accelerators through NVML (the extra ``nvml``). They are a part of the host, not the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dask_hpc.worker.power.figures import Counter, Gauge, Label, Reading, SensorError, summed

#: No accelerator draws more, in watts.
_MOST_W = 5_000.0


@contextmanager
def nvml_error(library: Any) -> Iterator[None]:
    """What NVML raises within the block as a `SensorError`."""
    try:
        yield
    except library.NVMLError as error:
        raise SensorError(f"NVML says: {error}", "look whether nvidia-smi works on this host") from None


def opened(library: Any = None) -> tuple[Any, list[Any]]:
    """What is called like the module ``pynvml`` (None: that module), and all accelerators of this host.

    Raises
    ------
    SensorError
        When it is not installed, does not work, or knows of none.
    """
    if library is None:
        try:
            import pynvml as library  # type: ignore[import-not-found, no-redef, unused-ignore]
        except ImportError:
            raise SensorError(
                "nvidia-ml-py is not installed",
                "pip install 'dask-hpc[nvml]' where there are accelerators",
            ) from None
    with nvml_error(library):
        library.nvmlInit()
        count = library.nvmlDeviceGetCount()
        handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    if not handles:
        raise SensorError("NVML knows of no accelerator")
    return library, handles


class Nvml:
    """All accelerators of this host.

    Parameters
    ----------
    library
        What is called like the module ``pynvml``; None: that module.
    """

    name = "nvml"
    label: Label = "measured"

    def __init__(self, library: Any = None) -> None:
        self._library = library
        self._devices: list[Any] | None = None

    def read(self) -> Reading:
        """Energy of each accelerator since its driver was loaded, or its power where it does not count."""
        library, devices = (self._library, self._devices) if self._devices else opened(self._library)
        self._library, self._devices = library, None
        with nvml_error(library):
            found = {f"gpu{index}": self._one(library, handle) for index, handle in enumerate(devices)}
        self._devices = devices
        return found

    def _one(self, library: Any, handle: Any) -> Counter | Gauge:
        try:
            return Counter(library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3, most_w=_MOST_W)
        except library.NVMLError:
            # those before Volta
            return Gauge(library.nvmlDeviceGetPowerUsage(handle) / 1e3)

    def total(self, spent_j: Mapping[str, float], before: Reading, now: Reading) -> float:
        """All of them."""
        return summed(spent_j)
