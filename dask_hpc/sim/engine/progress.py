"""How applications get on: stages begin, are held up, go on at another size, and end.

Rules of the file: a stage of computing is a share from 1 to 0 that falls at 1 / (its length at the present
size) per second; a transfer belongs to the shared file system; a delay passes. Work is conserved: whatever
the resizes, the shares done of a stage add up to 1, which is checked at its end, and the bytes moved are
the bytes asked for.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Literal

from dask_hpc.errors import SimulationError
from dask_hpc.sim.engine.active import ActiveJob, Walker
from dask_hpc.sim.engine.file_system import FileSystem
from dask_hpc.sim.model.job import (
    Compute,
    Delay,
    Request,
    SchedulingPoint,
    Stage,
    Transfer,
    amount,
    computing_s,
    on_nodes,
)

if TYPE_CHECKING:
    from dask_hpc.sim.engine.engine import Engine

#: What a job without a program does.
_PLAIN = Compute(work=0.0)
#: Rounding that a share of work may gather over many resizes.
_TOLERANCE = 1e-6


class Progress:
    """The applications of one run."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.file_system = FileSystem(engine.machine)
        #: Bytes of the transfers that have ended, and of the parts of those that were broken off.
        self.ended_bytes = 0.0
        #: Number of the calendar entry for the next end of a transfer; others are stale.
        self._io_version = 0
        self._io_at_s = inf
        #: Whether the load has changed in this moment.
        self.io_changed = False

    def begin(self, active: ActiveJob) -> None:
        """A job has just been given its nodes: it does its first stage, or goes on after a failure."""
        program = active.job.program
        if program is None:
            active.stage = _PLAIN
            active.left = 1.0 - (active.kept if isinstance(active.kept, float) else 0.0)
            active.done = 1.0 - active.left
            self.resume(active)
            return
        active.walker = active.kept.copy() if isinstance(active.kept, Walker) else Walker(program)
        self.advance(active)

    def begin_plain(self, active: ActiveJob, seconds: float) -> None:
        """A job without a program has been given its first nodes, for `seconds` at this size."""
        now_s = self.engine.now_s
        active.stage = _PLAIN
        active.began_s = now_s
        active.length_s = seconds
        self.engine.schedule_end(active, now_s + seconds)

    def advance(self, active: ActiveJob) -> None:
        """Go on to the next stage that takes time, or to the end of the job."""
        engine, walker, nodes = self.engine, active.walker, active.nodes
        assert walker is not None
        while True:
            stage = walker.next(nodes)
            if isinstance(stage, Transfer):
                active.stage = stage
                active.left = amount(stage.size_bytes, nodes)
                active.began_s = engine.now_s
                if self._transfer(active, stage):
                    return
            elif isinstance(stage, (Compute, Delay)):
                active.stage = stage
                active.left = 1.0
                if self.resume(active):
                    return
            elif stage is None:
                active.stage = None
                engine.complete(active)
                return
            elif isinstance(stage, SchedulingPoint):
                active.stage = None
                engine.reached_point(active)
                return
            elif isinstance(stage, Request):
                wanted = max(1, round(amount(stage.nodes, nodes)))
                active.requested_nodes = None if wanted == nodes else wanted
                if wanted != nodes:
                    engine.changed("request", active)

    def resume(self, active: ActiveJob) -> bool:
        """Do the rest of the present stage at the present size; False when it takes no time at all."""
        engine, stage = self.engine, active.stage
        active.began_s = engine.now_s
        if isinstance(stage, Transfer):
            return self._transfer(active, stage)
        if active.job.program is None:
            active.length_s = computing_s(active.job, active.nodes)
        elif isinstance(stage, Compute):
            active.length_s = amount(stage.work, active.nodes) / stage.speed(active.nodes)
        elif isinstance(stage, Delay):
            active.length_s = amount(stage.seconds, active.nodes)
        if active.length_s <= 0 and active.job.program is not None:
            active.left = 0.0
            return False
        engine.schedule_end(active, engine.now_s + active.left * active.length_s)
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
        """Stop the present stage where it is."""
        now_s, stage = self.engine.now_s, active.stage
        active.version += 1
        if isinstance(stage, Transfer):
            left_bytes = self.file_system.remove(active, now_s)
            self.ended_bytes += active.left - left_bytes
            active.left = left_bytes
            self._spent_in_io(active, stage)
            self.io_changed = True
        elif stage is not None and active.length_s > 0:
            share = min(active.left, (now_s - active.began_s) / active.length_s)
            active.left -= share
            active.done += share

    def stage_ended(self, active: ActiveJob) -> None:
        """The calendar says that the present stage is over."""
        if active.length_s > 0:
            self._check_share(active, (self.engine.now_s - active.began_s) / active.length_s)
        if active.job.program is None:
            active.stage = None
            self.engine.complete(active)
        else:
            self.advance(active)

    def _check_share(self, active: ActiveJob, share: float) -> None:
        # What is asked of the clock is a difference of large times: allow for its rounding.
        rounding = 4 * abs(self.engine.now_s) * 2.3e-16 / active.length_s
        if abs(share - active.left) > _TOLERANCE + rounding:
            raise SimulationError(
                f"job {active.job.id!r} at {self.engine.now_s:g} s: {share:.9g} of a stage was done, "
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
        self.file_system.add(active, active.left, nodes, self.engine.now_s, stage.direction == "read")
        self.io_changed = True
        return True

    def _transfer_ended(self, active: ActiveJob, stage: Transfer) -> None:
        if not self.file_system.unlimited:
            self.ended_bytes += active.left
        active.left = 0.0
        self._spent_in_io(active, stage)
        if stage.purpose == "checkpoint":
            active.checkpoints += 1
            if active.walker is not None:
                active.kept = active.walker.copy()

    def _spent_in_io(self, active: ActiveJob, stage: Transfer) -> None:
        spent_s = self.engine.now_s - active.began_s
        active.io_s += spent_s
        if stage.purpose == "checkpoint":
            active.checkpoint_s += spent_s

    def io_event(self, version: int) -> None:
        """The next transfer ends now, unless the load has grown since that was computed."""
        if version != self._io_version:
            return
        self._io_at_s = inf
        self.io_changed = True
        now_s = self.engine.now_s
        at_s = self.file_system.next_end_s()
        if at_s is None or at_s > now_s:
            return
        for active in self.file_system.ended(now_s):
            stage = active.stage
            assert isinstance(stage, Transfer)
            self._transfer_ended(active, stage)
            self.advance(active)

    def schedule_io(self) -> None:
        """The load of the file system has changed in this moment: find the next end anew.

        An entry that comes too early is left where it is, and finds out: most often the load only grows.
        """
        self.io_changed = False
        at_s = self.file_system.next_end_s()
        if at_s is not None and at_s < self._io_at_s:
            self._io_version += 1
            self._io_at_s = max(at_s, self.engine.now_s)
            self.engine.schedule_io(self._io_at_s, self._io_version)
        self.engine.note_io()

    # ---------------------------------------------------------------- failures

    def lose(self, active: ActiveJob, keep: Literal["saved", "all"] = "saved") -> None:
        """The job is interrupted: what it has not saved is lost, nothing after a proactive checkpoint."""
        job, now_s = active.job, self.engine.now_s
        saved = saved_share(active, now_s)
        if active.stage is not None:
            self.pause(active)
        if job.program is None:
            kept = active.done if keep == "all" else min(saved, active.done)
            active.wasted_node_s += (active.done - kept) * active.length_s * active.nodes
            active.kept = kept
        elif active.start_s is not None and not isinstance(active.kept, Walker):
            active.wasted_node_s += active.nodes * (now_s - active.start_s)
        active.stage = None
        active.walker = None
        active.requested_nodes = None

    def next_checkpoint_s(self, active: ActiveJob) -> float | None:
        """When a job without a program takes its next checkpoint; None when it never does."""
        job = active.job
        if job.program is not None or job.checkpoint_interval_s is None or active.length_s <= 0:
            return None
        share = job.checkpoint_interval_s / job.runtime_s
        done = active.done + (self.engine.now_s - active.began_s) / active.length_s
        wanted = (int(done / share + 1e-9) + 1) * share
        if wanted >= 1.0:
            return None
        return active.began_s + (wanted - active.done) * active.length_s

    def moved_bytes(self) -> tuple[float, float]:
        """Bytes by the rates, and bytes by the transfers that ended: equal when nothing is under way."""
        return self.file_system.moved_bytes, self.ended_bytes


def saved_share(active: ActiveJob, now_s: float) -> float:
    """Share of a job's work, without a program, that its last checkpoint holds at `now_s`."""
    job = active.job
    kept = active.kept if isinstance(active.kept, float) else 0.0
    if job.program is not None or job.checkpoint_interval_s is None or job.runtime_s <= 0:
        return kept
    done = active.done
    if active.stage is not None and active.length_s > 0:
        done += min(active.left, (now_s - active.began_s) / active.length_s)
    share = job.checkpoint_interval_s / job.runtime_s
    # A checkpoint that is due at this very moment has been taken, whatever the rounding.
    return max(kept, min(done, int(done / share + 1e-9) * share))


def has_points(stages: tuple[Stage, ...]) -> bool:
    """Whether `stages` hold a scheduling point at any depth."""
    return any(
        isinstance(stage, SchedulingPoint) or has_points(getattr(stage, "stages", ())) for stage in stages
    )
