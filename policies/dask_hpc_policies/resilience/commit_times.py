"""When a job writes the next version of its state: pure, the same live and in the simulator.

All times are in seconds, on one clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from dask_hpc_policies.resilience.intervals import Costs, daly

#: Before the end of the walltime a last version is begun when so many times what one takes is left.
MARGIN = 1.3


@dataclass(frozen=True, slots=True)
class History:
    """What is known of the versions of a job."""

    #: When the newest was begun, whatever has become of it; None: there is none.
    begun_s: float | None = None
    #: What the newest whole one took; None: none is whole.
    cost_s: float | None = None
    #: Whether one is being written.
    under_way: bool = False


def interval_s(fixed_s: float, cost_s: float | None, mtbf_s: float | None) -> float:
    """Time from the beginning of one version to that of the next.

    Daly's (2006, equation 37) by what one takes and the mean time between failures, once both are known;
    until then `fixed_s`. Never so short that one begins before the one before it has ended.
    """
    if mtbf_s is None or cost_s is None:
        return fixed_s
    return daly(Costs(cost_s, mtbf_s)) + cost_s


def due(
    now_s: float,
    history: History,
    *,
    every_s: float,
    mtbf_s: float | None = None,
    end_s: float | None = None,
    ahead_s: float = 0.0,
) -> str | None:
    """Why a version is to be written at the next step boundary; None: not yet.

    Parameters
    ----------
    every_s, mtbf_s
        Interval where no mean time between failures is known, and that time.
    end_s
        When the first of its nodes is given up because its walltime ends; None: never.
    ahead_s
        What may pass until the next step boundary, and until this is asked again.
    """
    if history.under_way:
        return None
    if history.begun_s is None:
        return "it has no version yet"
    if end_s is not None and history.cost_s is not None:
        latest_s = end_s - MARGIN * history.cost_s - ahead_s
        if history.begun_s < latest_s <= now_s < end_s:
            left, cost = _text(end_s - now_s), _text(history.cost_s)
            return f"a node is given up in {left}, before its walltime ends; a version takes {cost}"
    since_s = now_s - history.begun_s
    if since_s >= (wanted_s := interval_s(every_s, history.cost_s, mtbf_s)):
        rule = "by its cost and the failures expected" if wanted_s != every_s else "the setting"
        return f"the last one was begun {_text(since_s)} ago, interval {_text(wanted_s)} ({rule})"
    return None


def _text(seconds: float) -> str:
    return f"{seconds:.3g} s"
