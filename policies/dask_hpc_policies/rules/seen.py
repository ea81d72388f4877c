"""Since when jobs have had their sizes, as far as passes of a policy have seen them change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dask_hpc_policies.model import ClusterSnapshot

#: States of jobs that hold nodes.
_HOLDING = ("running", "adapting")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSize:
    """The size of a job, and since when it has had it."""

    nodes: int
    #: When the size was first seen to differ; None when it never was.
    changed_s: float | None = None


def seen_sizes(view: ClusterSnapshot, before: Mapping[str, SeenSize]) -> Mapping[str, SeenSize]:
    """The sizes of the named jobs that run or are adapting, after what was seen `before`."""
    now = {}
    for job in view.jobs:
        if job.state in _HOLDING and not job.is_default:
            id, nodes = job.id, job.nodes
            last = before.get(id)
            if last is None:
                last = SeenSize(nodes=nodes)
            elif last.nodes != nodes:
                last = SeenSize(nodes=nodes, changed_s=view.now_s)
            now[id] = last
    return now
