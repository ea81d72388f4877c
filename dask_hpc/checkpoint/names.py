"""Names of checkpoints and of the variables in them, which become names of folders."""

from __future__ import annotations

import os
import re
import uuid
from typing import Any

from dask_hpc.errors import CheckpointValueError
from dask_hpc_policies import numeric

#: Not first a dot, which hides, or a hyphen, which a command takes for an option.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)

#: Of a pack; drawn, so that no two writers have one.
_PACK = re.compile("[0-9a-f]{32}(-c|-e|-ce)?")


def pack_name(compressed: bool, sealed: bool) -> str:
    """A name for a pack, which says what was done to what is in it: later versions link it."""
    return uuid.uuid4().hex + "-" * (compressed or sealed) + "c" * compressed + "e" * sealed


def is_compressed(pack: str) -> bool:
    """Whether what is in a pack was compressed."""
    return "c" in pack[32:]


def is_sealed(pack: str) -> bool:
    """Whether what is in a pack is encrypted."""
    return "e" in pack[32:]


def pack_place(pack: str, offset: int) -> str | None:
    """What a block of a pack is encrypted for; None: it is not."""
    return f"{pack}/{offset}" if is_sealed(pack) else None


def is_pack(name: str) -> bool:
    """Whether a pack may be called so."""
    return _PACK.fullmatch(name) is not None


def checked_name(name: Any) -> str:
    """The name of a checkpoint.

    Raises
    ------
    CheckpointValueError
        When it is none.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise CheckpointValueError(
            f"{name!r:.200} is no name for a checkpoint; allowed: 1 to 100 of A-Z, a-z, 0-9, dot, underscore "
            "and hyphen, the first neither dot nor hyphen"
        )
    return name


def checked_folder(store: Any) -> str:
    """The folder of a store, as an absolute path.

    Raises
    ------
    CheckpointValueError
        When it is no path of a folder.
    """
    return checked_path("store", store, "the path of a folder, or None for hpc.checkpoint.store")


def checked_path(what: str, value: Any, allowed: str) -> str:
    """A path that was given as `what`, as an absolute one; ``~`` is a home, not a folder of that name.

    Raises
    ------
    CheckpointValueError
        When it is none; the message says what is `allowed`.
    """
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    # the path of nothing is the working directory, and a URL would be a folder there
    if not isinstance(path, str) or not path or "\0" in path or "://" in path:
        raise CheckpointValueError(f"{what} is {value!r:.200}; allowed: {allowed}")
    path = os.path.expanduser(path)
    if path.startswith("~"):
        raise CheckpointValueError(
            f"{what} is {value!r:.200}, and there is no such user here; allowed: {allowed} (./~ for a folder "
            "whose name begins so)"
        )
    return os.path.abspath(path)


def checked_key_file(key_file: Any) -> str | None:
    """The path of the file with a key, as an absolute one; None: what is configured.

    Raises
    ------
    CheckpointValueError
        When it is no path.
    """
    allowed = "the path of a file with a key, or None for hpc.checkpoint.key-file"
    return None if key_file is None else checked_path("key_file", key_file, allowed)


def checked_version(version: Any) -> int | None:
    """The number of a version that is asked for; None: the newest.

    Raises
    ------
    CheckpointValueError
        When it is no whole number, or less than 1.
    """
    number = numeric.whole(version)
    if version is None or (number is not None and number > 0):
        return number
    allowed = "a whole number, 1 or more, or None for the newest"
    raise CheckpointValueError(f"version is {version!r:.80}; allowed: {allowed}")


def checked_variable(name: Any, taken: set[str]) -> str:
    """The path of a variable in the group of a version, which readers take for its name.

    Raises
    ------
    CheckpointValueError
        When the name cannot be the name of a folder, or one of `taken` has it.
    """
    wrong = (
        not isinstance(name, str)
        or name in ("", ".", "..")
        or any(c in "/\0" or not c.isprintable() for c in name)
        or len(name.encode("utf-8", "replace")) > 200
        or name in taken
    )
    if wrong:
        raise CheckpointValueError(
            f"the variable {name!r:.200} cannot be a folder of a checkpoint; allowed: text of at most 200 "
            "bytes "
            f"without / and control characters, and none of {', '.join(sorted(taken))}. Give it another name "
            "with rename"
        )
    return str(name)
