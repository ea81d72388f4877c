"""Text files, plain or gzip: whole, or line by line; one error says what is wrong with them.

Rules of the file: plain text in UTF-8 (a byte order mark is passed over) and gzip of it. A file is read in
pieces, unpacked piece by piece, and never further than its bound, so that a small archive cannot fill the
memory. What it is not (UTF-16, a picture, a cut archive) is said with the file and, where there is one, the
line.
"""

from __future__ import annotations

import codecs
import gzip
import itertools
import re
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, cast

from dask_hpc.errors import WorkloadError

#: Longest text that is read line by line, after unpacking. The largest trace of the Parallel Workloads
#: Archive has less than half of it.
LARGEST_BYTES = 2**30
#: Longest text that is held whole, because its format has no lines.
LARGEST_TEXT_BYTES = 2**27
#: Most lines: a text of `LARGEST_BYTES` has no more when each is of a job.
MOST_LINES = 2**25
#: Longest line.
LONGEST_LINE_BYTES = 2**24

_PIECE_BYTES = 2**20
_GZIP = b"\x1f\x8b"
_OTHER_ENCODINGS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x00\x00\xfe\xff": "UTF-32"}


def read_text(path: str | Path, largest_bytes: int = LARGEST_TEXT_BYTES) -> str:
    """The text of the file, unpacked when it is a gzip file, whatever its name.

    Raises
    ------
    WorkloadError
        When there is no such file, it cannot be read or unpacked, is empty, too large or no UTF-8 text.
    """
    file = Path(path)
    decoder = codecs.getincrementaldecoder("utf-8")()
    parts: list[str] = []
    line = 1
    for piece in itertools.chain(_pieces(file, largest_bytes), [b""]):
        try:
            parts.append(decoder.decode(piece, final=not piece))
        except UnicodeDecodeError as error:
            raise _not_utf8(file, line + error.object.count(b"\n", 0, error.start), error) from None
        line += piece.count(b"\n")
    text = "".join(parts)
    if not text or text.isspace():
        raise WorkloadError(f"{file}: the file is empty")
    return text


def read_lines(path: str | Path, passed: re.Pattern[bytes]) -> Iterator[tuple[int, bytes]]:
    """Numbers (from 1) and lines of the file, without their ends, but for those that are `passed` over.

    Parameters
    ----------
    passed
        Matches any number of whole lines: comments, blank ones. Millions of them cost what reading them does.

    Raises
    ------
    WorkloadError
        When there is no such file, it cannot be read or unpacked, has a zero byte or is too large.
    """
    file = Path(path)
    number, rest = 1, b""
    for piece in itertools.chain(_pieces(file, LARGEST_BYTES), [b""]):
        # what is left at the end is a line without an end
        whole, end, rest = (rest + (piece or b"\n")).rpartition(b"\n")
        if len(rest) > LONGEST_LINE_BYTES:
            number += whole.count(b"\n") + len(end)
            raise WorkloadError(f"{file}, line {number}: the line is longer than {_mib(LONGEST_LINE_BYTES)}")
        if number > MOST_LINES:
            raise WorkloadError(f"{file}: the text has more than {MOST_LINES} lines, the most that are read")
        whole += end
        position = 0
        while position < len(whole):
            if found := passed.match(whole, position):
                number += whole.count(b"\n", position, found.end())
                position = found.end()
                continue
            stop = whole.index(b"\n", position)
            yield number, whole[position:stop]
            number += 1
            position = stop + 1


def decoded(file: str | Path, number: int, line: bytes) -> str:
    """A line of `read_lines` as text.

    Raises
    ------
    WorkloadError
        When it is no UTF-8; the line is named.
    """
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise _not_utf8(Path(file), number, error) from None


def _pieces(file: Path, largest_bytes: int) -> Iterator[bytes]:
    """What the file holds, unpacked, without a byte order mark."""
    total, line = 0, 1
    try:
        with ExitStack() as stack:
            raw = stack.enter_context(file.open("rb"))
            packed = raw.peek(len(_GZIP)).startswith(_GZIP)
            stream = cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=raw)) if packed else raw)
            while piece := stream.read(_PIECE_BYTES):
                if not total:
                    _check_encoding(file, piece)
                    piece = piece.removeprefix(codecs.BOM_UTF8)
                total += len(piece)
                if total > largest_bytes:
                    raise WorkloadError(
                        f"{file}: the text is longer than {_mib(largest_bytes)}, the most that is read"
                    )
                if (zero := piece.find(b"\0")) >= 0:
                    # every other byte is zero in UTF-16 without a mark
                    kind = "UTF-16 text" if piece[:200].count(b"\0") > 50 else "no text"
                    number = line + piece.count(b"\n", 0, zero)
                    raise WorkloadError(
                        f"{file}, line {number}: a zero byte; the file is {kind}, expected text in UTF-8"
                    )
                line += piece.count(b"\n")
                if piece:
                    yield piece
    except WorkloadError:
        raise
    except EOFError:
        raise WorkloadError(f"{file}: the gzip file is cut off; copy it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise WorkloadError(f"{file}: the gzip file is damaged: {error}") from None
    except (OSError, ValueError) as error:
        # ValueError: no file can have such a name
        reason = getattr(error, "strerror", None) or str(error)
        raise WorkloadError(f"{file}: cannot be read: {reason}") from None


def _check_encoding(file: Path, piece: bytes) -> None:
    for mark, encoding in _OTHER_ENCODINGS.items():
        if piece.startswith(mark):
            raise WorkloadError(f"{file}: the text is {encoding}; save it as UTF-8")


def _not_utf8(file: Path, line: int, error: UnicodeDecodeError) -> WorkloadError:
    found = error.object[error.start]
    return WorkloadError(f"{file}, line {line}: byte 0x{found:02x} is no UTF-8; save the file as UTF-8 text")


def _mib(count: int) -> str:
    return f"{count / 2**20:g} MiB"
