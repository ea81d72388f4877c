"""Traces as files: JSON lines, plain or compressed by gzip when the name ends in ``.gz``.

Rules of the file: reading never guesses. A malformed line is an error that names file, line and what
was expected; only the last line may be cut, because a running cluster, or one that was killed, leaves
it so. A whole trace is written all or nothing; a running one grows line by line and never keeps its
cluster from working.
"""

from __future__ import annotations

import codecs
import gzip
import io
import logging
import os
import threading
import warnings
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from dask_hpc.errors import TraceError
from dask_hpc.trace.records import SCHEMA, Header, Pass, Record, decode_line, encode_line

logger = logging.getLogger(__name__)

#: Longest line that is read; a snapshot of a thousand nodes and jobs has less than a hundredth of it.
LONGEST_LINE_BYTES = 2**26
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
_TAKEN = (
    "another file is there now: another scheduler writes to this path, or it was replaced; give each "
    "scheduler an hpc.trace.path of its own"
)


class TraceWarning(UserWarning):
    """A trace ends in the middle of a line; what came before it was read."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace that was read."""

    #: Where it came from, for messages.
    source: str
    header: Header
    #: All records but the header, in the order they were written.
    records: tuple[Record, ...] = ()

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The calls of the policy, in order."""
        return tuple(record for record in self.records if isinstance(record, Pass))


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Read the trace in `path`.

    A last line that was cut is left out with a `TraceWarning`.

    Raises
    ------
    TraceError
        For a malformed line (file, number and what was expected), a missing header, a newer layout
        than this version knows, or a file that cannot be read.
    """
    path = Path(path)
    try:
        with ExitStack() as stack:
            raw = stack.enter_context(_opened(path))
            # by content for a name with .gz only: the suffix is the contract
            stream = stack.enter_context(gzip.open(raw)) if path.suffix == ".gz" else raw
            return _parse(_lines(cast(IO[bytes], stream), str(path)), str(path))
    except (OSError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"cannot read the trace {path}: {reason}") from None


def parse_trace(lines: Iterable[str], source: str = "trace") -> Trace:
    """The trace that `lines` (such as ``Runtime.trace()`` gives) hold.

    Raises
    ------
    TraceError
        As :func:`read_trace`; `source` takes the place of the file's name.
    """
    return _parse(((line, True) for line in lines), source)


