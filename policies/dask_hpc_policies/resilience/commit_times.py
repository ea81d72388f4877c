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
    #: What the newest whole one took; None: not known.
    cost_s: float | None = None
    #: Whether one is being written, or was asked for.
    under_way: bool = False
    #: When the first of its nodes is given up because its walltime ends; None: never.
    end_s: float | None = None
    #: What may pass until the next step boundary, and until this is looked at again.
    ahead_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Rule:
    """How often a job writes a version."""

    #: From the end of one to the beginning of the next, where no failures are expected.
    every_s: float
    #: Mean time between failures of one node; None: every `every_s`.
    node_mtbf_s: float | None = None
    #: Which estimate of the best interval, one of `intervals.METHODS`.
    method: str = "daly"

    def interval_s(self, cost_s: float | None, nodes: int) -> float:
        """From the end of one version of a job on so many nodes to the beginning of the next."""
        if self.node_mtbf_s is None or cost_s is None:
            return self.every_s
        return METHODS[self.method](Costs(cost_s, self.node_mtbf_s / max(1, nodes)))


def due(now_s: float, history: History, rule: Rule, nodes: int) -> str | None:
    """Why a job on so many nodes is to write a version at its next step boundary; None: not yet."""
    if history.under_way:
        return None
    if history.since_s is None:
        return "it has no version yet"
    since_s, end_s = now_s - history.since_s, history.end_s
    if end_s is not None and history.cost_s is not None:
        latest_s = end_s - MARGIN * history.cost_s - history.ahead_s
        if history.since_s < latest_s <= now_s < end_s:
            left, cost = _text(end_s - now_s), _text(history.cost_s)
            return f"a node is given up in {left}, before its walltime ends; a version takes {cost}"
    if since_s >= (wanted_s := rule.interval_s(history.cost_s, nodes)):
        by = "the setting" if wanted_s == rule.every_s else f"{rule.method}, {nodes} nodes"
        return f"the last one ended {_text(since_s)} ago, interval {_text(wanted_s)} ({by})"
    return None


def _text(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 100 else f"{seconds:.3g} s"
