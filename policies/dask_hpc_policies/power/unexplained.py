"""What is drawn beyond all that is known of jobs and nodes: counted once it stays, forgotten slowly.

A hint that is wrong, a job in a phase of its own, another user's load. Jobs are resized for it as for what
is known (`question.drawn_w`), so it must not tremble: it counts what the draw has had at least for as long as
a resize takes to pay, and is let go only where the draw has had less for three times that. A draw that goes
up and down more slowly would have jobs resized at each turn; so what was let go and has come again stays
twice as long. It may have been a job's that has ended: then, as for the lower bound, it counts only as long
as it is drawn.

Rules of the file: pure, the same live and simulated. Time is that in which no job is being resized: meanwhile
nobody knows what jobs draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.power.allowed import is_above
from dask_hpc_policies.power.view import PowerView

#: It counts after so long and so many samples; where it is little but the draw is above the upper bound,
#: after these.
STAYS_S, _STAYS = 20.0, 20
_LITTLE_S, _LITTLE = 40.0, 40
#: It is let go after so long, at first and at most.
GOES_S, MOST_GOES_S = 60.0, 600.0
#: What comes again within so many times as long as it takes to be let go stays twice as long.
_AGAIN = 10
#: Less than this share of the draw is little: figures tremble.
_LITTLE_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class _Run:
    """Samples on one side of what counts, and of them the nearest."""

    from_s: float
    samples: int
    nearest_w: float


@dataclass(frozen=True, slots=True)
class _Level:
    """What counts, and since when and in how many samples it has been more than that, or less."""

    told_w: float = 0.0
    more: _Run | None = None
    less: _Run | None = None


@dataclass(frozen=True, slots=True)
class Unexplained:
    """What counts for either bound, and what the next sample is held against."""

    lower: _Level = _Level()
    upper: _Level = _Level()
    #: How long it takes to be let go, and when it was last.
    goes_s: float = GOES_S
    went_s: float | None = None
    #: Time in which no job was resized; when the last sample was taken, None: one was being resized.
    time_s: float = 0.0
    last_s: float | None = None
    #: Sizes of the jobs then, and of nobody the idle nodes, and the most that all were known to draw.
    sizes: Mapping[str, int] = field(default_factory=dict)
    known_w: float = 0.0

    @property
    def watts(self) -> tuple[float, float]:
        """At least and at most, in whole watts."""
        return min(self.lower.told_w, self.upper.told_w), self.upper.told_w


def noted(
    before: Unexplained, view: ClusterSnapshot, power: PowerView, draw_w: float | None, every_s: float = 0.0
) -> Unexplained:
    """The same with a sample more.

    Parameters
    ----------
    power
        Of `view`; `max_w` is what is known of the jobs, without what is not explained.
    draw_w
        What is drawn; None: nobody knows.
    every_s
        Samples that come sooner after another one say nothing new.
    """
    if view.adapting or draw_w is None or power.max_w is None:
        return replace(before, last_s=None)
    since_s = 0.0 if before.last_s is None else max(0.0, view.now_s - before.last_s)
    if before.last_s is not None and (since_s <= 0.0 or since_s < every_s):
        return before
    time_s = before.time_s + since_s
    sizes = {job.id: job.nodes for job in view.jobs if job.nodes and not job.is_default}
    sizes[""] = view.idle_nodes
    known_w = power.max_w - power.base_w
    beyond_w, little_w = draw_w - power.max_w, _LITTLE_SHARE * draw_w
    levels = before.lower, before.upper
    if sizes == before.sizes:
        if abs(more_w := known_w - before.known_w) <= little_w:
            # what is known trembles
            known_w = before.known_w
        else:
            # what jobs are known to draw now does not count twice
            levels = _known(before.lower, more_w), _known(before.upper, more_w)
    now = replace(before, time_s=time_s, last_s=view.now_s, sizes=sizes, known_w=known_w)
    above = is_above(replace(power, draw_w=draw_w), 0.0)
    ended = not before.sizes.keys() <= sizes.keys()
    goes_s, went_s = STAYS_S if ended else before.goes_s, before.went_s
    lower, upper = (
        _moved(level, time_s, beyond_w, little_w, above, patience_s)
        for level, patience_s in zip(levels, (STAYS_S, goes_s), strict=True)
    )
    if upper.told_w < levels[1].told_w:
        went_s = time_s
    elif upper.told_w > levels[1].told_w and went_s is not None:
        again = time_s - went_s < _AGAIN * goes_s
        goes_s, went_s = max(GOES_S, min(MOST_GOES_S, 2 * goes_s)) if again else GOES_S, None
    return replace(now, lower=lower, upper=upper, goes_s=goes_s, went_s=went_s)


def counted(power: PowerView, found: Unexplained) -> PowerView:
    """`power` with what is not explained among what is expected."""
    least_w, most_w = found.watts
    if power.min_w is None or power.max_w is None or not most_w:
        return power
    return replace(
        power, unexplained_w=found.watts, min_w=power.min_w + least_w, max_w=power.max_w + most_w
    )


def unexplained(power: PowerView) -> str:
    """What of the draw is not explained, in words; empty: nothing."""
    most_w = power.unexplained_w[1]
    return f" ({most_w:g} W more than is known of jobs and nodes)" if most_w else ""


def _known(level: _Level, more_w: float) -> _Level:
    """`level` after so many watts more have become known; fewer: what counts has yet to be seen."""
    more, less = (
        None if run is None else replace(run, nearest_w=run.nearest_w - more_w)
        for run in (level.more, level.less)
    )
    return _Level(max(0.0, level.told_w - max(0.0, more_w)), more, less)


def _moved(
    level: _Level, time_s: float, beyond_w: float, little_w: float, above: bool, goes_s: float
) -> _Level:
    """`level` after a sample of so many watts beyond what is known."""
    told_w = level.told_w
    more = less = None
    if beyond_w > told_w + (0.5 if above else little_w):
        more = _longer(level.more, time_s, beyond_w, min)
        much = more.nearest_w > told_w + little_w
        length_s, samples = (STAYS_S, _STAYS) if much else (_LITTLE_S, _LITTLE)
        if time_s - more.from_s >= length_s and more.samples >= samples:
            return _Level(float(ceil(more.nearest_w)))
    elif told_w and beyond_w < told_w - min(little_w, told_w / 2):
        less = _longer(level.less, time_s, beyond_w, max)
        if time_s - less.from_s >= goes_s and less.samples >= _STAYS:
            return _Level(float(ceil(less.nearest_w)) if less.nearest_w > little_w else 0.0)
    return _Level(told_w, more, less)


def _longer(run: _Run | None, time_s: float, beyond_w: float, nearer: Callable[..., float]) -> _Run:
    """`run` with a sample more, or one that begins."""
    if run is None:
        return _Run(time_s, 1, beyond_w)
    return _Run(run.from_s, run.samples + 1, nearer(run.nearest_w, beyond_w))
