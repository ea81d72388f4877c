"""Where a version lies in the memories of hosts: what each holds, and what stands for what is lost.

Arithmetic alone. What one host holds of a version is its blob: segments one behind the other. Hosts that
fail apart form a group; their blobs are cut into parts, parts of different hosts make a stripe, and others of
the group hold the stripe's parities (`dask_hpc_policies.resilience.redundancy_sets`). So any range of a blob
can be made of the same ranges of other parts and of parities.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True)
class Blob:
    """All that one host holds of a version."""

    home: Home
    #: Names and lengths of its segments, in order.
    segments: tuple[tuple[str, int], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all segments."""
        return sum(length for _, length in self.segments)

    def start(self, segment: str) -> int:
        """Where a segment of it begins; raises KeyError when it is none."""
        at = 0
        for name, length in self.segments:
            if name == segment:
                return at
            at += length
        raise KeyError(segment)

    def ranges(self, start: int, stop: int) -> tuple[Range, ...]:
        """What there is of bytes `start` to `stop`, which may lie behind the end."""
        found, at = [], 0
        for name, length in self.segments:
            first, last = max(start, at), min(stop, at + length)
            if first < last:
                found.append(Range(name, first - at, last - first))
            at += length
        return tuple(found)


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
