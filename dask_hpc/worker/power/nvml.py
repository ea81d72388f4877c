"""NVIDIA's accelerators through NVML (the extra ``nvml``). They are a part of the host, not the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_hpc.worker.power.figures import Counter, Gauge, Label, Reading, SensorError, summed

#: No accelerator draws more, in watts.
_MOST_W = 5_000.0


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
        library = self._loaded()
        try:
            if self._devices is None:
                library.nvmlInit()
                count = library.nvmlDeviceGetCount()
                self._devices = [library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            if not self._devices:
                raise SensorError("NVML knows of no accelerator")
            return {f"gpu{index}": self._one(library, handle) for index, handle in enumerate(self._devices)}
        except library.NVMLError as error:
            self._devices = None
            raise SensorError(f"NVML says: {error}", "look whether nvidia-smi works on this host") from None

    def _loaded(self) -> Any:
        if self._library is None:
            try:
                import pynvml  # type: ignore[import-not-found, unused-ignore]
            except ImportError:
                raise SensorError(
                    "nvidia-ml-py is not installed",
                    "pip install 'dask-hpc[nvml]' where there are accelerators",
                ) from None
            self._library = pynvml
        return self._library

    def _one(self, library: Any, handle: Any) -> Counter | Gauge:
        try:
            return Counter(library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3, most_w=_MOST_W)
        except library.NVMLError:
            # those before Volta
            return Gauge(library.nvmlDeviceGetPowerUsage(handle) / 1e3)

    def total(self, spent_j: Mapping[str, float], before: Reading, now: Reading) -> float:
        """All of them."""
        return summed(spent_j)
