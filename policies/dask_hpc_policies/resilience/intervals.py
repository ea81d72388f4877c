"""How long to compute between two checkpoints, by what one costs and how often something fails.

All times are in seconds. An interval is what is computed from the end of one checkpoint to the beginning of
the next. Failures come at a constant rate, at any moment, also during checkpoints and restarts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

#: Beyond this exponent no run ends.
_LARGEST = 700.0


@dataclass(frozen=True, slots=True)
class Costs:
    """What is known of a run.

    Raises
    ------
    ValueError
        For a cost below 0, or a mean time between failures that is not above 0.
    """

    #: Time that one checkpoint holds the run up.
    checkpoint_s: float
    #: Mean time between failures that end the run.
    mtbf_s: float
    #: Time from a failure until it computes again.
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("checkpoint_s", "restart_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value!r}; allowed: a number of seconds, 0 or more")
        if not (math.isfinite(self.mtbf_s) and self.mtbf_s > 0):
            raise ValueError(f"mtbf_s is {self.mtbf_s!r}; allowed: a number of seconds above 0")


def young(costs: Costs) -> float:
    """Young (1974): the first order, which counts the work that failures undo as half an interval each."""
    return math.sqrt(2 * costs.checkpoint_s * costs.mtbf_s)


def daly_first(costs: Costs) -> float:
    """Daly (2003): the first order with the checkpoint itself taken off; at least 0."""
    return max(0.0, young(costs) - costs.checkpoint_s)


def daly(costs: Costs) -> float:
    """Daly (2006, equation 37): the higher-order estimate; the mean time between failures where one
    checkpoint takes twice that.
    """
    delta, m = costs.checkpoint_s, costs.mtbf_s
    if delta >= 2 * m:
        return m
    part = delta / (2 * m)
    return math.sqrt(2 * delta * m) * (1 + math.sqrt(part) / 3 + part / 9) - delta


def exact(costs: Costs) -> float:
    """The interval of the shortest expected run time: where the derivative of Daly (2006, eq. 20) is 0."""
    from scipy.special import lambertw  # what it brings takes longer to load than all else here

    m = costs.mtbf_s
    found = m * (1 + float(lambertw(-math.exp(-(1 + costs.checkpoint_s / m))).real))
    # where a checkpoint costs next to nothing the digits are gone, and the first order is as good
    return found if found > 0 else young(costs)


#: The estimates, by name.
METHODS: Mapping[str, Callable[[Costs], float]] = {
    "young": young,
    "daly-first": daly_first,
    "daly": daly,
    "exact": exact,
}


def expected_s(costs: Costs, work_s: float, interval_s: float) -> float:
    """Expected time of a run that computes `work_s` with a checkpoint every `interval_s` (Daly 2006, eq. 20).

    inf where failures come so often that it would never end. Checkpoints that cost nothing may be taken all
    the time (an interval of 0): then nothing is lost but the restarts.
    """
    m = costs.mtbf_s
    if costs.checkpoint_s == interval_s == 0 and costs.restart_s / m <= _LARGEST:
        return math.exp(costs.restart_s / m) * work_s
    length = (interval_s + costs.checkpoint_s) / m
    if interval_s <= 0 or length > _LARGEST or costs.restart_s / m > _LARGEST:
        return math.inf
    return m * math.exp(costs.restart_s / m) * math.expm1(length) * work_s / interval_s
