"""A file with a series, whichever of the forms it has.

Rules of the file: what a file holds is told by how it begins, never by its name. All of it is read or none;
an error begins with the path and, where it is about one, the line.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from dask_hpc.errors import CorridorError
from dask_hpc.scheduler.power.tariff.entsoe import read_xml
from dask_hpc.scheduler.power.tariff.lines import LineError
from dask_hpc.scheduler.power.tariff.table import read_table
from dask_hpc_policies.params import shown
from dask_hpc_policies.power.tariff import Series

#: Longer files are not read: a year of quarter hours has a tenth of it.
MOST_BYTES = 1 << 24


def read_series(path: str) -> Series:
    """The series in a file: CSV, or a document of prices of the ENTSO-E Transparency Platform.

    Raises
    ------
    CorridorError
        When it cannot be read, or is neither.
    """
    try:
        text = read_text(path, MOST_BYTES)
        begin = text.lstrip("\ufeff \t\r\n")
        return read_xml(text.lstrip("\ufeff")) if begin.startswith("<") else read_table(text)
    except LineError as error:
        line = f", line {error.line}" if error.line else ""
        raise CorridorError(f"{path}{line}: {error}") from None


def read_text(path: Any, most_bytes: int) -> str:
    """The text of a file; pipes and devices, which may have the reader wait for ever, are none.

    Raises
    ------
    CorridorError
        When there is none, it cannot be read, is too long, or is no UTF-8 text.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise CorridorError(f"{path} is no file")
            raw = file.read(most_bytes + 1)
        if len(raw) > most_bytes:
            raise CorridorError(f"{path} is longer than {most_bytes} bytes")
        return raw.decode()
    except OSError as error:
        raise CorridorError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise CorridorError(f"{path}, line {line}: no UTF-8 text: {error.reason}") from None
    except CorridorError:
        raise
    except ValueError:
        # no file can have such a name
        raise CorridorError(f"{shown(path)} is no name of a file") from None
