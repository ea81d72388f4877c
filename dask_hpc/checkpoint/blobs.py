"""Where a version lies in the memories of hosts: what each holds, and what stands for what is lost.

Arithmetic alone. What one host holds of a version is its blob: segments one behind the other. Hosts that
fail apart form a group; their blobs are cut into parts, parts of different hosts make a stripe, and others of
the group hold the stripe's parities (`dask_hpc_policies.resilience.redundancy_sets`). So any range of a blob
can be made of the same ranges of other parts and of parities.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from dask_hpc.checkpoint.redundancy import BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Home:
    """The manager of one host."""

    #: Where it listens.
    address: str
    #: Its folder there.
    folder: str


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of one segment."""

    segment: str
    offset: int
    nbytes: int


class _Placed:
    """Keeps where the segments of a blob are: there may be one for each result."""

    __slots__ = ("_places",)

    _places: tuple[dict[str, int], list[int]]


@dataclass(frozen=True, slots=True)
class Blob(_Placed):
    """All that one host holds of a version."""

    home: Home
    #: Names and lengths of its segments, in order.
    segments: tuple[tuple[str, int], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all segments."""
        return self.places[1][-1]

    def start(self, segment: str) -> int:
        """Where a segment of it begins; raises KeyError when it is none."""
        numbers, begins = self.places
        return begins[numbers[segment]]

    @property
    def places(self) -> tuple[dict[str, int], list[int]]:
        """Number of each segment by its name; where each begins, and where the last one ends."""
        if not hasattr(self, "_places"):
            numbers = {name: number for number, (name, _) in enumerate(self.segments)}
            begins = list(accumulate((length for _, length in self.segments), initial=0))
            object.__setattr__(self, "_places", (numbers, begins))
        return self._places

    def ranges(self, start: int, stop: int) -> tuple[Range, ...]:
        """What there is of bytes `start` to `stop`, which may lie behind the end."""
        found, at = [], 0
        for name, length in self.segments:
            first, last = max(start, at), min(stop, at + length)
            if first < last:
                found.append(Range(name, first - at, last - first))
            at += length
        return tuple(found)

    def around(self, wanted: Iterable[tuple[int, int]]) -> Blob:
        """It without the names of segments that nothing of some ranges is in: those in a row are as one."""
        begins, within = self.places[1], set[int]()
        for first, last in wanted:
            if first < last:
                within.update(range(bisect_right(begins, first) - 1, bisect_left(begins, last)))
        found, end = [], 0
        for at in sorted(within):
            found += [("", begins[at] - end)] if begins[at] > end else []
            found.append(self.segments[at])
            end = begins[at + 1]
        found += [("", begins[-1] - end)] if begins[-1] > end else []
        return Blob(self.home, tuple(found))


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a blob."""

    #: Place of the blob in its group.
    blob: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Stripe:
    """Parts of different hosts, and the parities that others hold of them."""

    parts: tuple[Part, ...]
    #: Where each parity is, and the segment that it is.
    parities: tuple[tuple[Home, str], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of a parity: those of the longest part."""
        return max((part.stop - part.start for part in self.parts), default=0)

    @property
    def unit(self) -> int:
        """Bytes that are coded as one: a code with several parities is one of whole blocks."""
        return 1 if 1 in (len(self.parts), len(self.parities)) else BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Group:
    """Hosts that hold parities of each other's blobs."""

    blobs: tuple[Blob, ...]
    stripes: tuple[Stripe, ...]

    def cover(self, blob: int, start: int, stop: int) -> Iterator[tuple[Stripe, int, int, int]]:
        """The stripes that bytes `start` to `stop` of a blob are in, in order.

        Yields
        ------
        tuple
            The stripe, which of its parts they are in, and the range within the part.
        """
        found = []
        for stripe in self.stripes:
            for number, part in enumerate(stripe.parts):
                first, last = max(start, part.start), min(stop, part.stop)
                if part.blob == blob and first < last:
                    found.append((first, (stripe, number, first - part.start, last - part.start)))
        return iter(each for _, each in sorted(found, key=lambda pair: pair[0]))

    def around(self, blob: int, segment: str) -> Group:
        """What is needed of it to make a segment of a blob again: it goes with each result that is there."""
        numbers, begins = self.blobs[blob].places
        at = numbers[segment]
        covered = list(self.cover(blob, begins[at], begins[at + 1]))
        wanted: list[list[tuple[int, int]]] = [[] for _ in self.blobs]
        for stripe, _, begin, end in covered:
            begin, end = begin // stripe.unit * stripe.unit, -(-end // stripe.unit) * stripe.unit
            for part in stripe.parts:
                wanted[part.blob].append((part.start + begin, min(part.start + end, part.stop)))
        blobs = (each.around(ranges) for each, ranges in zip(self.blobs, wanted, strict=True))
        return Group(tuple(blobs), tuple(stripe for stripe, *_ in covered))

    def recoverable(self, blob: int, there: Collection[Home]) -> bool:
        """Whether a blob that is lost can be made of what these hosts hold: as many are lost as parities."""
        for stripe in self.stripes:
            if any(part.blob == blob and part.start < part.stop for part in stripe.parts):
                lost = [
                    self.blobs[part.blob].home not in there for part in stripe.parts if part.stop > part.start
                ]
                lost += [home not in there for home, _ in stripe.parities]
                if sum(lost) > len(stripe.parities):
                    return False
        return True


def finder(groups: Iterable[Group]) -> Callable[[Home, str], tuple[Group | None, int, int]]:
    """Gives for a host and a segment that it holds what else is needed when both are lost.

    That is what is `around` it of its group (None: it is in none), which of the blobs there it is in, and
    where it begins in that.
    """
    known = {blob.home: (group, number) for group in groups for number, blob in enumerate(group.blobs)}

    @cache
    def find(home: Home, segment: str) -> tuple[Group | None, int, int]:
        if home not in known:
            return None, 0, 0
        group, number = known[home]
        return group.around(number, segment), number, group.blobs[number].start(segment)

    return find
