"""What is lent in a run: slots that their jobs cannot fill, and those of nobody, run tasks of other jobs.

Rules of the file: plain data. A job of a simulation knows no tasks; that some are lent slots is switched on
for a run that goes on from a live cluster (`dask_hpc.sim.what_if`), which lends (``hpc.lend``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.rules.lending import sent_ahead

#: The key in `Options.extra` and in the sections of a snapshot.
EXTRA = "lending"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """What a run has to know to lend."""

    #: Tasks that are on average longer than so many seconds run on slots of their own job alone.
    limit_s: float
    #: Slots of a node, and tasks that are sent to a node ahead of a slot.
    threads: int = 1
    ahead: int = 0
    #: Tasks that the work left of each job at the begin is made of, by its id; a job that is not named
    #: neither lends nor borrows.
    tasks: Mapping[str, int] = field(default_factory=dict)
    #: Jobs that asked for no nodes of their own and take turns: thread-seconds that each had been served
    #: ahead of its share when the run began, by its id.
    turns: Mapping[str, float] = field(default_factory=dict)
    #: In how long each of them ends, as far as their order went then, by its id; who is not named is new.
    ends: Mapping[str, float] = field(default_factory=dict)


def lent_from(view: ClusterSnapshot, views: Sequence[JobView], lend_s: float | None = None) -> Lent | None:
    """What is lent from there on; None: nothing. Jobs without tasks, and producers, take no part."""
    told = view.sections.get(EXTRA)
    found: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
    limit_s = found.get("limit_s", 0.0) if lend_s is None else lend_s
    if not isinstance(limit_s, (int, float)) or not limit_s > 0:
        return None
    up = [node.nthreads for node in view.nodes if node.state != "lost"]
    threads = max(1, round(sum(up) / len(up))) if up else 1
    saturation, keep = found.get("saturation"), found.get("keep", ())
    known = float(saturation) if isinstance(saturation, (int, float)) else None
    return Lent(
        limit_s=float(limit_s),
        threads=threads,
        ahead=int(sent_ahead(threads, known)),
        tasks={job.id: job.unfinished_tasks for job in views if job.unfinished_tasks and job.id not in keep},
        turns=_numbers(found.get("turns")),
        ends=_numbers(found.get("ends")),
    )


def _numbers(told: Any) -> dict[str, float]:
    """What is told by id, as far as it is numbers."""
    rows = told.items() if isinstance(told, Mapping) else ()
    return {id: float(one) for id, one in rows if isinstance(one, (int, float))}
