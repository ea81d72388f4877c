"""The file in which a scheduler says where it is (``dask scheduler --scheduler-file``)."""

from __future__ import annotations

import json
import os
from pathlib import Path


def address_in(path: str | os.PathLike[str]) -> str:
    """The address of the scheduler.

    Raises
    ------
    ValueError
        When it is no such file, or is not there.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        why = "it holds no address"
    except OSError as error:
        found, why = None, str(error.strerror)
    except (ValueError, RecursionError):
        found, why = None, "it holds no JSON"
    if not isinstance(found, dict) or not isinstance(found.get("address"), str):
        raise ValueError(
            f"{str(path)!r} is not a scheduler file: {why}; needed: one of dask scheduler --scheduler-file"
        )
    address: str = found["address"]
    return address
