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
        return str(json.loads(Path(path).read_text(encoding="utf-8"))["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a scheduler file: {error!r}") from None