def write_trace(path: str | os.PathLike[str], records: Iterable[Record]) -> None:
    """Write `records`, of which the first must be a `Header`, to `path`.

    An existing file is replaced in one step, once everything is written.

    Raises
    ------
    TraceError
        When the first record is not a header, or another one is.
    OSError
        When the file cannot be written.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with ExitStack() as stack:
            stream: io.BufferedIOBase = stack.enter_context(part.open("xb"))
            if path.suffix == ".gz":
                # no time in the file: equal traces give equal bytes
                stream = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0))
            for number, record in enumerate(records):
                if isinstance(record, Header) != (number == 0):
                    raise TraceError(
                        f"cannot write {path}: record {number + 1} is a {type(record).TAG}; a trace is one "
                        "header, then other records"
                    )
                stream.write(encode_line(record).encode() + b"\n")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


class TraceFile:
    """A trace that is written while it happens.

    `add` belongs to one thread, the event loop's; writing goes on in others. The file is whole after each
    flush, also when it is compressed: every flush appends and closes it. What was in `path` before is kept
    beside it, under the name with ``.previous`` added. When another file is there later, such as that of
    another scheduler, it ends.

    Parameters
    ----------
    path
        The file; compressed when its name ends in ``.gz``.
    header
        First record.

    Raises
    ------
    TraceError
        When the file cannot be written; the message names the setting.
    """

    def __init__(self, path: str | os.PathLike[str], header: Header) -> None:
        self.path = Path(path)
        # a deque, because taking from it while another thread adds to it loses nothing
        self._pending: deque[Record] = deque([header])
        self._writing = threading.Lock()
        self._ended = False
        try:
            if self.path.is_file():  # never a device such as /dev/null
                os.replace(self.path, self.path.with_name(self.path.name + ".previous"))
            with self.path.open("ab") as stream:
                # without the device: a mount that comes back has another one
                self._number = os.fstat(stream.fileno()).st_ino
        except OSError as error:
            raise cannot_write(self.path, error.strerror or str(error)) from None
        self.flush()

    def add(self, record: Record) -> None:
        """Note `record`; it reaches the file at the next `flush`."""
        if not self._ended:
            self._pending.append(record)

    @property
    def pending(self) -> bool:
        """Whether something was added that is not on its way to the file."""
        return bool(self._pending) and not self._ended

    def close(self) -> None:
        """Write what was added; further records are dropped."""
        self.flush()
        self._ended = True

    def flush(self) -> None:
        """Write what was added, in whatever thread: a file system may take its time."""
        with self._writing:
            if self._ended or not self._pending:
                return
            try:
                lines = []
                while self._pending:
                    lines.append(encode_line(self._pending.popleft()) + "\n")
                data = "".join(lines).encode()
                if self.path.suffix == ".gz":
                    data = gzip.compress(data)
                # where it was moved away nothing begins anew: that would have no header
                with open(self.path, "ab", opener=lambda path, _: os.open(path, _APPEND)) as stream:
                    if os.fstat(stream.fileno()).st_ino != self._number:
                        raise OSError(_TAKEN)
                    # in one piece, so that whoever reads meanwhile finds no half of a flush
                    stream.write(data)
            except (OSError, ValueError, TypeError) as error:
                # a full disk must not stop the scheduler, and a gap must not pass for a whole trace
                logger.error("the trace %s ends here, because it could not be written: %s", self.path, error)
                self._ended = True


def cannot_write(path: object, why: str) -> TraceError:
    """What is said where no trace can be written to `path`; names the setting."""
    return TraceError(
        f"cannot write the trace {path}: {why}; set hpc.trace.path to a path that can be written, or to null"
    )


def _opened(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except ValueError as error:
        # no file can have such a name
        raise TraceError(f"cannot read the trace {path}: {error}") from None


def _lines(stream: IO[bytes], source: str) -> Iterator[tuple[str, bool]]:
    """Pairs of a line and whether it is whole."""
    lines = iter(lambda: stream.readline(LONGEST_LINE_BYTES + 1), b"")
    try:
        for number, line in enumerate(lines, start=1):
            if len(line) > LONGEST_LINE_BYTES:
                raise TraceError(
                    f"{source}, line {number}: the line is longer than {LONGEST_LINE_BYTES // 2**20} MiB"
                )
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            try:
                yield line.decode(), line.endswith(b"\n")
            except UnicodeDecodeError as error:
                if line.endswith(b"\n"):
                    raise TraceError(f"{source}, line {number}: expected UTF-8 text ({error})") from None
                yield "", False
    except EOFError:
        # the compressed stream ends without its end mark, in the middle of a line or after it
        yield "", False


def _parse(lines: Iterable[tuple[str, bool]], source: str) -> Trace:
    header: Header | None = None
    records: list[Record] = []
    for number, (line, whole) in enumerate(lines, start=1):
        try:
            record = decode_line(line)
        except ValueError as error:
            if not whole:
                # never silent, and never fatal: the records before it are good
                warnings.warn(
                    f"{source}, line {number} is cut; the {number - 1} lines before it were read",
                    TraceWarning,
                    stacklevel=3,
                )
                break
            raise TraceError(f"{source}, line {number}: {error}") from None
        if isinstance(record, Header) != (header is None):
            expected = "the header" if header is None else "a record, not a second header"
            raise TraceError(f"{source}, line {number}: expected {expected}, got {_kind(record)}")
        if isinstance(record, Header):
            header = _known(record, source)
        else:
            records.append(record)
    if header is None:
        raise TraceError(f"{source}, line 1: expected the header, got nothing")
    return Trace(source, header, tuple(records))


def _known(header: Header, source: str) -> Header:
    if not 1 <= header.schema <= SCHEMA:
        raise TraceError(
            f"{source}, line 1: the layout is version {header.schema}; this version of dask_hpc reads 1 to "
            f"{SCHEMA}: read it with the version that wrote it ({dict(header.versions)})"
        )
    return header


def _kind(record: Record) -> str:
    return f"a record of kind {record.TAG!r}"
