"""How applications get on: stages begin, are held up, go on at another size, and end.

Rules of the file: what a job comes to is returned as a `Step`; who calls acts on it. A stage of computing
is a share from 1 to 0 that falls at 1 / (its length at the present size) per second; a transfer belongs to
the shared file system; a delay passes. Work is conserved: whatever the resizes, the shares done of a stage
add up to 1, which is checked at its end, and the bytes moved are the bytes asked for.
"""

from __future__ import annotations

from math import inf
from typing import Literal

from dask_hpc.errors import SimulationError
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.calendar import COMMIT, STAGE, Calendar
from dask_hpc.sim.engine.checkpoints import commit_due, next_commit_s, saved_share
from dask_hpc.sim.engine.coupled import CoupledRuns
from dask_hpc.sim.engine.file_system import FileSystem
from dask_hpc.sim.engine.saving import Kept, Saved, useful_node_s
from dask_hpc.sim.engine.transfers import Transfers
from dask_hpc.sim.engine.walker import Walker
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.checkpoints import Path
from dask_hpc.sim.model.coupled import Coupled
from dask_hpc.sim.model.job import (
    Compute,
    Delay,
    Request,
    SchedulingPoint,
    Transfer,
    amount,
    computing_s,
    on_nodes,
)
from dask_hpc_policies.power.states import NODE_STATES, NodeState
from dask_hpc_policies.rules.losses import Severity

#: What a job has come to: it is ``busy`` until an entry of the calendar, or its resize holds it up; it is
#: ``done`` with all its work; it is at a scheduling ``point``; it has made a ``request`` and goes on; a
#: ``commit`` is due.
Step = Literal["busy", "done", "point", "request", "commit"]

#: What a job that is interrupted keeps: what it has ``saved``, or ``all``, after a checkpoint taken now.
Keep = Literal["saved", "all"]

#: What a job without a program does.
_PLAIN = Compute(work=0.0)
#: Rounding that a share of work may gather over many resizes.
_TOLERANCE = 1e-6


