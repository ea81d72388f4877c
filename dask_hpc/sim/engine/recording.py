"""The trace of a run: the records that the plugin of a live scheduler writes, out of the simulator.

Rules of the file: the engine tells what happens, here it becomes records in that order; nothing is decided
and no file is written (`dask_hpc.trace.files.write_trace` does that, with what `recorded` gives). Times are
those of the simulation, nodes are called as in snapshots, and no clock is read, so that equal runs give
equal traces. Every call of the policy is a pass, also one that answers nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.trace.records import Header, JobEvent, NodeEvent, Pass, Record, Result
from dask_hpc_policies import registry
from dask_hpc_policies.decision import (
    Action,
    Decision,
    Expand,
    Outcome,
    Reason,
    ReasonCode,
    Shrink,
    Start,
    Steal,
)
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.protocol import encode_state

if TYPE_CHECKING:
    from dask_hpc.sim.engine.engine import Engine

_DONE = Reason(ReasonCode.DONE, "carried out")


class Recorder:
    """Takes down what one engine does; made before the run begins.

    Parameters
    ----------
    engine
        Its options have `snapshots` and `node_ids`, without which passes and nodes cannot be told.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._spec = registry.spec_of(engine.policy)
        self._records: list[Record] = []
        self._begun = False
        #: Actions under way with the time and number of their round, by job; thefts apart.
        self._open: dict[tuple[str, bool], tuple[Action, float, int]] = {}
        self._number = 0
        self._last: dict[str, tuple[str, int]] = {}
        engine.recorder = self
        for active in engine.active.values():
            # the run goes on from a picture: what runs there is submitted and started at that moment
            self._job(active, "pending", 0, "")
            if active.nodes:
                self.job(active)
        if engine.active:
            self._hold_all()

    def take(self) -> list[Record]:
        """The records since the last call."""
        records, self._records = self._records, []
        return records

    def passed(self, view: ClusterSnapshot, before: Any, decision: Decision) -> None:
        """The policy was asked about `view` with the state `before`, and answered."""
        self._add(
            Pass(
                policy=self._spec,
                state=encode_state(before),
                snapshot=view,
                decision=decision,
                decide_s=self.engine.passes.latency_s,
            )
        )

    def job(self, active: ActiveJob, reason: str = "") -> None:
        """The job is in another state, or has another size."""
        self._job(active, active.state, active.nodes if active.state != "pending" else 0, reason)

    def ended(self, active: ActiveJob, state: str) -> None:
        """The job has ended."""
        self._job(active, state, 0, "")
        self._last.pop(active.job.id, None)
        self.aborted(active)

    def nodes(self, ids: Sequence[int]) -> None:
        """Nodes have changed hands, or come, or gone."""
        pool = self.engine.nodes
        holder = pool.holder[ids[0]]
        self._add(
            NodeEvent(
                t_s=self.engine.now_s,
                nodes=tuple(f"n{i}" for i in ids),
                job=None if holder is None else holder.job.id,
                state="lost" if ids[0] in pool.down_ids else "up",
            )
        )

    def begun(self, active: ActiveJob, action: Action) -> None:
        """An action on the job was accepted."""
        self._number += 1
        self._open[active.job.id, isinstance(action, Steal)] = (action, self.engine.now_s, self._number)
        if active.state == "adapting":
            self.job(active)

    def done(self, active: ActiveJob) -> None:
        """The action on the job was carried out."""
        self._close((active.job.id, active.state == "pending"), "done", _DONE)

    def refused(self, action: Start | Expand | Shrink | Steal, why: Reason) -> None:
        """An action cannot be carried out, or could not in the end."""
        place = (action.job, isinstance(action, Steal))
        if place in self._open and why.code is ReasonCode.NODES_GONE:
            self._close(place, "refused", why)
            return
        self._add(Result(t_s=self.engine.now_s, outcome=Outcome(action=action, result="refused", reason=why)))

    def aborted(self, active: ActiveJob) -> None:
        """The job has ended, or was interrupted, before the action on it was carried out."""
        why = Reason(ReasonCode.ABORTED, f"job {active.job.id} has ended or was interrupted")
        for theft in (False, True):
            self._close((active.job.id, theft), "aborted", why)

    def _close(self, place: tuple[str, bool], result: str, why: Reason) -> None:
        found = self._open.pop(place, None)
        if found is not None:
            action, since_s, number = found
            now_s = self.engine.now_s
            outcome = Outcome(
                action=action, result=result, reason=why, reconfig_id=number, latency_s=now_s - since_s
            )
            self._add(Result(t_s=now_s, outcome=outcome))

    def _job(self, active: ActiveJob, state: str, nodes: int, reason: str) -> None:
        id = active.job.id
        if self._last.get(id) == (state, nodes):
            return
        self._last[id] = (state, nodes)
        self._add(
            JobEvent(
                t_s=self.engine.now_s, job=id, name=active.job.name, state=state, nodes=nodes, reason=reason
            )
        )

    def _hold_all(self) -> None:
        for active in self.engine.active.values():
            if active.node_ids:
                self.nodes(active.node_ids)

    def _add(self, record: Record) -> None:
        if not self._begun:
            self._begun = True
            machine = tuple(f"n{i}" for i in range(self.engine.machine.nodes))
            self._records.append(NodeEvent(t_s=self.engine.now_s, nodes=machine))
        self._records.append(record)


def recorded(engine: Engine, progress: Callable[[int], None] | None = None) -> Iterator[Record]:
    """Run `engine` to its end; its trace, record by record, the header first."""
    from dask_hpc._version import __version__

    recorder = Recorder(engine)
    yield Header(source="simulated", versions={"dask_hpc": __version__})
    for _ in engine.moments(progress):
        yield from recorder.take()
    yield from recorder.take()
