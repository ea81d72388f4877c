"""Keys of tasks as the manifest has them: text as it is, tuples as lists."""

from __future__ import annotations

import math
from typing import Any

from dask_hpc.errors import CheckpointValueError


def as_json(key: Any) -> Any:
    """A key as JSON; None when JSON has nothing like it."""
    if isinstance(key, tuple):
        parts = [as_json(part) for part in key]
        return None if None in parts else parts
    if type(key) is float and not math.isfinite(key):
        return None
    # a truth value, and numbers of NumPy, would come back as something else
    return key if type(key) in (str, int, float) else None


def from_json(found: Any) -> Any:
    """The key that `as_json` gave.

    Raises
    ------
    CheckpointValueError
        When it can be none.
    """
    if isinstance(found, list):
        return tuple(from_json(part) for part in found)
    if type(found) in (str, int, float):
        return found
    raise CheckpointValueError(f"{found!r:.80} is no key; allowed: text, numbers, and lists of them")