class Progress:
    """The applications of one run."""

    def __init__(self, world: World, calendar: Calendar) -> None:
        self._world = world
        self._calendar = calendar
        self.file_system = FileSystem(world.machine)
        #: What goes on beside computing.
        self.transfers = Transfers(world, calendar, self.file_system)
        self.coupled = CoupledRuns(world, calendar)
        #: Node-seconds of work that was lost, of all jobs.
        self.lost_node_s = 0.0
        #: Node-seconds that jobs which have ended held without computing, by what they did.
        self.spent_node_s: dict[NodeState, float] = dict.fromkeys(NODE_STATES, 0.0)
        #: Bytes of the transfers that have ended, and of the parts of those that were broken off.
        self.ended_bytes = 0.0
        #: When the next transfer over the file system ends, at its present load; infinite without any.
        self.io_s = inf

    def begin(self, active: ActiveJob) -> Step:
        """A job has just been given its nodes: it does its first stage, or goes on after a failure."""
        program = active.job.program
        if program is None:
            if active.stage is not None:
                # it has got on before, on slots that it was lent
                self.pause(active)
                active.kept = active.done
            active.stage = _PLAIN
            if active.kept is None and active.saving is None:
                # its first start: what `resume` does, for the jobs of traces
                active.length_s = computing_s(active.job, active.nodes)
                active.began_s = now_s = self._world.now_s
                self._calendar.enter(now_s + active.length_s, STAGE, active, active.version)
                return "busy"
            active.left = 1.0 - (active.kept if isinstance(active.kept, float) else 0.0)
            active.done = 1.0 - active.left
            if not self._reads_back(active):
                self._resume(active)
            return "busy"
        active.walker = active.kept.copy() if isinstance(active.kept, Walker) else Walker(program)
        return "busy" if self._reads_back(active) else self.advance(active)

    def _reads_back(self, active: ActiveJob) -> bool:
        """Whether the job, which has just started, is held up by reading what it begins again from."""
        saving, now_s = active.saving, self._world.now_s
        if saving is None:
            return False
        saving.since_s = now_s
        if saving.source is None or saving.source.level.restart_s <= 0:
            return False
        active.paused = active.stage is not None
        saving.hold("restart", active, now_s)
        self._calendar.enter(now_s + saving.source.level.restart_s, COMMIT, active, active.version)
        return True

    def advance(self, active: ActiveJob) -> Step:
        """Go on to the next stage that takes time, or to what others have to know of."""
        walker, nodes, saving = active.walker, active.nodes, active.saving
        assert walker is not None
        while True:
            if saving is not None and commit_due(active, self._world.now_s):
                active.stage = None
                return "commit"
            stage = walker.next(nodes)
            if isinstance(stage, Transfer) and stage.beside is not None:
                active.stage = None
                self._beside(active, stage, stage.beside)
            elif isinstance(stage, Transfer):
                active.stage = stage
                active.left = amount(stage.size_bytes, nodes)
                active.began_s = self._world.now_s
                if self._transfer(active, stage):
                    return "busy"
            elif isinstance(stage, (Compute, Delay)):
                active.stage = stage
                active.left = 1.0
                if self._resume(active):
                    return "busy"
            elif isinstance(stage, Coupled):
                active.stage = stage
                self.coupled.begin(active, stage)
                return "busy"
            elif stage is None:
                active.stage = None
                return "busy" if self.transfers.wait(active) else "done"
            elif isinstance(stage, SchedulingPoint):
                active.stage = None
                if saving is not None and active.job.checkpoints.every_s is None:  # type: ignore[union-attr]
                    saving.asked = True
                return "point"
            elif isinstance(stage, Request):
                wanted = max(1, round(amount(stage.nodes, nodes)))
                active.requested_nodes = None if wanted == nodes else wanted
                active.clock = None
                if wanted != nodes:
                    return "request"

    def _beside(self, active: ActiveJob, stage: Transfer, path: Path) -> None:
        """A transfer begins, and the program goes on."""
        nodes = active.nodes
        size_bytes = amount(stage.size_bytes, nodes)
        doing = None if stage.participants is None else max(1, round(amount(stage.participants, nodes)))
        keeps: Saved | Kept | None = None
        if stage.purpose == "checkpoint" and active.walker is not None:
            place, now_s = active.walker.copy(), self._world.now_s
            if active.saving is not None:
                keeps = active.saving.everywhere(active, place, now_s)
            else:
                keeps = Kept(place, useful_node_s(active, now_s))
        reads = stage.direction == "read"
        self.transfers.begin(active, size_bytes, path, participants=doing, reads=reads, keeps=keeps)

    def go_on(self, active: ActiveJob) -> Step:
        """Do the rest of the present stage at the present size; the next one when nothing is left of it."""
        if active.stage is not None and self._resume(active):
            return "busy"
        return self.advance(active)

    def _resume(self, active: ActiveJob) -> bool:
        """Do the rest of the present stage at the present size; False when it takes no time at all."""
        now_s, job, stage = self._world.now_s, active.job, active.stage
        if isinstance(stage, Coupled):
            self.coupled.resized(active)
            return True
        active.paused = False
        active.began_s = now_s
        if job.program is None:
            length_s = computing_s(job, active.nodes)
        elif isinstance(stage, Transfer):
            return self._transfer(active, stage)
        elif isinstance(stage, Compute):
            length_s = amount(stage.work, active.nodes) / stage.speed(active.nodes)
        else:
            assert isinstance(stage, Delay)
            length_s = amount(stage.seconds, active.nodes)
        active.length_s = length_s
        if length_s <= 0 and job.program is not None:
            active.left = 0.0
            return False
        self._calendar.enter(now_s + active.left * length_s, STAGE, active, active.version)
        if active.saving is not None and job.program is None:
            commit_s = next_commit_s(active, now_s)
            if commit_s is not None:
                self._calendar.enter(commit_s, COMMIT, active, active.version)
        return True

    def adapt(self, active: ActiveJob) -> None:
        """The job has been resized: what its program does then comes next."""
        program, joined = active.job.program, active.joined
        active.joined = 0
        if program is None or active.walker is None or active.stage is not None:
            return
        active.walker.insert(on_nodes(program.on_reconfiguration, active.nodes))
        if joined:
            active.walker.insert(on_nodes(program.on_expansion, joined))

    def pause(self, active: ActiveJob) -> None:
        """Stop the present stage where it is; a stage that is held up already stays so."""
        now_s, stage = self._world.now_s, active.stage
        if isinstance(stage, Coupled):
            return self.coupled.hold(active)
        active.version += 1
        if active.paused:
            return
        active.paused = True
        if isinstance(stage, Transfer):
            left_bytes = self.file_system.remove(active, now_s)
            self.ended_bytes += active.left - left_bytes
            active.left = left_bytes
            self._spent_in_io(active, stage)
            self.transfers.go(active)
        elif stage is not None and active.length_s > 0:
            share, left = (now_s - active.began_s) / active.length_s, active.left
            if share > left:
                share = left
            active.left = left - share
            active.done += share

    def left(self, active: ActiveJob) -> float:
        """The share that is left now of the present stage; of a job without a program, of all its work."""
        if active.stage is None:
            return 1.0 - (active.kept if isinstance(active.kept, float) else 0.0)
        if active.paused or active.length_s <= 0:
            return active.left
        return max(0.0, active.left - (self._world.now_s - active.began_s) / active.length_s)

    def pace(self, active: ActiveJob, length_s: float) -> None:
        """All work of a job without a program takes `length_s` seconds from now on; infinite: it stands.

        That is for a job that runs on other slots than those of its nodes, also while it waits for some.
        """
        if active.stage is None:
            active.left = self.left(active)
            active.done = 1.0 - active.left
            active.stage, active.paused = _PLAIN, True
        self.pause(active)
        active.length_s = length_s
        if length_s < inf:
            active.paused = False
            active.began_s = now_s = self._world.now_s
            self._calendar.enter(now_s + active.left * length_s, STAGE, active, active.version)

    def stage_ended(self, active: ActiveJob) -> Step:
        """The calendar says that the present stage is over."""
        if active.length_s > 0:
            self._check_share(active, (self._world.now_s - active.began_s) / active.length_s)
        if active.job.program is None:
            active.stage = None
            return "done"
        return self.advance(active)

    def _check_share(self, active: ActiveJob, share: float) -> None:
        off = abs(share - active.left)
        # What is asked of the clock is a difference of large times: allow for its rounding.
        if off > _TOLERANCE and off > _TOLERANCE + 4 * abs(self._world.now_s) * 2.3e-16 / active.length_s:
            raise SimulationError(
                f"job {active.job.id!r} at {self._world.now_s:g} s: {share:.9g} of a stage was done, "
                f"{active.left:.9g} was left to do"
            )
        active.done += active.left
        active.left = 0.0

    # ---------------------------------------------------------------- input and output

    def _transfer(self, active: ActiveJob, stage: Transfer) -> bool:
        if active.left <= 0 or self.file_system.unlimited:
            self._transfer_ended(active, stage)
            return False
        nodes = active.nodes
        if stage.participants is not None:
            nodes = max(1, min(nodes, round(amount(stage.participants, nodes))))
        if active.lanes is not None:
            self.transfers.stand(active)
        self.file_system.add(active, active.left, nodes, self._world.now_s, stage.direction == "read")
        return True

    def _transfer_ended(self, active: ActiveJob, stage: Transfer) -> None:
        if not self.file_system.unlimited:
            self.ended_bytes += active.left
        active.left = 0.0
        self._spent_in_io(active, stage)
        if stage.purpose == "checkpoint":
            active.checkpoints += 1
            if active.walker is not None:
                active.kept, now_s = active.walker.copy(), self._world.now_s
                active.kept_node_s = useful_node_s(active, now_s)
                if active.saving is not None:
                    active.saving.note(active.saving.everywhere(active, active.kept, now_s))

    def spend(self, active: ActiveJob, state: NodeState, node_s: float) -> None:
        """So many node-seconds of what it holds went into something else than to compute."""
        self.spent_node_s[state] += node_s
        active.io_node_s[state] = active.io_node_s.get(state, 0.0) + node_s

    def _spent_in_io(self, active: ActiveJob, stage: Transfer) -> None:
        spent_s = self._world.now_s - active.began_s
        active.io_s += spent_s
        saves = stage.purpose == "checkpoint"
        self.spend(active, "checkpoint" if saves else "communicate", spent_s * active.nodes)
        if saves:
            active.checkpoint_s += spent_s

    def transfers_over(self) -> list[ActiveJob]:
        """The jobs whose transfers end now, at `io_s`; none when the load has grown in this very moment.

        Each is to be told with `transfer_ended`.
        """
        self.file_system.changed = True
        now_s = self._world.now_s
        at_s = self.file_system.next_end_s()
        if at_s is None or at_s > now_s:
            return []
        return self.file_system.ended(now_s)

    def transfer_ended(self, active: ActiveJob) -> Step:
        """A transfer of the job is over: its own, and it goes on, or one beside that."""
        if active.lanes is not None and active.lanes.flowing is not None:
            return "done" if self.transfers.over(active) else "busy"
        stage = active.stage
        assert isinstance(stage, Transfer)
        self._transfer_ended(active, stage)
        self.transfers.go(active)
        return self.advance(active)

    def link_ended(self, active: ActiveJob, number: int) -> Step:
        """The calendar says that a transfer over links is over."""
        return "done" if self.transfers.link_over(active, number) else "busy"

    def schedule_io(self) -> None:
        """The load of the file system has changed in this moment: find the next end anew."""
        world = self._world
        self.file_system.changed = False
        at_s = self.file_system.next_end_s()
        self.io_s = inf if at_s is None else max(at_s, world.now_s)
        if world.options.file_system_series:
            world.file_system_series.append((world.now_s, *self.file_system.rates_bytes_s))

    # ---------------------------------------------------------------- failures

    def break_commit(self, active: ActiveJob) -> bool:
        """A node of a job that goes on is lost, and with it its commits; whether one held the job up."""
        self.transfers.cut(active, commits_alone=True)
        saving = active.saving
        if saving is None or saving.held != "commit":
            return False
        saving.let_go(active, self._world.now_s)
        saving.taking = ()
        active.version += 1
        return True

    def lose(self, active: ActiveJob, keep: Keep, severity: Severity = "host") -> None:
        """The job is interrupted: what it has not saved is lost, nothing after a proactive checkpoint.

        Of what it has saved a failure of `severity` takes what does not survive it.
        """
        job, now_s = active.job, self._world.now_s
        saved = saved_share(active, now_s)
        self.transfers.cut(active)
        self.coupled.drop(active)
        if active.stage is not None:
            self.pause(active)
        if active.saving is not None:
            everything = keep == "all" and job.program is None
            lost_node_s = active.saving.interrupt(active, severity, now_s, everything)
        else:
            if job.program is None:
                kept = active.done if keep == "all" else min(saved, active.done)
                lost_node_s = (active.done - kept) * active.length_s * (active.nodes - active.joined)
                active.kept = kept
            else:
                lost_node_s = useful_node_s(active, now_s) - active.kept_node_s
            active.wasted_node_s += lost_node_s
        self.lost_node_s += lost_node_s
        for state, spent_node_s in active.io_node_s.items():
            # what a failure took counts as that alone
            taken = min(spent_node_s, lost_node_s)
            self.spent_node_s[state] -= taken
            lost_node_s -= taken
        active.io_node_s = {}
        active.stage = None
        active.paused, active.joined = False, 0
        active.walker = None
        active.requested_nodes = None

    def moved_bytes(self) -> tuple[float, float]:
        """Bytes by the rates, and bytes by the transfers that ended: equal when nothing is under way."""
        return self.file_system.moved_bytes, self.ended_bytes + self.transfers.file_system_bytes
