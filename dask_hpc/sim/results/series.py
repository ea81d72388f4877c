"""Series over time of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dask_hpc.sim.run import Result


def utilization(result: Result) -> Iterator[tuple[float, int, int, int]]:
    """Time, nodes held, jobs running and jobs waiting from then on, at every change."""
    changes: list[tuple[float, int, int, int]] = []
    for run in result.runs:
        changes.append((run.submit_s, 0, 0, 1))
        before, waited = 0, 1
        for t_s, nodes in run.nodes:
            runs, ran = int(nodes > 0), int(before > 0)
            # one that was interrupted waits again; one of no length does not wait when it has ended
            waits = int(nodes == 0 and t_s != run.end_s)
            changes.append((t_s, nodes - before, runs - ran, waits - waited))
            before, waited = nodes, waits
    held = running = waiting = 0
    changes.sort(key=lambda change: change[0])
    for i, (t_s, nodes, runs, waits) in enumerate(changes):
        held += nodes
        running += runs
        waiting += waits
        if i + 1 == len(changes) or changes[i + 1][0] != t_s:
            yield t_s, held, running, waiting
