"""Transfers beside computing: each with an identity, a begin and an end.

Rules of the file: the transfers of one job over one path go one after another, in the order in which they
began, by all its nodes (or those that take part). Over the file system they share the bandwidth with the
input and output of other jobs, each node alike, and stand still while their own job reads or writes, so that
no node has more than its link. Links between nodes belong to the nodes that a job holds, and nobody shares
them. What a transfer has moved is summed up from rates and times; with what was cut off it must be what was
to be moved, else it is a `SimulationError`.
"""

from __future__ import annotations

from dataclasses import dataclass

from dask_hpc.errors import SimulationError
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.calendar import LINK, Calendar
from dask_hpc.sim.engine.file_system import FileSystem
from dask_hpc.sim.engine.lanes import Lanes, Moving
from dask_hpc.sim.engine.saving import Kept, Saved
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.checkpoints import Path

#: Rounding that sums of bytes may differ by, as a share.
_TOLERANCE = 1e-6


@dataclass(slots=True)
class Moved:
    """Transfers beside computing in a run, and their bytes."""

    begun: int = 0
    ended: int = 0
    cut: int = 0
    begun_bytes: float = 0.0
    moved_bytes: float = 0.0
    #: Bytes that were still to be moved when transfers were cut off.
    cut_bytes: float = 0.0


