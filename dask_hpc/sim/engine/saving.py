"""What a job with checkpoints has saved, and what it begins again from.

Rules of the file: plain data that `copy.deepcopy` copies. What a failure takes is what its class says: the
checkpoints that survive it stay, the others are gone, and the newest that is left is where the job begins
again. Lower levels hold nothing then until the next commit.

Node-seconds in which a job got on are those that it held less those that it wasted. Each checkpoint knows how
many they were, so that what is lost is the difference, whatever sizes the job had meanwhile.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from dask_hpc.sim.engine.walker import Walker
from dask_hpc.sim.model.checkpoints import Level, rank
from dask_hpc_policies.power.states import NodeState
from dask_hpc_policies.rules.losses import Severity

#: Where the state is that a program saves, or a job because it is about to be interrupted.
_EVERYWHERE = Level(survives="several")


class Account(Protocol):
    """What a job has held and done: an `ActiveJob`."""

    before_node_s: float
    wasted_node_s: float
    checkpoint_s: float
    done: float
    kept: float | Walker | None

    def attained_node_s(self, now_s: float) -> float:
        """Node-seconds it has held so far."""
        ...  # pragma: no cover


class Saved(NamedTuple):
    """A checkpoint, or one that is being made."""

    level: Level
    #: Number of the commit, from 1.
    number: int
    #: Share of the work that was done (a job without a program), or the place in the program.
    place: float | Walker
    #: Node-seconds in which the job had got on by then.
    useful_node_s: float


class Kept(NamedTuple):
    """Where a program without commits begins again, once that is saved."""

    place: Walker
    #: Node-seconds in which the job had got on by then.
    useful_node_s: float


class Saving:
    """The checkpoints of one job."""

    __slots__ = (
        "asked", "held", "held_node_s", "held_s", "least", "newest", "number", "since_s", "source",
        "spent_node_s", "taking", "written_s",
    )  # fmt: skip

    def __init__(self) -> None:
        #: Commits begun.
        self.number = 0
        #: When the last commit ended, or the job started.
        self.since_s = 0.0
        #: When what was moved of a commit beside computing was there, or cut off, last.
        self.written_s = 0.0
        #: A commit is due as soon as the program is between two stages.
        self.asked = False
        #: Where the next commit is to be kept at least (`Checkpoint.level`).
        self.least: str | None = None
        #: What holds the job up: a commit, or reading from where it begins again; since when, and the
        #: node-seconds that the job had held by then.
        self.held: Literal["commit", "restart"] | None = None
        self.held_s = 0.0
        self.held_node_s = 0.0
        #: Node-seconds that the job was held up so far, by what held it up.
        self.spent_node_s: dict[NodeState, float] = {}
        #: What the commit under way makes.
        self.taking: tuple[Saved, ...] = ()
        #: The newest checkpoint by the worst failure that it survives.
        self.newest: dict[Severity, Saved] = {}
        #: What the job began again from.
        self.source: Saved | None = None

    def hold(self, what: Literal["commit", "restart"], active: Account, now_s: float) -> None:
        """The job is held up from now on."""
        self.held = what
        self.held_s = now_s
        self.held_node_s = active.attained_node_s(now_s)

    def let_go(self, active: Account, now_s: float) -> None:
        """The job is held up no longer; what it held meanwhile is wasted."""
        if self.held is not None:
            held_node_s = active.attained_node_s(now_s) - self.held_node_s
            active.wasted_node_s += held_node_s
            state: NodeState = "checkpoint" if self.held == "commit" else "restart"
            self.spent_node_s[state] = self.spent_node_s.get(state, 0.0) + held_node_s
            if self.held == "commit":
                active.checkpoint_s += now_s - self.held_s
            self.held = None
        self.since_s = now_s

    def note(self, saved: Saved) -> None:
        """A checkpoint is there, unless a newer one of its kind is."""
        before = self.newest.get(saved.level.survives)
        if before is None or before.number < saved.number:
            self.newest[saved.level.survives] = saved

    def moved(self, saved: Saved, now_s: float) -> None:
        """What is moved of a checkpoint beside computing is there, or cut off."""
        if saved.level != _EVERYWHERE:
            self.written_s = now_s

    def everywhere(self, active: Account, place: float | Walker, now_s: float) -> Saved:
        """A checkpoint that survives everything: the job makes it by itself, beside its commits."""
        self.number += 1
        return Saved(_EVERYWHERE, self.number, place, useful_node_s(active, now_s))

    def best(self) -> Saved | None:
        """The newest checkpoint; of equal ones that with the shortest restart. None: there is none."""
        found = self.newest.values()
        return max(found, key=lambda one: (one.number, -one.level.restart_s), default=None)

    def lose(self, severity: Severity) -> None:
        """A failure of this class takes the checkpoints that do not survive it."""
        self.newest = {level: one for level, one in self.newest.items() if rank(level) >= rank(severity)}

    def interrupt(self, active: Account, severity: Severity, now_s: float, everything: bool = False) -> float:
        """A failure of this class ends the run of the job; a theft is as one of its hosts.

        What does not survive is gone; with `everything` the job has saved all that it had done. Returns the
        node-seconds of work that are lost, which are wasted.
        """
        self.let_go(active, now_s)
        self.taking = ()
        self.asked = False
        self.least = None
        if everything:
            self.note(self.everywhere(active, active.done, now_s))
        self.lose(severity)
        self.source = self.best()
        before = active.before_node_s if self.source is None else self.source.useful_node_s
        lost_node_s = useful_node_s(active, now_s) - before
        active.wasted_node_s += lost_node_s
        active.kept = None if self.source is None else self.source.place
        return lost_node_s


def useful_node_s(active: Account, now_s: float) -> float:
    """Node-seconds in which the job has got on so far."""
    return active.attained_node_s(now_s) - active.wasted_node_s
