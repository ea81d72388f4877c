"""The life of a job: it is submitted, starts, changes size, is interrupted and starts again, ends.

Rules of the file: here the records of a job and of the nodes change together, and listeners are told. What a
job comes to when it starts or goes on is returned (`progress.Step`); who calls acts on it. Node-seconds are
accounted for here, for `Engine` to compare with those that were handed out.
"""

from __future__ import annotations

from dask_hpc.errors import SimulationError
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.nodes import NodePool
from dask_hpc.sim.engine.progress import Keep, Progress, Step
from dask_hpc.sim.engine.table import Row
from dask_hpc.sim.engine.views import present_mtct
from dask_hpc.sim.engine.world import World
from dask_hpc_policies.model import Interruption
from dask_hpc_policies.rules.losses import Severity

#: Order of service by why a job waits: what failed is served first, then what was robbed, then all others.
RANKS: dict[Interruption, int] = {"failure": 0, "theft": 1, "none": 2}
#: Interruptions after which a job is taken to have no end.
_MOST_RESTARTS = 10_000


class Life:
    """The jobs of one run."""

    def __init__(self, world: World, nodes: NodePool, progress: Progress) -> None:
        self._world = world
        self._nodes = nodes
        self._progress = progress
        #: Node-seconds that jobs that have ended held.
        self.job_node_s = 0.0

    def submit(self, active: ActiveJob) -> None:
        """A job waits from now on."""
        world = self._world
        world.active[active.key] = active
        world.by_id[active.job.id] = active

    def start(self, active: ActiveJob, nodes: int) -> Step:
        """A pending job begins on `nodes` nodes."""
        world = self._world
        now_s = world.now_s
        if active.start_s is None:
            active.first_s = now_s
        active.start_s = now_s
        if active.steps:
            active.steps.append((now_s, nodes))
        active.nodes = nodes
        active.state = "running"
        active.clock = None
        active.interruption = "none"
        if active.job.kind in ("malleable", "evolving"):
            world.news.resized = True
        self._nodes.take(active, nodes)
        world.counts.starts += 1
        world.listener.job(active)
        world.listener.done(active)
        return self._progress.begin(active)

    def resize(self, active: ActiveJob, nodes: int) -> None:
        """The job holds `nodes` nodes from now on."""
        self._nodes.resize(active, nodes)
        self._sized(active, nodes)
        self._world.listener.job(active)

    def lose_nodes(self, active: ActiveJob, gone: int = 1, severity: Severity = "host") -> Step:
        """So many nodes of the job have gone, and it goes on without them.

        `severity` tells which of its checkpoints are there still.
        """
        saving = active.saving
        if saving is not None:
            saving.lose(severity)
        if saving is not None and saving.held == "restart":
            # it reads on
            self._sized(active, active.nodes - gone)
            self._world.listener.job(active, "a node was lost")
            return "busy"
        breaks = self._progress.break_commit(active)
        held_up = active.stage is None and not breaks
        if active.stage is not None:
            self._progress.pause(active)
        self._sized(active, active.nodes - gone)
        text = "a node was lost" if gone == 1 else f"{gone} nodes were lost"
        self._world.listener.job(active, text)
        if self._progress.transfers.restore(active):
            return "done"
        return "busy" if held_up else self._progress.go_on(active)

    def lose(
        self, active: ActiveJob, keep: Keep = "saved", gone: int = 0, severity: Severity = "host"
    ) -> None:
        """The job stops, on all its nodes, `gone` of which have failed: it keeps what `keep` says.

        `severity` tells which of its checkpoints are there still.
        """
        self._progress.lose(active, keep, severity)
        if gone:
            self._sized(active, active.nodes - gone)

    def requeue(self, active: ActiveJob, why: Interruption) -> None:
        """A job that has stopped gives all its nodes up and waits again.

        Raises
        ------
        SimulationError
            When that has happened so often that the job seems to have no end.
        """
        world = self._world
        self._nodes.give(active)
        self._sized(active, 0)
        active.version += 1
        active.restarts += 1
        if active.restarts > _MOST_RESTARTS:
            raise SimulationError(
                f"job {active.job.id!r} was interrupted {_MOST_RESTARTS} times by {world.now_s:g} s and has "
                "not come to its end: nodes fail too often (node_mtbf) for it, or it lacks checkpoints"
            )
        if active.at_point:
            active.at_point = False
            world.news.points.remove(active)
        active.state = "pending"
        active.interruption = why
        active.interrupted_s = world.now_s
        active.rank = RANKS[why]
        active.mtct_previous = None
        active.view = None
        world.listener.job(active, f"interrupted: {why}")

    def end(self, active: ActiveJob, state: str) -> None:
        """The job has ended; its nodes are free unless they were before."""
        if active.lanes is not None:
            self._progress.transfers.cut(active)
        world, now_s, steps = self._world, self._world.now_s, active.steps
        if active.start_s is None:
            # it ran on slots that it was lent, and never had a node
            active.first_s = now_s
        since_s = steps[-1][0] if steps else active.first_s
        self.job_node_s += active.held_node_s + active.nodes * (now_s - since_s)
        self._spent(active)
        if not active.released:
            self._nodes.give(active)
        del world.active[active.key]
        del world.by_id[active.job.id]
        active.version += 1
        if steps or active.io_s or active.restarts or active.wasted_node_s or active.saving:
            row = _row(active, state, now_s)
        else:
            row = Row(active.key, active.first_s, now_s, active.nodes, state)
        world.table.rows.append(row)
        world.listener.ended(active, state)

    def leave(self, active: ActiveJob) -> None:
        """The run is over, and the job still waits: it never ran, or was interrupted and found no nodes."""
        self.job_node_s += active.held_node_s
        self._spent(active)
        row = Row(active.key, None, None, 0, "pending")
        if active.steps:
            row = _row(active, "pending", None)
        self._world.table.rows.append(row)

    def _spent(self, active: ActiveJob) -> None:
        if active.saving is not None:
            for state, spent_node_s in active.saving.spent_node_s.items():
                self._progress.spent_node_s[state] += spent_node_s

    def _sized(self, active: ActiveJob, nodes: int) -> None:
        now_s, steps, before = self._world.now_s, active.steps, active.nodes
        active.clock = None
        assert active.start_s is not None
        if not steps:
            steps.append((active.start_s, before))
        since_s = steps[-1][0]
        active.held_node_s += before * (now_s - since_s)
        if since_s == now_s:
            steps[-1] = (now_s, nodes)
        else:
            steps.append((now_s, nodes))
        active.mtct_previous = present_mtct(active) if before else None
        active.nodes = nodes
        if active.lanes is not None:
            self._progress.transfers.resized(active)


def _row(active: ActiveJob, state: str, end_s: float | None) -> Row:
    sizes: int | tuple[tuple[float, int], ...] = active.nodes
    if active.steps:
        sizes = tuple(active.steps) if end_s is None else (*active.steps, (end_s, 0))
    return Row(
        active.key, active.first_s, end_s, sizes, state, active.expansions, active.shrinks, active.restarts,
        active.resize_s, active.io_s, active.checkpoint_s, active.checkpoints, active.wasted_node_s,
    )  # fmt: skip
