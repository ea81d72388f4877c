"""What the checkpoints of a job cost, and which failures they survive.

Rules of the file: frozen dataclasses; numbers alone. A commit saves the state that the job has when it
begins. It holds the job up for the blocking part of each of its levels, one after another; then what is left
to be moved goes beside computing, as a transfer (`dask_hpc.sim.engine.transfers`), and only when that has
ended can the job begin again there. Levels after Moody et al. (2010, section 2) and Dauwe (2018, chapter 6):
a commit of a higher level is one of every lower level too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dask_hpc.errors import WorkloadError
from dask_hpc_policies.rules.commits import suffices
from dask_hpc_policies.rules.losses import SEVERITIES, Severity

#: What bytes go over: the file system that all share, or the links of nodes to other nodes.
Path = Literal["file-system", "link"]
PATHS: tuple[Path, ...] = ("file-system", "link")


def rank(severity: Severity) -> int:
    """How much a failure takes: larger is more."""
    return SEVERITIES.index(severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One place where checkpoints are kept.

    Raises
    ------
    WorkloadError
        When a number is out of range.
    """

    #: The worst failure after which what was saved is still there.
    survives: Severity
    #: Every so many commits are of this level.
    each: int = 1
    #: Seconds that a commit holds the job up.
    blocking_s: float = 0.0
    #: Bytes of each of its nodes that are moved beside computing, and where.
    node_bytes: float = 0.0
    path: Path = "file-system"
    #: Seconds that a job which begins again from here needs before it gets on.
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        if self.each < 1:
            raise WorkloadError(f"checkpoints: each is {self.each!r}; expected a whole number of at least 1")
        for name in ("blocking_s", "node_bytes", "restart_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise WorkloadError(
                    f"checkpoints: {name} is {getattr(self, name)!r}; expected a number of at least 0"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """When a job commits, and to which levels.

    Raises
    ------
    WorkloadError
        When there is no level, or `every_s` is not above 0.
    """

    levels: tuple[Level, ...]
    #: Seconds from the start, or from the end of the last commit, to the next; a job with stages commits
    #: between two of them then. None: after each of its scheduling points. inf: when the policy asks for it.
    every_s: float | None = None

    def __post_init__(self) -> None:
        if not self.levels:
            raise WorkloadError("checkpoints: there is no level; give one at least")
        if self.every_s is not None and not self.every_s > 0:
            raise WorkloadError(f"checkpoints: every is {self.every_s!r} s; expected more than 0 s")

    def levels_of(self, number: int, least: str | None = None) -> tuple[Level, ...]:
        """The levels that are due in the commit of this number, from 1.

        With `least` (`rules.commits.SURVIVES`) also the lowest one that is kept there at least, and those
        below it, where none of those that are due is.
        """
        due = [level for level in self.levels if number % level.each == 0]
        if least is not None and not any(suffices(level.survives, least) for level in due):
            enough = [rank(level.survives) for level in self.levels if suffices(level.survives, least)]
            limit = min(enough, default=-1)
            due = [level for level in self.levels if level in due or rank(level.survives) <= limit]
        return tuple(due)

    @property
    def mean_blocking_s(self) -> float:
        """Seconds that a commit holds the job up, in the mean over all levels' turns."""
        return sum(level.blocking_s / level.each for level in self.levels)
