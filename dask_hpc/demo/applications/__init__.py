"""Four applications as Dask graphs, of any size, whose results are known: what a corridor is tried on.

Heat, LU and Pi are those of John (2024, section 9.2.1); a tsunami on a grid that refines itself stands for
that author's fourth one. They draw unlike power over time: Pi computes all the time, LU has fewer and fewer
tiles, heat waits for edges at each step, and the sea has more to compute where the wave is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dask_hpc.demo.applications import lu, pi, plate, tsunami


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """Something to compute as one graph."""

    title: str
    #: Gives the graph, a `dask.delayed` object, for a size from 1 on: the larger, the more tasks. Further
    #: ``task_s``: what a task takes at least, 0 s by default.
    graph: Callable[..., Any]
    #: How far a result is from what is known of it, as a share: rounding alone, but for Pi.
    error: Callable[[Any], float]


#: By what a job of each is called.
APPLICATIONS: Mapping[str, Application] = {
    "pi": Application(title="Pi, by the series of Leibniz", graph=pi.graph, error=pi.error),
    "lu": Application(title="LU decomposition of tiles", graph=lu.graph, error=lu.error),
    "heat": Application(title="heat in a plate", graph=plate.graph, error=plate.error),
    "tsunami": Application(
        title="a wave on a grid that refines itself", graph=tsunami.graph, error=tsunami.error
    ),
}
