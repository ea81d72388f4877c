"""What a manager has reserved, for which version, and what of that is not sealed yet.

Whoever reserves may be lost, or told too late that its version was given up, before it has written, or
before anybody has heard that it has. So what nobody needs is known by its version: all that was reserved for
one goes with it, and what its record does not name goes when that has come.

A note beside each segment of which no record tells yet says what it is, so that a manager that is started
after one that was killed knows what that has reserved, and for what, and what nobody will ask for.

Rules of the file: what may still be written to is given up, never used again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from dask_hpc.checkpoint.names import is_pack
from dask_hpc.checkpoint.record import Record, parse, read_records, remove_unfinished
from dask_hpc.checkpoint.segments import Segments, segment_path
from dask_hpc.errors import CheckpointError

logger = logging.getLogger("distributed.dask_hpc.manager")

#: A segment is written so soon after it was reserved, at least and by bytes per second, in seconds.
_WRITTEN_S, _SLOWEST = 600.0, 50e6
#: Versions that have ended and are remembered: whoever writes one may come late.
_REMEMBERED = 1000
#: What a note says: somebody writes the segment, the manager itself does, all is written.
_OPEN, _HERE, _SEALED = "open", "here", "sealed"


class Reservations:
    """The reservations of one manager, from the moment on in which it was started."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        #: Until when segments are to be sealed that are not yet; None: whoever reserved them says so.
        self._open: dict[str, float | None] = {}
        #: Versions of segments of which no record has come yet, and versions of which nothing more is taken.
        self._version: dict[str, str] = {}
        self._ended: dict[str, None] = {}
        #: Files beside segments of which no record tells: name, version and how far they are.
        self._notes: dict[str, Path] = {}

    def take_up(self) -> list[str]:
        """What a manager that was killed had reserved is this one's; gives what is to be dropped of that.

        Whoever writes a segment may go on, and has as long as if it had been reserved now. What was sealed is
        kept until its version ends. Nobody knows, or will ask for, what has no note and is in no record, and
        what that manager was writing itself.
        """
        folder = self._segments.folder
        remove_unfinished(str(folder))
        there, records = set(self._segments.names()), self._records()
        named = {name for each in records or () for names in each.segments().values() for name in names}
        unneeded = set() if records is None else there - named
        for path in [path for how in (_OPEN, _HERE, _SEALED) for path in folder.glob(f"*.*.{how}")]:
            segment, version, how = path.name.rsplit(".", 2)
            if segment not in there or segment in named:
                path.unlink()
                continue
            self._notes[segment] = path
            if version:
                self._version[segment] = version
            if how == _HERE:
                unneeded.add(segment)
                continue
            unneeded.discard(segment)
            if how == _OPEN:
                nbytes = os.stat(segment_path(str(folder), segment)).st_size
                self._open[segment] = _until_s(nbytes)
        found = self.unneeded(unneeded)
        for record in records or ():
            found += self._over(record.id, self._of(record.id))
        return found

    def _records(self) -> list[Record] | None:
        """Records of whole versions; None: one is not what was written, and nobody knows what it names."""
        try:
            return [parse(text) for text in read_records(str(self._segments.folder))]
        except CheckpointError as error:
            logger.warning("What nobody needs of %s stays: %s", self._segments.folder, error)
            return None

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
        OSError
            When there is no room for a note.
        """
        try:
            if version in self._ended:
                raise CheckpointError(f"version {version} is not written any more")
            if version and not is_pack(version):
                raise CheckpointError(f"{version!r:.80} is no version; allowed: 32 hexadecimal digits")
            self._note(segment, version, _HERE if nbytes is None else _OPEN)
        except BaseException:
            self._segments.give_up([segment])
            raise
        self._open[segment] = None if nbytes is None else _until_s(nbytes)
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
        if segment in self._notes:
            self._note(segment, self._version.get(segment, ""), _SEALED)

    def check(self, segments: Collection[str]) -> None:
        """Raise CheckpointError when one of these segments is not there any more."""
        if gone := sorted(set(segments) - set(self._segments.names())):
            raise CheckpointError(
                f"segment {gone[0]} was given up: nothing was said of it for {_WRITTEN_S:g} s, its version "
                "was, or the manager has begun anew since; write it again"
            )

    def give_up(self, segments: Collection[str]) -> None:
        """Nobody is to write to these any more."""
        self._segments.give_up(segments)
        for segment in segments:
            self._open.pop(segment, None)
            self._forget(segment)

    def give_up_late(self) -> None:
        """Give up what should be sealed by now: those who have reserved it were lost before.

        What cannot be removed is tried again as late as if it had been reserved now.
        """
        now_s = time.monotonic()
        late = [name for name, until_s in self._open.items() if until_s is not None and until_s < now_s]
        for name in late:
            try:
                self.give_up([name])
            except OSError as error:
                self._open[name] = now_s + _WRITTEN_S
                logger.warning("Segment %s stays for %g s more: %s", name, _WRITTEN_S, error)

    def whole(self, version: str, named: Collection[str]) -> list[str]:
        """The record of a version has come, which names these segments; gives those to drop: no others of it
        are needed.
        """
        for segment in named:
            # also what an earlier version was written with, which this one stands for
            self._forget(segment)
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
            self._forget(segment)
        return [segment for segment in segments if segment not in late]

    def _note(self, segment: str, version: str, how: str) -> None:
        path = self._segments.folder / f"{segment}.{version}.{how}"
        if (before := self._notes.get(segment)) is None:
            path.touch(0o600)
        else:
            before.rename(path)
        self._notes[segment] = path

    def _forget(self, segment: str) -> None:
        """It is of no version that is being written: a record names it, or nobody needs it."""
        self._version.pop(segment, None)
        if (note := self._notes.pop(segment, None)) is not None:
            note.unlink(missing_ok=True)

    def _of(self, version: str) -> set[str]:
        return {segment for segment, of in self._version.items() if of == version}

    def _over(self, version: str, segments: Collection[str]) -> list[str]:
        """Nothing more is taken of a version, and these of it are not needed."""
        self._ended[version] = None
        while len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]
        return self.unneeded(segments)


def _until_s(nbytes: int) -> float:
    """When that many bytes are written, on the clock of this process."""
    return time.monotonic() + _WRITTEN_S + nbytes / _SLOWEST
