"""What jobs read and write through metered stores, and what each target gave them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dask_hpc.scheduler.internals import span_metrics
from dask_hpc.scheduler.tables.parts import Method
from dask_hpc.scheduler.tables.state import State
from dask_hpc.wire import IO_METRIC


@dataclass
class _Row:
    """Bytes, and seconds in which tasks were busy with it, summed over tasks."""

    read_bytes: int = 0
    write_bytes: int = 0
    io_s: float = 0.0

    def add(self, what: str, amount: float) -> None:
        if what == "read":
            self.read_bytes += int(amount)
        elif what == "write":
            self.write_bytes += int(amount)
        else:
            self.io_s += amount


@dataclass
class Accounts:
    """What was measured, by target and by span."""

    #: By kind and name.
    targets: dict[tuple[str, str], _Row] = field(default_factory=dict)
    spans: dict[str, _Row] = field(default_factory=dict)
    #: Seconds that tasks of a span executed.
    task_s: dict[str, float] = field(default_factory=dict)


def accounts(executed: Iterable[tuple[str, str, str, float]]) -> Accounts:
    """Put together what `span_metrics.executed` gives."""
    found = Accounts()
    for span, activity, unit, amount in executed:
        if unit == "seconds":
            found.task_s[span] = found.task_s.get(span, 0.0) + amount
        said = activity.split(" ", 3)
        if said[0] == IO_METRIC and len(said) == 4:
            _, what, kind, target = said
            for row in (
                found.targets.setdefault((kind, target), _Row()),
                found.spans.setdefault(span, _Row()),
            ):
                row.add(what, amount)
    return found


class Io:
    """Answers what was read and written (``rt.io()``), and has policies go by it.

    A job of a name of which others have completed at one size each is taken to spend the share of its time in
    I/O that they did (`JobRequest.io_by_nodes`), in place of what was declared.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        #: Ids of jobs that have been told what earlier ones of their name did.
        self._told: set[str] = set()

    def tick(self, now_s: float) -> None:
        """Tell jobs that are new what earlier ones of their name did."""
        named = self._state.jobs.named
        self._told &= {job.id for job in named}
        for job in named:
            if job.id not in self._told:
                self._told.add(job.id)
                if found := self._shares_by_size(job.name):
                    job.measured(io_by_nodes=found)

    def _shares_by_size(self, name: str) -> dict[int, float]:
        """Share of task time in I/O by nodes, of the last that completed at each size; empty: none did."""
        ended = [job for job in self._state.jobs.ended if job.name == name and job.state == "completed"]
        sizes = {job.span_id: {nodes for _, nodes in job.sizes if nodes} for job in ended}
        at_one_size = {id: next(iter(nodes)) for id, nodes in sizes.items() if len(nodes) == 1}
        found = accounts(span_metrics.executed(self._state.scheduler, at_one_size))
        shares = {id: _share(row, found.task_s[id]) for id, row in found.spans.items()}
        return {at_one_size[id]: share for id, share in shares.items() if share is not None}

    def methods(self) -> Mapping[str, Method]:
        """What clients may call."""
        return {"io": self.io}

    async def io(self) -> dict[str, Any]:
        """What metered stores have counted, up to the last heartbeats of the workers.

        ``targets``: bytes, seconds in which tasks were busy with it, bytes a second that a task got.
        ``jobs``: the same of each job that is active or remembered and has done any, the seconds that its
        tasks executed and the share of them in I/O (``intensity``, 0 to 1). ``other``: of plain work, and of
        tasks that are in a span of the user's own.
        """
        found = accounts(span_metrics.executed(self._state.scheduler))
        table = self._state.jobs
        jobs = []
        for job in (*table.ended, *table.active.values()):
            row = found.spans.pop(job.span_id, None)
            if row is not None:
                task_s = found.task_s[job.span_id]
                share = {"task_s": task_s, "intensity": _share(row, task_s)}
                jobs.append({"id": job.id, "name": job.name, **asdict(row), **share})
        other = _Row()
        for row in found.spans.values():
            for what, amount in (("read", row.read_bytes), ("write", row.write_bytes), ("busy", row.io_s)):
                other.add(what, amount)
        return {
            "targets": [
                {
                    "target": target,
                    "kind": kind,
                    "read_bytes": row.read_bytes,
                    "write_bytes": row.write_bytes,
                    "busy_s": row.io_s,
                    "bandwidth_bytes_s": (row.read_bytes + row.write_bytes) / row.io_s if row.io_s else None,
                }
                for (kind, target), row in sorted(found.targets.items())
            ],
            "jobs": jobs,
            "other": asdict(other),
        }


def _share(row: _Row, task_s: float) -> float | None:
    return min(1.0, row.io_s / task_s) if task_s else None
