"""Carries decisions out: reductions first, then expansions and starts, as on a live cluster.

Rules of the file: the actions of one decision are a round. What cannot be done is refused with a reason and
changes nothing. Nodes for the expansions and starts of a round are set aside as they become free; those
begin when all reductions of the round have ended, at once when there are none. A job that is being resized
is adapting and gets no new decision. A resize takes place at once, or at the job's next scheduling point
when its program says so, and then holds the job up for the latency of the machine; nodes join at the begin
of that window and leave at its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc_policies.decision import Action, Expand, Reason, ReasonCode, Shrink, Start, Steal
from dask_hpc_policies.jobs.constraints import is_legal

if TYPE_CHECKING:
    from dask_hpc.sim.engine.engine import Engine


class Round:
    """The actions of one decision that change allotments."""

    __slots__ = ("growing", "grows", "pending", "ready_nodes", "wanted_nodes")

    def __init__(self) -> None:
        #: Reductions that have not ended.
        self.pending = 0
        #: Expansions that have begun and not ended.
        self.growing = 0
        #: Jobs that wait for the reductions to start or expand, with their targets.
        self.grows: list[tuple[ActiveJob, int]] = []
        #: Nodes set aside for them, and how many they need together.
        self.ready_nodes = 0
        self.wanted_nodes = 0


class Rounds:
    """All rounds of one run."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        #: Nodes set aside by rounds under way.
        self.reserved_nodes = 0
        #: Rounds under way.
        self.active = 0

    @property
    def idle_nodes(self) -> int:
        """Nodes that a decision may hand out."""
        return self.engine.nodes.free - self.reserved_nodes

    def begin(self, actions: Iterable[Action]) -> bool:
        """Carry `actions` out; True when a resize is among those that were accepted."""
        stolen = [self._steal(action) for action in actions if isinstance(action, Steal)]
        round = Round()
        moving = [a for a in actions if isinstance(a, (Start, Expand, Shrink))]
        shrinks: list[tuple[ActiveJob, int]] = []
        supply = self.idle_nodes
        for action in moving:
            if isinstance(action, Shrink) and (active := self._accepted(action)) is not None:
                shrinks.append((active, action.nodes))
                supply += active.nodes - action.nodes
                active.target = action.nodes
        for action in moving:
            if isinstance(action, Shrink):
                continue
            active = self._accepted(action)
            if active is None:
                continue
            need = action.nodes - active.nodes
            if need > supply:
                text = f"needs {need} more nodes, {supply} are idle or freed"
                self._refuse(action, Reason(ReasonCode.NOT_ENOUGH_NODES, text))
                continue
            supply -= need
            round.wanted_nodes += need
            round.grows.append((active, action.nodes))
            active.target = action.nodes
        if not shrinks and not round.grows:
            return any(stolen)
        resizes = bool(shrinks) or any(active.state == "running" for active, _ in round.grows)
        self.active += 1
        self._set_aside(round, self.idle_nodes)
        for active, _ in round.grows:
            active.round = round
            if active.state == "running":
                active.state = "adapting"
        round.pending = len(shrinks)
        for active, _ in shrinks:
            active.round = round
            active.state = "adapting"
        if self.engine.recorder is not None:
            for active in [active for active, _ in (*shrinks, *round.grows)]:
                self.engine.recorder.begun(active, next(a for a in moving if a.job == active.job.id))
        for active, _ in shrinks:
            self._ready(active)
        if not shrinks:
            self._grow(round)
        return resizes or any(stolen)

    def _set_aside(self, round: Round, nodes: int) -> None:
        taken = min(nodes, round.wanted_nodes - round.ready_nodes)
        round.ready_nodes += taken
        self.reserved_nodes += taken

    def _accepted(self, action: Start | Expand | Shrink) -> ActiveJob | None:
        active = self.engine.by_id.get(action.job)
        if active is None:
            why: Reason | None = Reason(ReasonCode.UNKNOWN_JOB, "no job that waits or runs has this id")
        else:
            why = self._why_not(active, action)
        if why is None:
            return active
        self._refuse(action, why)
        return None

    def _why_not(self, active: ActiveJob, action: Start | Expand | Shrink) -> Reason | None:
        job = active.job
        if active.target is not None or active.round is not None:
            return Reason(ReasonCode.LOCKED, "it is reconfiguring")
        code, text = ReasonCode.WRONG_STATE, ""
        restored = isinstance(action, Expand) and active.nodes < job.min_nodes
        resized = not (restored or isinstance(action, Start))
        if isinstance(action, Start) and active.state != "pending":
            text = f"it is {active.state}, only a pending job can start"
        elif not isinstance(action, Start) and active.state != "running":
            text = f"it is {active.state}, only a running job can be resized"
        elif resized and job.kind in ("rigid", "moldable"):
            text = f"it is {job.kind}: it is never resized"
        elif self.engine.options.lock == "system" and self.active and not isinstance(action, Start):
            code, text = ReasonCode.LOCKED, "another job is reconfiguring and the lock is 'system'"
        else:
            code, text = ReasonCode.OUT_OF_BOUNDS, _wrong_size(active, action, restored)
        return Reason(code, text) if text else None

    def _refuse(self, action: Start | Expand | Shrink, why: Reason) -> None:
        self.engine.refuse(action, why)

    # ---------------------------------------------------------------- thefts

    def _steal(self, action: Steal) -> bool:
        """Interrupt the victim now, or see to it that it is; True when its nodes are free."""
        engine = self.engine
        victim, thief = engine.by_id.get(action.job), engine.by_id.get(action.thief)
        if victim is None or thief is None:
            text = "victim or thief is no job that waits or runs"
            engine.refuse(action, Reason(ReasonCode.UNKNOWN_JOB, text))
            return False
        if victim.state != "running" or victim.round is not None:
            engine.refuse(action, Reason(ReasonCode.WRONG_STATE, f"the victim is {victim.state}"))
            return False
        if engine.recorder is not None:
            engine.recorder.begun(victim, action)
        if action.timing == "next-checkpoint":
            at_s = engine.progress.next_checkpoint_s(victim)
            if at_s is not None:
                engine.schedule_theft(at_s, (victim, thief, victim.restarts))
            return False
        engine.robbed(victim, "all" if action.timing == "proactive-checkpoint" else "saved")
        return True

    def theft_due(self, victim: ActiveJob, thief: ActiveJob, restarts: int) -> None:
        """The victim has its checkpoint: interrupt it, when the thief still waits for it."""
        gone = victim.key not in self.engine.active or victim.restarts != restarts
        if gone or victim.state != "running" or thief.state != "pending" or thief.round is not None:
            return
        self.engine.robbed(victim, "saved")
        self.engine.changed("finish", victim)

    # ---------------------------------------------------------------- resizes

    def _ready(self, active: ActiveJob) -> None:
        """Open the window of a resize now, when the job is where it can be resized."""
        program = active.job.program
        if program is None or program.resize == "anytime" or active.at_point:
            self.open_window(active)

    def open_window(self, active: ActiveJob) -> None:
        """Hold the job up for the latency of its resize; nodes that join do so now."""
        engine = self.engine
        assert active.target is not None
        cost = engine.machine.adaptation.seconds(
            active.nodes, active.target, active.job.data_bytes, engine.machine.link_bytes_s
        )
        if active.stage is not None:
            engine.progress.pause(active)
        if cost <= 0:
            self.close_window(active)
            return
        active.resize_s += cost
        active.wasted_node_s += cost * max(active.nodes, active.target)
        if active.target > active.nodes:
            # The nodes are its own from now on, and of no use before the commit.
            joining = active.target - active.nodes
            self._hand_over(active, joining)
        engine.schedule_window(active, engine.now_s + cost)

    def close_window(self, active: ActiveJob) -> None:
        """The resize is committed: the job goes on at its new size."""
        engine = self.engine
        target, round = active.target, active.round
        assert target is not None
        assert isinstance(round, Round)
        freed = 0
        if target < active.nodes:
            freed = active.nodes - target
            active.shrinks += 1
            engine.counts.shrinks += 1
            engine.resize(active, target)
        else:
            if active.nodes < target:
                self._hand_over(active, target - active.nodes)
            active.expansions += 1
            engine.counts.expansions += 1
        active.target = None
        active.round = None
        active.state = "running"
        engine.progress.adapt(active)
        if active.requested_nodes == active.nodes:
            active.requested_nodes = None
        if active.stage is not None:
            if not engine.progress.resume(active):
                engine.progress.advance(active)
        elif not active.at_point:
            engine.progress.advance(active)
        engine.resized(active)
        if freed:
            self._reduced(round, freed)
        else:
            round.growing -= 1
        self._end_if_done(round)

    def _reduced(self, round: Round, freed: int) -> None:
        self._set_aside(round, min(freed, self.idle_nodes))
        round.pending -= 1
        if round.pending == 0:
            self._grow(round)

    def _grow(self, round: Round) -> None:
        grows, round.grows = round.grows, []
        round.growing += 1  # the round does not end in the middle of this
        for active, target in grows:
            if active.round is not round:
                continue  # it has ended meanwhile
            need, ready = target - active.nodes, min(round.ready_nodes, self.engine.nodes.free)
            if need > ready:
                self._drop(active, target, f"needs {need} more nodes, {ready} could be freed")
            elif active.state == "pending":
                round.ready_nodes -= need
                self.reserved_nodes -= need
                active.round = None
                active.target = None
                self.engine.start(active, target)
            else:
                round.growing += 1
                self._ready(active)
        round.growing -= 1
        self._end_if_done(round)

    def _end_if_done(self, round: Round) -> None:
        if round.pending == 0 and round.growing == 0 and not round.grows:
            self.reserved_nodes -= round.ready_nodes
            round.ready_nodes = 0
            round.growing = -1  # ended once
            self.active -= 1

    def _hand_over(self, active: ActiveJob, nodes: int) -> None:
        round = active.round
        assert isinstance(round, Round)
        round.ready_nodes -= nodes
        self.reserved_nodes -= nodes
        active.joined = nodes
        self.engine.resize(active, active.nodes + nodes)

    def _drop(self, active: ActiveJob, target: int, why: str) -> None:
        kind: type[Start] | type[Expand] = Start if active.state == "pending" else Expand
        reason = Reason(ReasonCode.NODES_GONE, why)
        active.target = None
        active.round = None
        if active.state == "adapting":
            active.state = "running"
        self.engine.refuse(kind(job=active.job.id, nodes=target, reason=reason), reason)

    def at_point(self, active: ActiveJob) -> bool:
        """Resize the job now if that was only waiting for this; True when it was."""
        round, target = active.round, active.target
        if not isinstance(round, Round) or target is None:
            return False
        if any(waiting is active for waiting, _ in round.grows):
            return False  # the nodes are not there yet
        self.open_window(active)
        return True

    def left(self, active: ActiveJob) -> None:
        """A job has ended or failed, its nodes are free already: its round goes on without it."""
        round, target = active.round, active.target
        active.round = None
        active.target = None
        if not isinstance(round, Round) or target is None:
            return
        if self.engine.recorder is not None:
            self.engine.recorder.aborted(active)
        if any(waiting is active for waiting, _ in round.grows):
            round.grows = [(a, nodes) for a, nodes in round.grows if a is not active]
            return
        if target < active.nodes:
            self._reduced(round, active.nodes)
        else:
            round.growing -= 1
        self._end_if_done(round)


def _wrong_size(active: ActiveJob, action: Start | Expand | Shrink, restored: bool) -> str:
    """What is wrong with the size that an action asks for; empty when nothing is."""
    job, target = active.job, action.nodes
    if isinstance(action, Start):
        if job.nodes is not None and target != job.nodes:
            return f"it starts on exactly {job.nodes} nodes"
    elif (target <= active.nodes) == isinstance(action, Expand):
        return f"it has {active.nodes} nodes"
    if not restored and not job.min_nodes <= target <= job.max_nodes:
        return f"{target} nodes is outside {job.min_nodes} to {job.max_nodes}"
    if not restored and not is_legal(job.constraint, target):
        return f"{target} nodes is against the constraint {job.constraint!r}"
    return ""
