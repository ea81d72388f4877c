"""How long drains took beside the tasks that ran meanwhile.

A drain waits for what executes on the nodes that leave, so never longer than the longest task there takes.
When a job gives nodes up, what others have on threads that it has lent is not waited for: such a drain is no
longer than the longest of the other tasks. Nodes of plain work are its own and nobody's, and drained of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.trace.records import NodeEvent, Record, Result
from dask_hpc_policies.decision import Shrink
from dask_hpc_policies.model import DEFAULT_JOB

#: How much longer a drain may take than the longest task: answers of workers and a sweep, on a machine that
#: others use too, with schedulers and workers that validate themselves.
SLACK_S = 0.3
#: A round begins so much before its nodes are set aside, at most.
_EARLIER_S = 0.01


@dataclass
class Execution:
    """A task on a worker until it has ended there, also when it has left its thread; times of the engine."""

    key: Any
    #: Id of the job it belongs to; empty when it belongs to none.
    job: str
    lent: bool
    #: Empty when it began while the runtime was asleep: it may be on any.
    node: str
    began_s: float
    ended_s: float = float("inf")

    @property
    def took_s(self) -> float:
        return self.ended_s - self.began_s


class Executions:
    """All executions of a sequence, from when an engine is given."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.all: list[Execution] = []
        self._now: dict[tuple[str, Any], Execution] = {}

    def began(self, address: str, key: Any) -> None:
        """A worker has started a task."""
        if self.engine is None:
            return
        state = self.engine.state
        lane = state.owner.get(key)
        lent = key in self.engine.admission.lending.loans.get(address, ())
        node = state.nodes.at.get(address)
        found = Execution(key, lane.job.id if lane else "", lent, node.id if node else "", state.now_s())
        self._now[address, key] = found
        self.all.append(found)

    def ended(self, address: str, key: Any) -> None:
        """It executes no longer."""
        found = self._now.pop((address, key), None)
        if found is not None and self.engine is not None:
            found.ended_s = self.engine.state.now_s()

    def gone(self, address: str) -> None:
        """A worker has gone with all it executed."""
        for at, key in [place for place in self._now if place[0] == address]:
            self.ended(at, key)

    def drains(
        self, records: Iterable[Record], counts: Counter[str], longest_s: dict[str, float]
    ) -> list[str]:
        """Drains that took too long.

        What was looked at is added to `counts`; `longest_s` gets the longest drain and lent task, in seconds.
        """
        lent = [one for one in self.all if one.lent and one.ended_s < float("inf")]
        counts["lent tasks"] += len(lent)
        longest_s["longest lent task"] = max((one.took_s for one in lent), default=0.0)
        faults = []
        records = list(records)
        for record in records:
            if not isinstance(record, Result) or not isinstance(record.outcome.action, Shrink):
                continue
            outcome, took_s = record.outcome, record.outcome.latency_s
            if outcome.result == "refused" or took_s is None:
                continue
            began_s, job = record.t_s - took_s, outcome.action.job
            meanwhile = [one for one in self.all if one.began_s < record.t_s and one.ended_s > began_s]
            if any(first_s < record.t_s and last_s > began_s for first_s, last_s in self._shuffles()):
                counts["drains beside a shuffle"] += 1  # they wait for all of it
                continue
            holder = None if is_plain(job) else job
            leaving = {
                node
                for event in records
                if isinstance(event, NodeEvent)
                and (event.job, event.state) == (holder, "draining")
                and began_s - _EARLIER_S <= event.t_s <= record.t_s
                for node in event.nodes
            }
            there = [one for one in meanwhile if one.node in leaving or not one.node]
            own = [one for one in there if one.job == job or not one.lent or is_plain(job)]
            counts["drains"] += 1
            counts["drains of nodes with lent tasks"] += any(one.lent for one in there)
            counts["of a job, with lent tasks of others alone"] += bool(there) and not own
            longest_s["longest drain"] = max(longest_s.get("longest drain", 0.0), took_s)
            most_s = max((one.took_s for one in own), default=0.0)
            if took_s > most_s + SLACK_S:
                faults.append(
                    f"a drain took {took_s:.2f} s, the longest task it may wait for {most_s:.2f} s: {outcome}"
                )
        return faults

    def _shuffles(self) -> Iterable[tuple[float, float]]:
        """When a job's first task of a shuffle began and its last one ended.

        Between them nothing of the shuffle may execute, while a worker that has to is paused.
        """
        spans: dict[str, tuple[float, float]] = {}
        for one in self.all:
            if any(word in str(one.key) for word in ("rechunk", "shuffle")):
                first_s, last_s = spans.get(one.job, (one.began_s, one.ended_s))
                spans[one.job] = min(first_s, one.began_s), max(last_s, one.ended_s)
        return spans.values()


def is_plain(job: str) -> bool:
    """Whether that is the id of plain work."""
    return job.startswith(DEFAULT_JOB)


def longest(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The larger of each."""
    return {name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in {**one, **other}}
