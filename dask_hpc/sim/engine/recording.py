"""The trace of a run: the records that the plugin of a live scheduler writes, out of the simulator.

Rules of the file: a run tells what happens, here it becomes records in that order; nothing is decided
and no file is written (`dask_hpc.trace.files.write_trace` does that, with what `recorded` gives). Times are
those of the simulation, nodes are called as in snapshots, and no clock is read, so that equal runs give
equal traces. Every call of the policy is a pass, also one that answers nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from dask_hpc._version import __version__
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.energy import Meter
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.engine.listening import Listener
from dask_hpc.sim.engine.pipeline import Pipeline
from dask_hpc.sim.engine.world import World
from dask_hpc.trace.records import (
    DRAW,
    STEP,
    Header,
    JobEvent,
    LossEvent,
    NodeEvent,
    Other,
    Pass,
    Record,
    Result,
    TransferEvent,
)
from dask_hpc_policies import registry
from dask_hpc_policies.decision import (
    Action,
    Decision,
    Outcome,
    Reason,
    ReasonCode,
    Steal,
)
from dask_hpc_policies.model import ClusterSnapshot, NodeState
from dask_hpc_policies.power.bill import bill
from dask_hpc_policies.protocol import Policy, encode_state
from dask_hpc_policies.rules.losses import Severity

_DONE = Reason(ReasonCode.DONE, "carried out")


class Recorder(Listener):
    """Takes down what happens in one run; made before the run begins.

    Parameters
    ----------
    world
        Its options have `snapshots` and `node_ids`, without which passes and nodes cannot be told.
    policy
        Decides in the run.
    """

    def __init__(self, world: World, policy: Policy) -> None:
        self._world = world
        self._spec = registry.spec_of(policy)
        self._records: list[Record] = []
        self._begun = False
        #: Actions under way with the time and number of their round, by job; thefts apart.
        self._open: dict[tuple[str, bool], tuple[Action, float, int]] = {}
        self._number = 0
        self._last: dict[str, tuple[str, int]] = {}
        world.listener = self
        for active in world.active.values():
            # the run goes on from a picture: what runs there is submitted and started at that moment
            self._job(active, "pending", 0, "")
            if active.nodes:
                self.job(active)
        for active in world.active.values():
            if active.node_ids:
                self.nodes(active.node_ids, active, "up")

    def take(self) -> list[Record]:
        """The records since the last call."""
        records, self._records = self._records, []
        return records

    def passed(
        self, view: ClusterSnapshot, before: Any, decision: Decision, allowed: Decision, latency_s: float
    ) -> None:
        """See `Listener`."""
        self._add(
            Pass(
                policy=self._spec,
                state=encode_state(before),
                snapshot=view,
                decision=decision,
                decide_s=latency_s,
                arbitrated=None if allowed == decision else allowed,
            )
        )

    def job(self, active: ActiveJob, reason: str = "") -> None:
        """See `Listener`."""
        self._job(active, active.state, active.nodes if active.state != "pending" else 0, reason)

    def ended(self, active: ActiveJob, state: str) -> None:
        """See `Listener`."""
        self._job(active, state, 0, "")
        self._last.pop(active.job.id, None)
        self.aborted(active)

    def nodes(
        self, ids: Sequence[int], holder: ActiveJob | None, state: NodeState | Literal["removed"]
    ) -> None:
        """See `Listener`."""
        self._add(
            NodeEvent(
                t_s=self._world.now_s,
                nodes=tuple(f"n{i}" for i in ids),
                job=None if holder is None else holder.job.id,
                state=state,
            )
        )

    def lost(self, severity: Severity, nodes: Sequence[int], exposure_node_s: float) -> None:
        """See `Listener`."""
        self._add(
            LossEvent(
                t_s=self._world.now_s,
                severity=severity,
                nodes=tuple(sorted(f"n{node}" for node in nodes)),
                workers=len(nodes),
                exposure_node_s=exposure_node_s,
            )
        )

    def transfer(
        self, active: ActiveJob, id: str, path: str, size_bytes: float, moved_bytes: float, state: str
    ) -> None:
        """See `Listener`."""
        self._add(
            TransferEvent(
                t_s=self._world.now_s, id=id, job=active.job.id, path=path, state=state,
                size_bytes=size_bytes, moved_bytes=moved_bytes,
            )
        )  # fmt: skip

    def stepped(self, pipeline: Pipeline) -> None:
        """See `Listener`."""
        for row in pipeline.told():
            self._add(Other(kind=STEP, data=row))

    def ended_at_once(self, outcome: Outcome) -> None:
        """See `Listener`."""
        self._add(Result(t_s=self._world.now_s, outcome=outcome))

    def begun(self, active: ActiveJob, action: Action) -> None:
        """See `Listener`."""
        self._number += 1
        self._open[active.job.id, isinstance(action, Steal)] = (action, self._world.now_s, self._number)
        if active.state == "adapting":
            self.job(active)

    def done(self, active: ActiveJob) -> None:
        """See `Listener`."""
        self._close((active.job.id, active.state == "pending"), "done", _DONE)

    def refused(self, action: Action, why: Reason) -> None:
        """See `Listener`."""
        place = (getattr(action, "job", ""), isinstance(action, Steal))
        open_one = self._open.get(place)
        if open_one is not None and (why.code is ReasonCode.NODES_GONE or open_one[0] is action):
            self._close(place, "refused", why)
            return
        self._add(Result(t_s=self._world.now_s, outcome=Outcome(action=action, result="refused", reason=why)))

    def aborted(self, active: ActiveJob) -> None:
        """See `Listener`."""
        why = Reason(ReasonCode.ABORTED, f"job {active.job.id} has ended or was interrupted")
        for theft in (False, True):
            self._close((active.job.id, theft), "aborted", why)

    def _close(self, place: tuple[str, bool], result: str, why: Reason) -> None:
        found = self._open.pop(place, None)
        if found is not None:
            action, since_s, number = found
            now_s = self._world.now_s
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
                t_s=self._world.now_s, job=id, name=active.job.name, state=state, nodes=nodes, reason=reason
            )
        )

    def _add(self, record: Record) -> None:
        if not self._begun:
            self._begun = True
            machine = tuple(f"n{i}" for i in range(self._world.machine.initial_nodes))
            self._records.append(NodeEvent(t_s=self._world.now_s, nodes=machine))
        self._records.append(record)


def recorded(engine: Engine, progress: Callable[[int], None] | None = None) -> Iterator[Record]:
    """Run `engine` to its end; its trace, record by record, the header first."""
    recorder = Recorder(engine.world, engine.policy)
    yield Header(source="simulated", versions={"dask_hpc": __version__})
    drawn = None if engine.meter is None else Drawn(engine, engine.meter)
    for _ in engine.moments(progress):
        if drawn is not None:
            yield from drawn.take()
        yield from recorder.take()
    yield from recorder.take()
    if drawn is not None:
        yield from drawn.close()


class Drawn:
    """What a run has drawn so far, as a live account tells it: whenever the draw changes, and at the end.

    Who drew it is told at the end. Energy is joules of all nodes; `outside_s` is 0 without a corridor.
    """

    def __init__(self, engine: Engine, meter: Meter) -> None:
        self._engine, self._meter = engine, meter
        #: What had been drawn when the draw of now began.
        self._begun = self._sums()
        self._told_w: float | None = None

    def take(self) -> Iterator[Record]:
        """Called after every moment: what changed at the one before it."""
        now = self._sums()
        if now["known_s"] > self._begun["known_s"] and self._meter.power_w != self._told_w:
            self._told_w = self._meter.power_w
            yield Other(kind=DRAW, data={**self._begun, "draw_w": self._told_w})
        self._begun = now

    def close(self) -> Iterator[Record]:
        """Called when the run is over."""
        if self._told_w is not None:
            data = {**self._sums(), "draw_w": self._told_w, "bill": bill(self._meter.uses)}
            yield Other(kind=DRAW, data=data)

    def _sums(self) -> dict[str, Any]:
        total, outside = self._meter.uses.total, self._engine.outside
        return {
            "t_s": self._meter.now_s,
            "label": "modelled",
            "known_s": total.known_s,
            "energy_j": total.energy_j,
            "outside_s": 0.0 if outside is None else outside.outside_s,
            "outside_ws": 0.0 if outside is None else outside.violation_ws,
        }
