"""Backfilling told step by step: the incremental form of `fcfs`, `easy` and `conservative`.

Rules of the file: the answers are those of `backfilling.admit`; only the work is less. What is kept between
passes:

* the queue in its order, as parallel lists, and with one reservation a deep one by needed nodes as well:
  most of its jobs are too large to start;
* what runs, by expected end, so that the head's reservation is one walk from the front;
* of jobs that are not rigid, what they are: these policies resize nobody, but such a job starts on as many
  nodes as there is room for, and needs its smallest size;
* with one reservation, that reservation, while neither the head nor what runs has changed. As time goes on
  with nothing else changing, no job that could not be backfilled becomes one that can: of a queue that was
  looked through only jobs that came since are looked at. An expectation that is outlived ends that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Set
from itertools import islice
from math import inf, nextafter
from typing import Any

from dask_hpc_policies.model import JobRequest, JobView, Trigger
from dask_hpc_policies.rules.admission import needed_nodes, start_size
from dask_hpc_policies.rules.backfilling import ORDERS
from dask_hpc_policies.rules.reservation import Profile, requested_s
from dask_hpc_policies.views import job_view

#: Place in the queue: its order, priority, submission.
_Rank = tuple[float, int, int]
#: So many waiting jobs are a deep queue.
_DEEP = 64


def backfill_session(idle_nodes: int, kinds: Set[str], params: Mapping[str, Any]) -> BackfillSession | None:
    """A session for `params` of `fcfs`, `easy` or `conservative`; None where a job asks for other sizes."""
    return BackfillSession(idle_nodes, params) if "evolving" not in kinds else None


class BackfillSession:
    """See `dask_hpc_policies.protocol.Session`."""

    __slots__ = (
        "_best", "_by_nodes", "_depth", "_ends", "_expected", "_extra", "_idle", "_in_order", "_key", "_keys",
        "_looked", "_nodes", "_of", "_ranks", "_shadow_s", "_valid", "_views", "scans",
    )  # fmt: skip

    def __init__(self, idle_nodes: int, params: Mapping[str, Any]) -> None:
        order = params.get("order", "arrival")
        pick = params.get("pick", "front")
        self._key = ORDERS[order]
        self._in_order = order == "arrival"
        self._best = pick == "best-fit"
        #: Reservations; None: all; -1: nobody overtakes.
        self._depth: int | None = -1 if pick == "front" else params["reservation_depth"]
        self._idle = idle_nodes
        #: Those in the queue that are not rigid.
        self._views: dict[int, JobView] = {}
        #: The queue: job, needed nodes, expected seconds, rank; parallel, first to be served first.
        self._keys: list[int] = []
        self._nodes: list[int] = []
        self._expected: list[float] = []
        self._ranks: list[_Rank] = []
        #: Of a deep queue, with one reservation: rank and expected seconds of all that need so many nodes.
        self._by_nodes: dict[int, list[tuple[_Rank, float]]] = {}
        #: What runs: (expected end, job, nodes) ascending, and where a job is found there.
        self._ends: list[tuple[float, int, int]] = []
        self._of: dict[int, tuple[float, int, int]] = {}
        #: The head's reservation, whether it still holds, and the last job that was looked at under it.
        self._shadow_s = inf
        self._extra = 0
        self._valid = False
        self._looked: _Rank = (0.0, 0, 0)
        self.scans = 0

    def submit(self, key: int, job: JobRequest, anytime: bool = True) -> None:
        """Put a job into the queue."""
        nodes, priority = job.max_nodes, job.priority
        if job.kind != "rigid":
            view = job_view(job, id="")
            need = needed_nodes(view)
            if need is None:  # it never starts, and blocks nobody
                return
            nodes = need
            self._views[key] = view
        seconds = requested_s(job)
        rank = (0.0 if self._in_order else self._key(nodes, seconds, priority), -priority, key)
        if not self._ranks or rank > self._ranks[-1]:
            place = len(self._ranks)
        else:
            place = bisect_left(self._ranks, rank)
            if place == 0 or rank < self._looked:
                self._valid = False
        self._ranks.insert(place, rank)
        self._keys.insert(place, key)
        self._nodes.insert(place, nodes)
        self._expected.insert(place, seconds)
        if self._by_nodes:
            insort(self._by_nodes.setdefault(nodes, []), (rank, seconds))
        elif self._depth == 1 and len(self._ranks) >= _DEEP:
            for rank, nodes, seconds in zip(self._ranks, self._nodes, self._expected, strict=True):
                self._by_nodes.setdefault(nodes, []).append((rank, seconds))

    def finish(self, key: int) -> None:
        """Take a job out of what runs."""
        entry = self._of.pop(key)
        del self._ends[bisect_left(self._ends, entry)]
        self._idle += entry[2]
        self._valid = False

    def resized(self, key: int, nodes: int) -> None:
        """Jobs keep their size."""
        raise ValueError(f"job {key} cannot have been resized to {nodes} nodes: nobody has asked for that")

    def at_point(self, key: int, there: bool) -> None:
        """Jobs keep their size."""

    def decide(self, now_s: float, trigger: Trigger, key: int | None) -> list[tuple[int, int]]:
        """The jobs that start now, in order, with their sizes."""
        started: list[tuple[int, int]] = []
        nodes = self._nodes
        while nodes and nodes[0] <= self._idle:
            self._start(0, self._size(0, self._idle) if self._views else nodes[0], now_s, started)
            self._valid = False
        if len(nodes) > 1 and self._idle and self._depth != -1:
            if self._depth == 1:
                self._behind_one(now_s, started)
            else:
                self._behind_many(now_s, started)
        return started

    def _size(self, place: int, room: int) -> int:
        """Size at which a waiting job starts where there is room for so many nodes; 0: not at all."""
        view, need = self._views.get(self._keys[place]), self._nodes[place]
        if view is None:
            return need if need <= room else 0
        return start_size(view, room) or 0

    def _start(self, place: int, nodes: int, now_s: float, started: list[tuple[int, int]]) -> None:
        key, need, rank = self._keys.pop(place), self._nodes.pop(place), self._ranks.pop(place)
        self._views.pop(key, None)
        entry = (now_s + self._expected.pop(place), key, nodes)
        if self._by_nodes:
            alike = self._by_nodes[need]
            del alike[bisect_left(alike, (rank,))]
            if not alike:
                del self._by_nodes[need]
        self._of[key] = entry
        insort(self._ends, entry)
        self._idle -= nodes
        started.append((key, nodes))

    def _behind_one(self, now_s: float, started: list[tuple[int, int]]) -> None:
        """Backfill behind one reservation."""
        if min(self._by_nodes or self._nodes) > self._idle:
            return  # nobody fits, whatever is reserved
        if not self._valid or self._shadow_s <= now_s:
            self._reserve(now_s)
            self._looked = self._ranks[0]
            self._valid = True
        shadow_s = self._shadow_s
        if self._looked == self._ranks[-1]:
            return
        self.scans += 1
        fitting = self._fitting(now_s)
        while fitting:
            chosen, largest = None, 0
            for at, (rank, size, seconds) in enumerate(fitting):
                if size > self._idle:
                    continue
                end_s = now_s + seconds
                over = end_s <= shadow_s and end_s < inf
                if size > self._extra and not over:
                    continue
                place = bisect_left(self._ranks, rank)
                if self._views:
                    size = self._size(place, self._idle if over else min(self._idle, self._extra))
                if not self._best:
                    self._backfill(place, size, end_s, now_s, started)
                elif size > largest:
                    chosen, largest = at, size
            if chosen is None:
                break
            rank, _, seconds = fitting.pop(chosen)
            self._backfill(bisect_left(self._ranks, rank), largest, now_s + seconds, now_s, started)
        self._looked = self._ranks[-1]

    def _fitting(self, now_s: float) -> list[tuple[_Rank, int, float]]:
        """Rank, nodes and seconds of jobs not looked at yet, in order: all that could start now are there.

        Of jobs that need as many nodes no more than fit can start. They are the first ones while there are
        extra nodes, and then the first ones that end in time.
        """
        idle, extra, shadow_s, looked = self._idle, self._extra, self._shadow_s, self._looked
        if not self._by_nodes:
            begin, ranks, expected = bisect_right(self._ranks, looked), self._ranks, self._expected
            return [
                (ranks[i], n, expected[i])
                for i, n in enumerate(self._nodes[begin:], begin)
                if n <= idle and (n <= extra or now_s + expected[i] <= shadow_s)
            ]
        every = self._best and bool(self._views)  # a later one may be started on more nodes
        found: list[tuple[_Rank, int, float]] = []
        for nodes, alike in self._by_nodes.items():
            if nodes > idle or alike[-1][0] <= looked:
                continue
            begin, most = bisect_right(alike, (looked, inf)), len(alike) if every else idle // nodes
            if nodes <= extra:
                found += [(rank, nodes, s) for rank, s in alike[begin : begin + most]]
                begin += most
            in_time = ((rank, nodes, s) for rank, s in alike[begin:] if now_s + s <= shadow_s)
            found += islice(in_time, most)
        found.sort()
        return found

    def _backfill(
        self, place: int, size: int, end_s: float, now_s: float, started: list[tuple[int, int]]
    ) -> None:
        if not (end_s <= self._shadow_s and end_s < inf):
            self._extra -= size
        self._start(place, size, now_s, started)

    def _reserve(self, now_s: float) -> None:
        """When the head can start by what is expected, and how many nodes it leaves over then."""
        need, free = self._nodes[0], self._idle
        shadow_s = inf
        soon_s = nextafter(now_s, inf)
        for end_s, _, nodes in self._ends:
            if end_s < soon_s:
                end_s = soon_s
            if end_s > shadow_s:
                break
            free += nodes
            if free >= need:
                shadow_s = end_s
        self._shadow_s = shadow_s
        # Nothing is kept for a head whose start cannot be told.
        self._extra = free - need if shadow_s < inf else self._idle

    def _behind_many(self, now_s: float, started: list[tuple[int, int]]) -> None:
        """Backfill behind any number of reservations, on a profile of free nodes."""
        self.scans += 1
        soon_s = nextafter(now_s, inf)
        ends = [(max(soon_s, end_s), nodes) for end_s, _, nodes in self._ends if end_s < inf]
        profile = Profile(now_s, self._idle, ends)
        left = self._depth
        place = 0
        while place < len(self._nodes) and left != 0:
            need, seconds = self._nodes[place], self._expected[place]
            begin_s = profile.earliest_s(need, seconds)
            if begin_s <= now_s:
                room = min(self._idle, profile.least_nodes(now_s, seconds)) if self._views else need
                size = self._size(place, room) or need
                profile.take(now_s, seconds, size)
                self._start(place, size, now_s, started)
            else:
                if begin_s < inf:
                    profile.take(begin_s, seconds, need)
                left = None if left is None else left - 1
                place += 1
        while place < len(self._nodes):
            chosen, largest = None, 0
            for i in range(place, len(self._nodes)):
                need = self._nodes[i]
                if need > self._idle or (need <= largest and not self._views):
                    continue
                size = self._size(i, min(self._idle, profile.least_nodes(now_s, self._expected[i])))
                if size > largest:
                    chosen, largest = i, size
                    if not self._best:
                        break
            if chosen is None:
                break
            profile.take(now_s, self._expected[chosen], largest)
            self._start(chosen, largest, now_s, started)
            place = place if self._best else chosen
