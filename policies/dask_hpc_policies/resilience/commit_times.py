"""When a job writes the next version of its state: pure, the same live and in the simulator.

All times are in seconds, on one clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from dask_hpc_policies.resilience.intervals import METHODS, Costs

#: Before the end of the walltime a last version is begun when so many times what one takes is left.
MARGIN = 1.3


@dataclass(frozen=True, slots=True)
class History:
    """What is known of the versions of a job."""

    #: When the newest ended, whatever became of it, or the job began to run; None: it has none, and is to
    #: have one at once.
    since_s: float | None = None
    #: What one takes from its begin until it is whole: the next one where that is known, else the newest
    #: whole one; None: not known.
    cost_s: float | None = None
    #: What one holds the job up, in the mean where they differ; None: as long as it takes, `cost_s`.
    held_up_s: float | None = None
    #: Whether one is being written, or was asked for.
    under_way: bool = False
    #: When the first of its nodes is given up because its walltime ends; None: never.
    end_s: float | None = None
    #: What may pass until the next step boundary, and until this is looked at again.
    ahead_s: float = 0.0

    @property
    def mean_s(self) -> float | None:
        """What one holds the job up in the mean, as far as is known."""
        return self.cost_s if self.held_up_s is None else self.held_up_s

    @property
    def last_s(self) -> float | None:
        """When one more is to be asked for, so that it is whole before a node is given up; None: no more is.

        When that moment has come it stays so until one has been written, or the node is gone.
        """
        if self.since_s is None or self.end_s is None or self.cost_s is None:
            return None
        at_s = self.end_s - MARGIN * self.cost_s - self.ahead_s
        return at_s if self.since_s < at_s < self.end_s else None


@dataclass(frozen=True, slots=True)
class Rule:
    """How often a job writes a version."""

    #: From the end of one to the beginning of the next, where no failures are expected.
    every_s: float
    #: Mean time between failures of one node; None: every `every_s`.
    node_mtbf_s: float | None = None
    #: Which estimate of the best interval, one of `intervals.METHODS`.
    method: str = "daly"

    def interval_s(self, held_up_s: float | None, nodes: int) -> float:
        """From the end of one version of a job on so many nodes, which it holds up, to the next one."""
        if self.node_mtbf_s is None or held_up_s is None:
            return self.every_s
        return METHODS[self.method](Costs(held_up_s, self.node_mtbf_s / max(1, nodes)))


def due(now_s: float, history: History, rule: Rule, nodes: int) -> str | None:
    """Why a job on so many nodes is to write a version at its next step boundary; None: not yet."""
    if history.under_way:
        return None
    if history.since_s is None:
        return "it has no version yet"
    since_s, last_s = now_s - history.since_s, history.last_s
    if last_s is not None and history.end_s is not None and last_s <= now_s < history.end_s:
        left, cost = _text(history.end_s - now_s), _text(history.cost_s or 0.0)
        return f"a node is given up in {left}, before its walltime ends; a version takes {cost}"
    if since_s >= (wanted_s := rule.interval_s(history.mean_s, nodes)):
        by = "the setting" if wanted_s == rule.every_s else f"{rule.method}, {nodes} nodes"
        return f"the last one ended {_text(since_s)} ago, interval {_text(wanted_s)} ({by})"
    return None


def in_time(left_s: float, cost_s: float | None) -> bool:
    """Whether a version that is begun now is whole before nodes go that have to, so many seconds from now.

    One whose cost is not known is tried: what it does not save would be lost without it, too.
    """
    return cost_s is None or left_s >= MARGIN * cost_s


def due_in_s(now_s: float, history: History, rule: Rule, nodes: int) -> float:
    """Seconds until `due` gives a reason, if nothing is under way then; 0: it does now."""
    if history.since_s is None:
        return 0.0
    left_s = [rule.interval_s(history.mean_s, nodes) - (now_s - history.since_s)]
    if history.last_s is not None and history.end_s is not None and now_s < history.end_s:
        left_s.append(history.last_s - now_s)
    return max(0.0, min(left_s))


def _text(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 100 else f"{seconds:.3g} s"
