"""What the draw comes to: energy by what drew it, time and watts outside the corridor, watts of jobs.

Rules of the file: it adds up samples and knows no cluster. Between two samples the draw is that of the first.
The total is added up apart from its parts; both must agree. What was measured of a job is kept by its name
and size, for its next run. What a job's user says of it holds against what others of its name drew, until
the job itself was measured: then what it drew itself holds alone, for a figure that is wrong would keep the
draw outside for as long as it runs. A job that is like no other of
its name is known by its own, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Mapping
from math import exp

from dask_hpc.scheduler.power.draw import Sample
from dask_hpc_policies.model import JobRequest
from dask_hpc_policies.power.bill import Uses
from dask_hpc_policies.power.checks import slack_w
from dask_hpc_policies.power.view import Step
from dask_hpc_policies.power.watts import declares_watts

#: Names whose watts are kept.
_NAMES_KEPT = 1000
#: What a job was seen to draw counts in place of what its user says after so many samples: the first ones
#: are of a job that only begins.
ENOUGH = 5
#: What was so long ago counts e times less, in seconds in which the job was seen. A dip of 8 s takes the mean
#: less than 3 % of its depth along; a new level has nine tenths of it after 12 minutes, whatever was before.
MEMORY_S = 300.0
#: What was not seen for longer than this, as on a size that a job had before, is forgotten as after this.
_MOST_GAP_S = 30.0
#: What is measured differs by that share all the time.
_NOISE = 0.01
#: A job draws otherwise than others of its name where it differs by more than that share.
_OTHER = 0.1
#: What a mean is taken over is kept in about so many parts: its first one counts by how much of it is left.
_ROWS = 1000


class Account:
    """The account since it was opened.

    Parameters
    ----------
    over_s
        What was drawn is held to the bounds as its mean over this time; 0: as it was.
    """

    def __init__(self, now_s: float, over_s: float = 0.0) -> None:
        self.from_s = now_s
        self.over_s = over_s
        #: Who has drawn what.
        self.uses = Uses()
        self.outside_ws = self.outside_s = 0.0
        self.last: Sample | None = None
        #: Begin, end and watt seconds of what the mean is taken over, the first in part; and their sums.
        self._recent: deque[tuple[float, float, float]] = deque()
        self._recent_s = self._recent_ws = 0.0

    @property
    def known_s(self) -> float:
        """Time in which the draw was known."""
        return self.uses.total.known_s

    def add(self, sample: Sample, step: Step | None) -> None:
        """A newer sample; `step`: the bounds that have held since the last one."""
        last, self.last = self.last, sample
        if last is None:
            return
        length_s = sample.t_s - last.t_s
        if length_s <= 0 or last.label == "unavailable":
            return
        measured = last.label == "measured"
        self.uses.add(
            length_s, last.total_w, last.jobs_w, last.plain_w, last.idle_w, measured, last.measured,
            last.states_w, last.names, last.nodes_w, last.away_w,
        )  # fmt: skip
        self._remember(last.t_s, sample.t_s, last.total_w)
        if step is not None:
            draw_w = self._window_w() if self.over_s else last.total_w
            out_w = max(step[1] - draw_w, draw_w - step[2])
            if out_w > slack_w(*step[1:]):
                self.outside_ws += out_w * length_s
                self.outside_s += length_s

    @property
    def draw_w(self) -> float | None:
        """What bounds are held against: the mean over `over_s` up to the last sample; None: unknown."""
        last = self.last
        if last is None or last.label == "unavailable":
            return None
        return self._window_w() if self.over_s and self._recent else last.total_w

    def _remember(self, begin_s: float, end_s: float, watts: float) -> None:
        """Put so many watts into what the mean is taken over, and leave out what was before it."""
        rows, span_ws = self._recent, (end_s - begin_s) * watts
        self._recent_s += end_s - begin_s
        self._recent_ws += span_ws
        if rows and rows[-1][1] == begin_s and end_s - rows[-1][0] <= self.over_s / _ROWS:
            # samples come with each pass, too, and a day is long
            begin_s, _, before_ws = rows[-1]
            span_ws += before_ws
            # in place: another thread may read the mean
            rows[-1] = (begin_s, end_s, span_ws)
        else:
            rows.append((begin_s, end_s, span_ws))
        while rows[0][1] <= end_s - self.over_s and len(rows) > 1:
            gone_begin_s, gone_end_s, gone_ws = rows.popleft()
            self._recent_s -= gone_end_s - gone_begin_s
            self._recent_ws -= gone_ws
        if len(rows) == 1:
            # what rounding has left does not add up for ever
            self._recent_s, self._recent_ws = end_s - begin_s, span_ws

    def _window_w(self) -> float:
        (first_s, first_end_s, first_ws), (begin_s, end_s, last_ws) = self._recent[0], self._recent[-1]
        before_s = max(0.0, end_s - self.over_s - first_s)
        length_s, first_w = self._recent_s - before_s, first_ws / (first_end_s - first_s)
        last_w = last_ws / (end_s - begin_s)
        return last_w if length_s <= 0 else (self._recent_ws - before_s * first_w) / length_s


def steady(last: float, now: float) -> float:
    """The figure of now where it is another one; what differs by less than 1 % is noise."""
    return last if abs(now - last) <= _NOISE * abs(last) else now


class History:
    """What jobs were measured to draw: by their name and size, and of each job that runs by its size."""

    def __init__(self) -> None:
        #: Of each name.
        self._names: dict[str, _Means] = {}
        #: Of each job that runs, by its id.
        self._jobs: dict[str, _Means] = {}
        #: How often anything that `holds` tells has changed.
        self.version = 0

    def add(self, id: str, name: str, nodes: int, watts: float, t_s: float) -> None:
        """The job `id` of that name, on so many nodes, drew so many watts a node at `t_s`."""
        own, named = self._jobs.get(id), self._names.get(name)
        if own is None:
            own = self._jobs[id] = _Means()
        if named is None:
            named = self._names[name] = _Means()
            while len(self._names) > _NAMES_KEPT:
                del self._names[next(iter(self._names))]
        own_told, named_told = own.add(nodes, watts, t_s), named.add(nodes, watts, t_s)
        if own_told or named_told or own.samples == ENOUGH:
            self.version += 1

    def of(self, name: str) -> Mapping[int, float]:
        """Mean watts of a node of jobs of that name by size, to 1 %; empty: none was measured."""
        found = self._names.get(name)
        return {} if found is None else found.told

    def holds(self, id: str, request: JobRequest) -> Mapping[int, float]:
        """What was measured that counts for the job `id`, as `of`; empty: what its user says of it does.

        Of a job whose user says nothing that is what jobs of its name drew, until it is seen to draw
        otherwise. Of another one it is what it drew itself, once that is known: others of its name are no
        reason to doubt its user.
        """
        means = self._jobs.get(id)
        own = {} if means is None or means.samples < ENOUGH else means.told
        if declares_watts(request):
            return own
        named = self.of(request.name)
        return own if _unlike(own, named) else named

    def keep(self, ids: Container[str]) -> None:
        """Forget what jobs have drawn but for these, which go on."""
        if any(id not in ids for id in self._jobs):
            self._jobs = {id: means for id, means in self._jobs.items() if id in ids}


def _unlike(own: Mapping[int, float], named: Mapping[int, float]) -> bool:
    """Whether a job draws otherwise than those of its name on the same size."""
    return any(abs(own[size] - named[size]) > _OTHER * named[size] for size in own.keys() & named.keys())


class _Means:
    """Mean watts of a node by size, the latest counting most."""

    def __init__(self) -> None:
        #: Sums and counts of what is not forgotten, of when the last one is, and the mean that was told.
        self._table: dict[int, tuple[float, float, float, float]] = {}
        #: What was told, by size; made anew when any of it has changed.
        self.told: Mapping[int, float] = {}
        self.samples = 0

    def add(self, nodes: int, watts: float, t_s: float) -> bool:
        """So many watts a node were seen on so many nodes; whether `told` is another one now."""
        self.samples += 1
        total, count, last_s, told = self._table.get(nodes, (0.0, 0.0, t_s, 0.0))
        left = exp(-min(max(0.0, t_s - last_s), _MOST_GAP_S) / MEMORY_S)
        total, count = left * total + watts, left * count + 1.0
        # a plan is asked for anew whenever watts change: a mean must not creep
        mean = steady(told, float(round(total / count)))
        self._table[nodes] = total, count, t_s, mean
        if mean == told and count > 1:
            return False
        self.told = {size: watts for size, (*_, watts) in sorted(self._table.items())}
        return True
