"""Backfilling told step by step: the incremental form of `fcfs`, `easy` and `conservative`.

Rules of the file: the answers are those of `backfilling.admit`; only the work is less. What is kept between
passes:

* the queue in its order, as parallel lists, so that the jobs that are small enough are found in one
  comprehension over numbers;
* what runs, by expected end, so that the head's reservation is one walk from the front;
* of jobs that are not rigid, what they are: these policies resize nobody, but such a job starts on as many
  nodes as there is room for, and needs its smallest size;
* with one reservation, that reservation, while neither the head nor what runs has changed. As time goes on
  with nothing else changing, no job that could not be backfilled becomes one that can: of a queue that was
  looked through only jobs that came since are looked at. An expectation that is outlived ends that.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Set
from math import inf, nextafter
from typing import Any

from dask_hpc_policies.model import JobView, Trigger
from dask_hpc_policies.rules.admission import needed_nodes, start_size
from dask_hpc_policies.rules.backfilling import ORDERS
from dask_hpc_policies.rules.reservation import Profile, expected_s


def backfill_session(idle_nodes: int, kinds: Set[str], params: Mapping[str, Any]) -> BackfillSession | None:
    """A session for `params` of `fcfs`, `easy` or `conservative`; None where a job asks for other sizes."""
    return BackfillSession(idle_nodes, params) if "evolving" not in kinds else None


class BackfillSession:
    """See `dask_hpc_policies.protocol.Session`."""

    __slots__ = (
        "_best", "_depth", "_ends", "_expected", "_extra", "_idle", "_in_order", "_key", "_keys", "_looked",
        "_nodes", "_of", "_ranks", "_shadow_s", "_valid", "_views", "scans",
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
        self._ranks: list[tuple[float, int, int]] = []
        #: What runs: (expected end, job, nodes) ascending, and where a job is found there.
        self._ends: list[tuple[float, int, int]] = []
        self._of: dict[int, tuple[float, int, int]] = {}
        #: The head's reservation, whether it still holds, and how many waiting jobs were looked at under it.
        self._shadow_s = inf
        self._extra = 0
        self._valid = False
        self._looked = 0
        self.scans = 0

    def submit(self, key: int, job: JobView) -> None:
        """Put a job into the queue."""
        nodes, priority = job.max_nodes, job.priority
        if job.kind != "rigid":
            need = needed_nodes(job)
            if need is None:  # it never starts, and blocks nobody
                return
            nodes = need
            self._views[key] = job
        seconds = expected_s(job)
        rank = (0.0 if self._in_order else self._key(nodes, seconds, priority), -priority, key)
        if not self._ranks or rank > self._ranks[-1]:
            place = len(self._ranks)
        else:
            place = bisect_left(self._ranks, rank)
            if place < self._looked or place == 0:
                self._valid = False
        self._ranks.insert(place, rank)
        self._keys.insert(place, key)
        self._nodes.insert(place, nodes)
        self._expected.insert(place, seconds)

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
        key = self._keys.pop(place)
        del self._nodes[place]
        self._views.pop(key, None)
        entry = (now_s + self._expected.pop(place), key, nodes)
        del self._ranks[place]
        self._of[key] = entry
        insort(self._ends, entry)
        self._idle -= nodes
        started.append((key, nodes))

    def _behind_one(self, now_s: float, started: list[tuple[int, int]]) -> None:
        """Backfill behind one reservation."""
        if not self._valid or self._shadow_s <= now_s:
            self._reserve(now_s)
            self._looked = 1
            self._valid = True
        nodes, expected, shadow_s = self._nodes, self._expected, self._shadow_s
        begin, idle = self._looked, self._idle
        self._looked = len(nodes)
        if begin == len(nodes):
            return
        self.scans += 1
        fitting = [i for i, n in enumerate(nodes[begin:] if begin else nodes, begin) if n <= idle]
        taken = 0
        while fitting:
            chosen, largest = None, 0
            for at, i in enumerate(fitting):
                size = nodes[i - taken]
                if size > self._idle:
                    continue
                end_s = now_s + expected[i - taken]
                over = end_s <= shadow_s and end_s < inf
                if size > self._extra and not over:
                    continue
                if self._views:
                    size = self._size(i - taken, self._idle if over else min(self._idle, self._extra))
                if not self._best:
                    self._backfill(i - taken, size, end_s, now_s, started)
                    taken += 1
                elif size > largest:
                    chosen, largest = at, size
            if chosen is None:
                break
            i = fitting.pop(chosen)
            self._backfill(i, largest, now_s + expected[i], now_s, started)
            fitting = [j - (j > i) for j in fitting]
        self._looked = len(nodes)

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
