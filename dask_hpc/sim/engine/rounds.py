"""Carries decisions out: reductions first, then expansions and starts, as on a live cluster.

Rules of the file: the actions of one decision are a round. What cannot be done is refused with a reason and
changes nothing. Nodes for the expansions and starts of a round are set aside as they become free; those
begin when all reductions of the round have ended, at once when there are none. A job that is being resized
is adapting and gets no new decision. A resize takes place at once, or at the job's next scheduling point
when its program says so, and then holds the job up for the latency of the machine; nodes join at the begin
of that window and leave at its end.

What a job comes to on the way (it ends in the moment of its start, say) concerns others as well. It is
yielded, and must have been acted on when the generator goes on: a generator does nothing until it is run
through.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from dask_hpc.sim.engine.active import ActiveJob, Round
from dask_hpc.sim.engine.calendar import WINDOW, Calendar
from dask_hpc.sim.engine.life import Life
from dask_hpc.sim.engine.nodes import NodePool
from dask_hpc.sim.engine.progress import Progress, Step
from dask_hpc.sim.engine.views import facts
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.coupled import Coupled
from dask_hpc_policies.decision import Action, Expand, Reason, ReasonCode, Shrink, Start
from dask_hpc_policies.rules.feasible import refusal

#: A job, and what it has come to; ``resized``: its resize is committed.
Happened = tuple[ActiveJob, Step | Literal["resized"]]


class Rounds:
    """All rounds of one run."""

    def __init__(
        self, world: World, calendar: Calendar, nodes: NodePool, progress: Progress, life: Life
    ) -> None:
        self._world = world
        self._calendar = calendar
        self._nodes = nodes
        self._progress = progress
        self._life = life
        #: Rounds under way.
        self._active = 0

    # ----------------------------------------------------------------- begin

    def begin(self, actions: Iterable[Action]) -> Iterator[Happened]:
        """Carry the starts and resizes among `actions` out."""
        world, nodes, round = self._world, self._nodes, Round()
        shrinks: list[tuple[ActiveJob, Shrink]] = []
        grows: list[tuple[ActiveJob, Start | Expand]] = []
        supply = nodes.idle
        for action in actions:
            if isinstance(action, Shrink) and (active := self._accepted(action)) is not None:
                shrinks.append((active, action))
                supply += active.nodes - action.nodes
                active.target = action.nodes
        for action in actions:
            if not isinstance(action, (Start, Expand)) or (active := self._accepted(action)) is None:
                continue
            need = action.nodes - active.nodes
            if need > supply:
                text = f"needs {need} more nodes, {supply} are idle or freed"
                world.refuse(action, Reason(ReasonCode.NOT_ENOUGH_NODES, text))
                continue
            supply -= need
            round.wanted_nodes += need
            grows.append((active, action))
            active.target = action.nodes
        if not shrinks and not grows:
            return
        self._active += 1
        self._set_aside(round, nodes.idle)
        round.grows = [(active, action.nodes) for active, action in grows]
        round.pending = len(shrinks)
        for active, accepted in (*shrinks, *grows):
            active.round = round
            if active.state == "running":
                active.state = "adapting"
                active.clock = None
            world.listener.begun(active, accepted)
        for active, _ in shrinks:
            if self._ready(active):
                yield from self.open_window(active)
        if not shrinks:
            yield from self._grow(round)

    def _set_aside(self, round: Round, nodes: int) -> None:
        taken = min(nodes, round.wanted_nodes - round.ready_nodes)
        round.ready_nodes += taken
        self._nodes.reserved += taken

    def _accepted(self, action: Start | Expand | Shrink) -> ActiveJob | None:
        world = self._world
        active = world.by_id.get(action.job)
        locked = self._active > 0 and world.options.lock == "system"
        why = refusal(action, None if active is None else facts(active), locked=locked)
        if why is None:
            return active
        world.refuse(action, why)
        return None

    # ---------------------------------------------------------------- resizes

    def _ready(self, active: ActiveJob) -> bool:
        """Whether the job is where it can be resized."""
        saving, program = active.saving, active.job.program
        if saving is not None and saving.held is not None:
            return False
        if isinstance(active.stage, Coupled):
            return self._progress.coupled.between_steps(active)
        return program is None or program.resize == "anytime" or active.at_point

    def waits_for_point(self, active: ActiveJob) -> bool:
        """Whether a job that is at a scheduling point is to be resized there, with nodes for it at hand."""
        return active.target is not None and not self.waits_for_nodes(active)

    def held_back(self, active: ActiveJob) -> bool:
        """Whether a job that is held up no longer is to be resized now."""
        return self.waits_for_point(active) and self._ready(active)

    def waits_for_nodes(self, active: ActiveJob) -> bool:
        """Whether a job is to start or expand when the reductions of its round have ended."""
        round = active.round
        return round is not None and any(waiting is active for waiting, _ in round.grows)

    def open_window(self, active: ActiveJob) -> Iterable[Happened]:
        """Hold the job up for the latency of its resize; nodes that join do so now."""
        world, round, job, target, before = self._world, active.round, active.job, active.target, active.nodes
        assert target is not None
        assert round is not None
        need, free = target - before, self._nodes.free
        if need > free:
            # while it was on its way to this point, a node that was set aside for it has failed
            self._drop(active, target, f"needs {need} more nodes, {free} are left")
            round.growing -= 1
            self._end_if_done(round)
            # a job without points waited for its commit
            return ((active, "point" if active.stage is None else self._progress.go_on(active)),)
        machine = world.machine
        cost_s = (job.adaptation or machine.adaptation).seconds(
            before, target, job.data_bytes, machine.link_bytes_s
        )
        if active.stage is not None:
            self._progress.pause(active)
        if cost_s <= 0:
            return self.close_window(active)
        active.window_s = world.now_s
        if need > 0:
            # The nodes are its own from now on, and of no use before the commit.
            self._hand_over(active, need)
        self._calendar.enter(world.now_s + cost_s, WINDOW, active, active.version)
        return ()

    def close_window(self, active: ActiveJob) -> Iterator[Happened]:
        """The resize is committed: the job goes on at its new size."""
        world, target, round = self._world, active.target, active.round
        assert target is not None
        assert round is not None
        counts, listener = world.counts, world.listener
        freed = active.nodes - target
        self._book_window(active)
        if freed > 0:
            active.shrinks += 1
            counts.shrinks += 1
            self._life.resize(active, target)
        else:
            if freed:
                self._hand_over(active, -freed)
            active.expansions += 1
            counts.expansions += 1
        active.target = None
        active.round = None
        active.state = "running"
        active.clock = None
        self._progress.adapt(active)
        if active.requested_nodes == target:
            active.requested_nodes = None
        world.news.resized = True
        listener.job(active)
        listener.done(active)
        yield active, "resized"
        if active.stage is not None or not active.at_point:
            step = self._progress.go_on(active)
            if step != "busy":
                yield active, step
        if freed > 0:
            yield from self._reduced(round, freed)
        else:
            round.growing -= 1
        self._end_if_done(round)

    def _book_window(self, active: ActiveJob) -> None:
        """What held the job up, if anything did, is over or cut off: all its nodes did nothing else."""
        since_s, active.window_s = active.window_s, None
        if since_s is not None:
            took_s = self._world.now_s - since_s
            active.resize_s += took_s
            active.wasted_node_s += took_s * active.nodes
            # a failure takes nothing of that: it was wasted before
            self._progress.spent_node_s["communicate"] += took_s * active.nodes

    def _hand_over(self, active: ActiveJob, nodes: int) -> None:
        round = active.round
        assert round is not None
        round.ready_nodes -= nodes
        self._nodes.reserved -= nodes
        active.joined = nodes
        self._life.resize(active, active.nodes + nodes)

    # ----------------------------------------------------------- the round goes on

    def left(self, active: ActiveJob) -> Iterator[Happened]:
        """A job has ended, or stopped because of a failure or a theft: its round goes on without it."""
        round, target, waits = active.round, active.target, self.waits_for_nodes(active)
        active.round = None
        active.target = None
        self._book_window(active)
        if round is None or target is None:
            return
        self._world.listener.aborted(active)
        if waits:
            round.grows = [(a, nodes) for a, nodes in round.grows if a is not active]
            return
        if target < active.nodes:
            yield from self._reduced(round, active.nodes)
        else:
            round.growing -= 1
        self._end_if_done(round)

    def _reduced(self, round: Round, freed: int) -> Iterable[Happened]:
        self._set_aside(round, min(freed, self._nodes.idle))
        round.pending -= 1
        return self._grow(round) if round.pending == 0 else ()

    def _grow(self, round: Round) -> Iterator[Happened]:
        grows, round.grows = round.grows, []
        round.growing += 1  # the round does not end in the middle of this
        for active, target in grows:
            if active.round is not round:
                continue  # it has ended meanwhile
            need, ready = target - active.nodes, min(round.ready_nodes, self._nodes.free)
            if need > ready:
                self._drop(active, target, f"needs {need} more nodes, {ready} could be freed")
            elif active.state == "pending":
                round.ready_nodes -= need
                self._nodes.reserved -= need
                active.round = None
                active.target = None
                step = self._life.start(active, target)
                if step != "busy":
                    yield active, step
            else:
                round.growing += 1
                if self._ready(active):
                    yield from self.open_window(active)
        round.growing -= 1
        self._end_if_done(round)

    def _drop(self, active: ActiveJob, target: int, why: str) -> None:
        kind: type[Start] | type[Expand] = Start if active.state == "pending" else Expand
        reason = Reason(ReasonCode.NODES_GONE, why)
        active.target = None
        active.round = None
        if active.state == "adapting":
            active.state = "running"
            active.clock = None
        self._world.refuse(kind(job=active.job.id, nodes=target, reason=reason), reason)

    def _end_if_done(self, round: Round) -> None:
        if round.pending == 0 and round.growing == 0 and not round.grows:
            self._nodes.reserved -= round.ready_nodes
            round.ready_nodes = 0
            round.growing = -1  # ended once
            self._active -= 1
