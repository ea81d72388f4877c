"""The corridor among the metrics of a scheduler: gauges on ``/metrics``, where Dask has that page.

Rules of the file: `prometheus_client` is Dask's own choice, and nothing is done without it. Its registry is
one a process: as with Dask's own metrics, of several schedulers in a process the last one is shown. What is
not known has no sample, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import dask

_THERE = find_spec("prometheus_client") is not None

#: Names, the fields of `told` that they show, and what they are.
_GAUGES = (
    ("draw_watts", "draw_w", "What all nodes together draw, as it is held against the bounds"),
    ("lower_watts", "lower_w", "Lower bound of the power corridor"),
    ("upper_watts", "upper_w", "Upper bound of the power corridor"),
    ("expected_least_watts", "min_w", "Least watts that are expected at the present sizes of jobs"),
    ("expected_most_watts", "max_w", "Most watts that are expected at the present sizes of jobs"),
    ("measured_nodes", "measured_nodes", "Nodes whose draw is measured, not modelled"),
)
_COUNTERS = (
    ("energy_joules", "energy_j", "Energy drawn since the corridor was set"),
    ("outside_watt_seconds", "outside_ws", "Watts outside of the corridor, over time"),
    ("outside_seconds", "outside_s", "Time outside of the corridor"),
)


class Gauges:
    """A collector of Prometheus' registry while a corridor is set.

    Parameters
    ----------
    told
        Gives the row of `dask_hpc.scheduler.power.told.told`; it reads only, for a scrape may come from any
        thread.
    """

    _shown: Gauges | None = None

    def __init__(self, told: Callable[[], Mapping[str, Any]]) -> None:
        self._told = told

    def begin(self) -> None:
        """Show them from now on, in place of those of another scheduler in this process."""
        if not _THERE or Gauges._shown is self:
            return
        from prometheus_client import REGISTRY

        if Gauges._shown is not None:
            Gauges._shown.end()
        REGISTRY.register(self)
        Gauges._shown = self

    def end(self) -> None:
        """Show them no more."""
        if Gauges._shown is self:
            from prometheus_client import REGISTRY

            REGISTRY.unregister(self)
            Gauges._shown = None

    def collect(self) -> Iterator[Any]:
        """For Prometheus: what is known now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        row = self._told()
        prefix = dask.config.get("distributed.dashboard.prometheus.namespace")
        start = f"{prefix}_hpc_power_" if prefix else "hpc_power_"
        for kind, metrics in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, field, text in metrics:
                if row.get(field) is not None:
                    yield kind(start + name, text, value=row[field])
