"""crc32c, by a library that is loaded when the first checksum is needed."""

from __future__ import annotations

from typing import Any

from dask_hpc.errors import CheckpointError


def crc32c(content: Any, before: int = 0) -> int:
    """Checksum of bytes that follow others whose checksum is `before`.

    Raises
    ------
    CheckpointError
        When the library is not installed.
    """
    return _load()(content, before)


def _load() -> Any:
    global _function
    if _function is None:
        try:
            from crc32c import crc32c as found
        except ImportError:
            raise CheckpointError(
                "checkpoints need the package crc32c; get it with: pip install crc32c"
            ) from None
        _function = found
    return _function


_function: Any = None
