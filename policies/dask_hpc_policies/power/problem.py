"""What the corridor's program is asked: machine, corridor, running and waiting jobs, all checked.

Rules of the file: frozen dataclasses; watts are floats, per node unless a name says otherwise. Whatever
cannot be is a `ProgramError` that names the value, what is allowed and what to change. A *table* holds what
a job drew at measured sizes, rows of ``(nodes, min_w, max_w)`` with the watts of the whole job; only those
sizes are then legal.
"""

from __future__ import annotations

from dataclasses import dataclass

from dask_hpc_policies.jobs.constraints import CONSTRAINTS, legal_sizes
from dask_hpc_policies.params import shown, suggestion
from dask_hpc_policies.power.checks import MOST_TOTAL_W, ProgramError, count, ordered, slack_w, watts
from dask_hpc_policies.ranges import MOST_NODE_W

#: One legal size of a job: its nodes, the least and the most watts that the job draws on them.
Choice = tuple[int, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerJob:
    """One job, running or waiting.

    Raises
    ------
    ProgramError
        When a bound, a constraint, watts or a table cannot be.
    """

    id: str
    #: What it holds, or what it asks for while it waits.
    nodes: int
    min_nodes: int
    max_nodes: int
    constraint: str = "any"
    #: Watts a node; without meaning where there is a table.
    min_w: float = 0.0
    max_w: float = 0.0
    table: tuple[Choice, ...] = ()

    def __post_init__(self) -> None:
        where = f"job {shown(self.id)}: "
        count(where, "nodes", self.nodes, 0)
        count(where, "min_nodes", self.min_nodes, 1)
        count(where, "max_nodes", self.max_nodes, 1)
        if self.min_nodes > self.max_nodes:
            raise ProgramError(
                f"{where}min_nodes is {self.min_nodes}; allowed: 1 to max_nodes, which is {self.max_nodes}"
            )
        if self.constraint not in CONSTRAINTS:
            raise ProgramError(
                f"{where}constraint is {shown(self.constraint)}; allowed: {', '.join(CONSTRAINTS)}"
                f"{suggestion(self.constraint, CONSTRAINTS)}"
            )
        watts(where, "min_w", self.min_w, MOST_NODE_W)
        watts(where, "max_w", self.max_w, MOST_NODE_W)
        ordered(where, "min_w", self.min_w, "max_w", self.max_w)
        for nodes, least_w, most_w in self.table:
            row = f"{where}table row of {nodes} nodes: "
            count(row, "nodes", nodes, 1)
            watts(row, "min", least_w, MOST_TOTAL_W)
            watts(row, "max", most_w, MOST_TOTAL_W)
            ordered(row, "min", least_w, "max", most_w)
        sizes = [nodes for nodes, *_ in self.table]
        if len(set(sizes)) < len(sizes):
            raise ProgramError(f"{where}table has a size twice in {sizes}; give each size once")

    def choices(self, most_nodes: int) -> tuple[Choice, ...]:
        """Every legal size up to `most_nodes`, ascending, with what the job draws there."""
        top = min(self.max_nodes, most_nodes)
        legal = legal_sizes(self.constraint, self.min_nodes, top)
        if not self.table:
            return tuple((n, n * self.min_w, n * self.max_w) for n in legal)
        measured = {row[0]: row for row in self.table}
        return tuple(measured[n] for n in legal if n in measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rigid:
    """What cannot be changed: the nodes of rigid jobs, and the watts of all of them together.

    With 0 nodes it is any other constant load: switches, storage, plain work.
    """

    nodes: int = 0
    min_w: float = 0.0
    max_w: float = 0.0

    def __post_init__(self) -> None:
        count("rigid: ", "nodes", self.nodes, 0)
        watts("rigid: ", "min_w", self.min_w, MOST_TOTAL_W)
        watts("rigid: ", "max_w", self.max_w, MOST_TOTAL_W)
        ordered("rigid: ", "min_w", self.min_w, "max_w", self.max_w)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One question to the program.

    Raises
    ------
    ProgramError
        When it contradicts itself or a number cannot be.
    """

    nodes: int
    lower_w: float
    upper_w: float
    #: What an unused node draws, and one that is switched off.
    idle_w: float
    off_w: float = 0.0
    #: So many unused nodes may be switched off.
    max_off_nodes: int = 0
    #: The draw is kept so far inside of both bounds.
    margin_w: float = 0.0
    rigid: Rigid = Rigid()
    jobs: tuple[PowerJob, ...] = ()
    #: Who may start, the first one first.
    waiting: tuple[PowerJob, ...] = ()
    #: Start all in turn that fit, not the first one only.
    several: bool = False

    def __post_init__(self) -> None:
        count("", "nodes", self.nodes, 1)
        count("", "max_off_nodes", self.max_off_nodes, 0)
        watts("", "lower_w", self.lower_w, MOST_TOTAL_W)
        watts("", "upper_w", self.upper_w, MOST_TOTAL_W)
        ordered("", "lower_w", self.lower_w, "upper_w", self.upper_w)
        watts("", "idle_w", self.idle_w, MOST_NODE_W)
        watts("", "off_w", self.off_w, MOST_NODE_W)
        watts("", "margin_w", self.margin_w, MOST_TOTAL_W)
        if self.rigid.nodes > self.nodes:
            raise ProgramError(f"rigid: nodes is {self.rigid.nodes}; the machine has {self.nodes}")
        ids = [job.id for job in (*self.jobs, *self.waiting)]
        if len(set(ids)) < len(ids):
            twice = next(id for id in ids if ids.count(id) > 1)
            raise ProgramError(f"job {shown(twice)} is given twice; ids must differ")

    @property
    def tolerance_w(self) -> float:
        """Less than this outside a bound is inside."""
        return slack_w(self.lower_w, self.upper_w)
