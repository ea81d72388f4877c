"""A whole text file, or one error that says what is wrong with it.

Rules of the file: plain text in UTF-8 and gzip of it; a file is read once, whole, before anything of it is
used. What it is not (UTF-16, a picture, a cut archive) is said with the file and, where there is one, the
line.
"""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

from dask_hpc.errors import WorkloadError

#: Largest text that is read, after unpacking. The largest trace of the Parallel Workloads Archive has
#: less than half of it.
LARGEST_BYTES = 2**30

_GZIP = b"\x1f\x8b"
_OTHER_ENCODINGS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x00\x00\xfe\xff": "UTF-32"}


def read_text(path: str | Path) -> str:
    """The text of the file, unpacked when it is a gzip file, whatever its name.

    Raises
    ------
    WorkloadError
        When there is no such file, it cannot be read or unpacked, is empty, too large or no UTF-8 text.
    """
    file = Path(path)
    data = _read(file)
    if data.startswith(_GZIP):
        data = _unpack(file, data)
    if len(data) > LARGEST_BYTES:
        raise WorkloadError(f"{file}: has {len(data)} bytes; at most {LARGEST_BYTES} are read")
    if not data.strip():
        raise WorkloadError(f"{file}: the file is empty")
    for mark, encoding in _OTHER_ENCODINGS.items():
        if data.startswith(mark):
            raise WorkloadError(f"{file}: the text is {encoding}; save it as UTF-8")
    zero = data.find(b"\0")
    if zero >= 0:
        # every other byte is zero in UTF-16 without a mark
        kind = "UTF-16 text" if data[:200].count(b"\0") > 50 else "no text"
        raise WorkloadError(
            f"{file}, line {_line(data, zero)}: a zero byte; the file is {kind}, expected text in UTF-8"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise WorkloadError(
            f"{file}, line {_line(data, error.start)}: byte 0x{data[error.start]:02x} is no UTF-8; "
            "save the file as UTF-8 text"
        ) from None


def _read(file: Path) -> bytes:
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise WorkloadError(f"{file}: has {file.stat().st_size} bytes; at most {LARGEST_BYTES} are read")
        return file.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise WorkloadError(f"{file}: cannot be read: {reason}") from None


def _unpack(file: Path, data: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            # one byte more than allowed, so that a small file cannot fill the memory
            return stream.read(LARGEST_BYTES + 1)
    except EOFError:
        raise WorkloadError(f"{file}: the gzip file is cut off; copy it again") from None
    except (OSError, zlib.error) as error:
        raise WorkloadError(f"{file}: the gzip file is damaged: {error}") from None


def _line(data: bytes, position: int) -> int:
    return data.count(b"\n", 0, position) + 1
