"""A job inside a run: where it is in its program, what it holds, what it has done so far.

Rules of the file: plain data that `copy.deepcopy` copies. A record is made when a job is submitted and
dropped when the job has ended, so that memory follows what runs and waits.
"""

from __future__ import annotations

from dask_hpc.sim.engine.lanes import Lanes
from dask_hpc.sim.engine.saving import Saving
from dask_hpc.sim.engine.walker import Walker
from dask_hpc.sim.model.job import Job, Stage
from dask_hpc_policies.model import Interruption, JobState, JobView
from dask_hpc_policies.power.states import NodeState


class Round:
    """The actions of one decision that change allotments; `rounds` carries it out."""

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


class ActiveJob:
    """One job from its submission to its end."""

    __slots__ = (
        "at_point", "before_node_s", "began_s", "checkpoint_s", "checkpoints", "clock", "done",
        "expansions", "first_s", "held_node_s", "interrupted_s", "interruption", "io_node_s", "io_s",
        "job", "joined", "kept", "kept_node_s", "key", "lanes", "left", "length_s", "measured", "mtct",
        "mtct_previous", "node_ids", "nodes", "paused", "rank", "released", "requested_nodes", "resize_s",
        "restarts", "round", "saving", "shrinks", "stage", "start_s", "state", "steps", "target", "version",
        "view", "viewed_s", "walker", "wasted_node_s", "window_s",
    )  # fmt: skip

    def __init__(self, job: Job, key: int) -> None:
        self.job = job
        #: Place in the workload.
        self.key = key
        self.state: JobState = "pending"
        self.nodes = 0
        #: Its present start, and its first one.
        self.start_s: float | None = None
        self.first_s = 0.0
        #: Sizes over time: (time, nodes from then on); empty while it has had one size only.
        self.steps: list[tuple[float, int]] = []
        #: Entries of the calendar with another number are stale.
        self.version = 0
        #: Present stage: when it (or its present speed) began, how long all of it takes at the present
        #: size, and the share of it that was left then.
        self.stage: Stage | None = None
        self.began_s = 0.0
        self.length_s = 0.0
        self.left = 1.0
        #: The present stage is held up: neither does it get on nor is its transfer under way.
        self.paused = False
        self.walker: Walker | None = None
        #: Size it is being resized to, and the decision that asked for it.
        self.target: int | None = None
        self.round: Round | None = None
        #: At a scheduling point at this very moment.
        self.at_point = False
        #: Nodes that joined in the resize under way, and since when that holds it up; None: it does not.
        self.joined = 0
        self.window_s: float | None = None
        #: Its nodes have been given back although its end is still to come in this moment.
        self.released = False
        #: Why it waits again, and when it was interrupted.
        self.interruption: Interruption = "none"
        self.interrupted_s: float | None = None
        #: Order of service, before priority and submission: see `life.RANKS`.
        self.rank = 2
        self.node_ids: list[int] = []
        self.requested_nodes: int | None = None
        #: A size and the MTCT at it, and the MTCT before the last resize: see `views`.
        self.mtct: tuple[int, float | None] | None = None
        self.mtct_previous: float | None = None
        #: What a live cluster has measured of `mtct` (which may be nothing), where the run goes on from one:
        #: it holds at any size, as the model of a run from there implies none. None: the model tells.
        self.measured: tuple[float | None] | None = None
        #: What it looked like to a policy, and when: see `views.present_view`.
        self.view: JobView | None = None
        self.viewed_s = 0.0
        #: How that view changes while time alone goes on: expected end, service that had been attained when,
        #: and nodes. None: it does otherwise, something else about the job has changed, or it holds no nodes.
        self.clock: tuple[float | None, float, float, int] | None = None
        #: Share of its work that is done (a job without a program), and that which a failure cannot undo.
        self.done = 0.0
        self.kept: float | Walker | None = None
        #: Node-seconds in which a program without commits had got on by then.
        self.kept_node_s = 0.0
        #: Its checkpoints, when it says what they cost, and its transfers beside computing, if there are any.
        self.saving = None if job.checkpoints is None else Saving()
        self.lanes: Lanes | None = None
        self.expansions = 0
        self.shrinks = 0
        self.restarts = 0
        self.resize_s = 0.0
        #: Node-seconds held without getting on: in resizes, and of work that was lost.
        self.wasted_node_s = 0.0
        self.io_s = 0.0
        #: Node-seconds of its present start in which it did something else than to compute, by what it did.
        self.io_node_s: dict[NodeState, float] = {}
        self.checkpoint_s = 0.0
        self.checkpoints = 0
        #: Node-seconds held before the present size, and before the run began (`sim.what_if`).
        self.held_node_s = 0.0
        self.before_node_s = 0.0

    def attained_node_s(self, now_s: float) -> float:
        """Node-seconds it has held so far."""
        if self.start_s is None:
            return self.before_node_s
        held_node_s, since_s = self.attained()
        return held_node_s + self.nodes * (now_s - since_s)

    def attained(self) -> tuple[float, float]:
        """Node-seconds it had held when it came to its present size, and when that was."""
        since_s = self.steps[-1][0] if self.steps else self.first_s
        return self.before_node_s + self.held_node_s, since_s
