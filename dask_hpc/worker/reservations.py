"""What a manager has reserved, for which version, and what of that is not sealed yet.

Whoever reserves may be lost, or told too late that its version was given up, before it has written, or
before anybody has heard that it has. So what nobody needs is known by its version: all that was reserved for
one goes with it, and what its record does not name goes when that has come.

Rules of the file: what may still be written to is given up, never used again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from dask_hpc.checkpoint.segments import Segments
from dask_hpc.errors import CheckpointError

#: A segment is written so soon after it was reserved, at least and by bytes per second, in seconds.
_WRITTEN_S, _SLOWEST = 600.0, 50e6
#: Versions that have ended and are remembered: whoever writes one may come late.
_REMEMBERED = 1000


class Reservations:
    """The reservations of one manager, from the moment on in which it was started."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        #: Until when segments are to be sealed that are not yet; None: whoever reserved them says so.
        self._open: dict[str, float | None] = {}
        #: Versions of segments of which no record has come yet, and versions of which nothing more is taken.
        self._version: dict[str, str] = {}
        self._ended: dict[str, None] = {}

    def add(self, segment: str, version: str, nbytes: int | None) -> None:
        """A segment was reserved.

        Parameters
        ----------
        version
            What it is of; empty: nobody says.
        nbytes
            That are to be written to it, by somebody who may be lost; None: this process writes it.

        Raises
        ------
        CheckpointError
            When that version has ended.
        """
        if version in self._ended:
            self._segments.give_up([segment])
            raise CheckpointError(f"version {version} is not written any more")
        until_s = None if nbytes is None else time.monotonic() + _WRITTEN_S + nbytes / _SLOWEST
        self._open[segment] = until_s
        if version:
            self._version[segment] = version

    def seal(self, segment: str) -> None:
        """All was written to a segment that is to be: it stays until it is dropped.

        Raises
        ------
        CheckpointError
            When it was given up meanwhile.
        """
        self.check([segment])
        self._open.pop(segment, None)

    def check(self, segments: Collection[str]) -> None:
        """Raise CheckpointError when one of these segments is not there any more."""
        if gone := sorted(set(segments) - set(self._segments.names())):
            raise CheckpointError(
                f"segment {gone[0]} was given up: nothing was said of it for {_WRITTEN_S:g} s, its version "
                "was, or the manager has begun anew since; write it again"
            )

    def give_up(self, segments: Collection[str]) -> None:
        """Nobody is to write to these any more."""
        for segment in segments:
            self._open.pop(segment, None)
            self._version.pop(segment, None)
        self._segments.give_up(segments)

    def give_up_late(self) -> None:
        """Give up what should be sealed by now: those who have reserved it were lost before."""
        now_s = time.monotonic()
        late = [name for name, until_s in self._open.items() if until_s is not None and until_s < now_s]
        self.give_up(late)

    def whole(self, version: str, named: Collection[str]) -> list[str]:
        """The record of a version has come, which names these segments; gives those to drop: no others of it
        are needed.
        """
        for segment in named:
            # also what an earlier version was written with, which this one stands for
            self._version.pop(segment, None)
        return self._over(version, self._of(version))

    def end(self, version: str, segments: Collection[str]) -> list[str]:
        """Nobody needs a version any more, which has these segments; gives all that are to be dropped."""
        return self._over(version, self._of(version).union(segments))

    def over(self, versions: Iterable[str]) -> list[str]:
        """Versions have ended, and what their records name was told before; gives what is to be dropped."""
        new = [version for version in versions if version not in self._ended]
        return [segment for version in new for segment in self.end(version, ())]

    def unneeded(self, segments: Collection[str]) -> list[str]:
        """Nobody needs these; gives those to drop: what may still be written to is given up."""
        self.give_up(late := [segment for segment in segments if segment in self._open])
        for segment in segments:
            self._version.pop(segment, None)
        return [segment for segment in segments if segment not in late]

    def _of(self, version: str) -> set[str]:
        return {segment for segment, of in self._version.items() if of == version}

    def _over(self, version: str, segments: Collection[str]) -> list[str]:
        """Nothing more is taken of a version, and these of it are not needed."""
        self._ended[version] = None
        while len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]
        return self.unneeded(segments)