class Transfers:
    """The transfers beside computing of one run."""

    def __init__(self, world: World, calendar: Calendar, file_system: FileSystem) -> None:
        self._world = world
        self._calendar = calendar
        self._file_system = file_system
        #: Entries of the calendar so far.
        self._entries = 0
        self.moved = Moved()
        #: Bytes that went over the file system in any time at all.
        self.file_system_bytes = 0.0

    def begin(
        self,
        active: ActiveJob,
        size_bytes: float,
        path: Path,
        *,
        participants: int | None = None,
        reads: bool = False,
        keeps: Saved | Kept | None = None,
    ) -> None:
        """A transfer of a job that is not reading or writing just now begins."""
        moving = Moving(f"t{self.moved.begun + 1}", path, size_bytes, participants, reads, keeps)
        self.moved.begun += 1
        self.moved.begun_bytes += size_bytes
        self._world.listener.transfer(active, moving.id, path, size_bytes, 0.0, "begun")
        if active.lanes is None:
            active.lanes = Lanes()
        queue = active.lanes.queues[path]
        queue.append(moving)
        if len(queue) == 1:
            self._flow(active, path)

    def stand(self, active: ActiveJob) -> None:
        """The job itself reads or writes, or has another size: its transfer over the file system stops."""
        lanes = active.lanes
        if lanes is None or lanes.flowing is None:
            return
        moving, lanes.flowing = lanes.flowing, None
        left_bytes = self._file_system.remove(active, self._world.now_s)
        self.file_system_bytes += moving.left_bytes - left_bytes
        self.moved.moved_bytes += moving.left_bytes - left_bytes
        moving.left_bytes = left_bytes

    def go(self, active: ActiveJob) -> None:
        """The way to the file system is free: its next transfer goes on."""
        if active.lanes is not None and active.lanes.flowing is None:
            self._flow(active, "file-system")

    def resized(self, active: ActiveJob) -> None:
        """The job has another size."""
        lanes = active.lanes
        if lanes is None or not active.nodes:
            return
        if lanes.flowing is not None:
            self.stand(active)
            self.go(active)
        if lanes.queues["link"]:
            self._advance_link(lanes)
            self._flow(active, "link")

    def _flow(self, active: ActiveJob, path: Path) -> None:
        """Have the first transfer over a path go on; those that take no time end at once."""
        lanes, now_s = active.lanes, self._world.now_s
        assert lanes is not None
        queue = lanes.queues[path]
        network = self._world.machine.network_bytes_s
        unlimited = self._file_system.unlimited if path == "file-system" else network is None
        while queue and (unlimited or queue[0].left_bytes <= 0):
            self.moved.moved_bytes += queue[0].left_bytes
            self._end(active, queue.pop(0))
        if not queue:
            return
        moving = queue[0]
        nodes = active.nodes if moving.participants is None else min(active.nodes, moving.participants)
        if path == "file-system":
            lanes.flowing = moving
            self._file_system.add(active, moving.left_bytes, nodes, now_s, moving.reads)
            return
        assert network is not None
        self._entries += 1
        lanes.link_number = self._entries
        lanes.link_rate = network * nodes
        lanes.link_since_s = now_s
        self._calendar.enter(now_s + moving.left_bytes / lanes.link_rate, LINK, active, self._entries)

    def _advance_link(self, lanes: Lanes) -> None:
        """Account for what has gone over links since that was done last."""
        moving, now_s = lanes.queues["link"][0], self._world.now_s
        done_bytes = min(moving.left_bytes, lanes.link_rate * (now_s - lanes.link_since_s))
        self.moved.moved_bytes += done_bytes
        moving.left_bytes -= done_bytes
        lanes.link_since_s = now_s
        lanes.link_number = 0

    def over(self, active: ActiveJob) -> bool:
        """The file system says that its transfer has ended; whether the job has waited for just that."""
        lanes = active.lanes
        assert lanes is not None
        moving, lanes.flowing = lanes.flowing, None
        assert moving is not None
        self.file_system_bytes += moving.left_bytes
        self.moved.moved_bytes += moving.left_bytes
        lanes.queues["file-system"].pop(0)
        self._end(active, moving)
        self._flow(active, "file-system")
        return self._awaited(lanes)

    def link_over(self, active: ActiveJob, number: int) -> bool:
        """The calendar says that one over links has ended; whether the job has waited for just that."""
        lanes = active.lanes
        if lanes is None or lanes.link_number != number:
            return False
        moving = lanes.queues["link"][0]
        self._advance_link(lanes)
        if moving.left_bytes > _TOLERANCE * moving.size_bytes:
            raise SimulationError(
                f"transfer {moving.id} of job {active.job.id!r} at {self._world.now_s:g} s: "
                f"{moving.left_bytes!r} of {moving.size_bytes!r} bytes are left at its end"
            )
        lanes.queues["link"].pop(0)
        self._end(active, moving)
        self._flow(active, "link")
        return self._awaited(lanes)

    def wait(self, active: ActiveJob) -> bool:
        """The job has done all its work; whether it has to wait for transfers that make no checkpoint."""
        lanes = active.lanes
        if lanes is not None:
            lanes.waited = any(moving.keeps is None for moving in lanes.moving)
        return lanes is not None and lanes.waited

    @staticmethod
    def _awaited(lanes: Lanes) -> bool:
        if not lanes.waited or any(moving.keeps is None for moving in lanes.moving):
            return False
        lanes.waited = False
        return True

    def cut(self, active: ActiveJob, *, commits_alone: bool = False) -> None:
        """A failure, or the end of its job, cuts transfers off: all of them, or those of commits."""
        lanes = active.lanes
        if lanes is None:
            return
        self.stand(active)
        if lanes.queues["link"]:
            self._advance_link(lanes)
        for path, queue in lanes.queues.items():
            kept = [moving for moving in queue if commits_alone and not isinstance(moving.keeps, Saved)]
            for moving in queue:
                if moving not in kept:
                    self.moved.cut += 1
                    self.moved.cut_bytes += moving.left_bytes
                    self._close(active, moving, "cut")
            lanes.queues[path] = kept
        if not lanes.moving:
            active.lanes = None

    def restore(self, active: ActiveJob) -> bool:
        """Have what `cut` has left go on, at the present size; whether its job waited just for that."""
        lanes = active.lanes
        if lanes is None:
            return False
        self.go(active)
        if lanes.queues["link"] and not lanes.link_number:
            self._flow(active, "link")
        return self._awaited(lanes)

    def _end(self, active: ActiveJob, moving: Moving) -> None:
        moving.left_bytes = 0.0
        self.moved.ended += 1
        self._close(active, moving, "ended")
        if isinstance(moving.keeps, Saved):
            assert active.saving is not None
            active.saving.note(moving.keeps)
        elif moving.keeps is not None:
            active.checkpoints += 1
            active.kept, active.kept_node_s = moving.keeps

    def _close(self, active: ActiveJob, moving: Moving, state: str) -> None:
        """A transfer is over, one way or the other."""
        if isinstance(moving.keeps, Saved):
            assert active.saving is not None
            active.saving.moved(moving.keeps, self._world.now_s)
        moved_bytes = moving.size_bytes - moving.left_bytes
        listener = self._world.listener
        listener.transfer(active, moving.id, moving.path, moving.size_bytes, moved_bytes, state)

    def check(self) -> None:
        """See whether bytes were conserved, when nothing is under way.

        Raises
        ------
        SimulationError
            When what was begun is not what was moved and what was cut off.
        """
        moved = self.moved
        found = moved.moved_bytes + moved.cut_bytes
        if moved.begun != moved.ended + moved.cut:
            raise SimulationError(
                f"{moved.begun} transfers began, {moved.ended} ended, {moved.cut} were cut off"
            )
        if abs(found - moved.begun_bytes) > _TOLERANCE * max(found, moved.begun_bytes, 1.0):
            raise SimulationError(
                f"transfers of {moved.begun_bytes!r} bytes began, {moved.moved_bytes!r} were moved and "
                f"{moved.cut_bytes!r} cut off"
            )
