"""A file of settings that is watched while a cluster runs: what it asks for.

Rules of the file: it is YAML with the layout of ``hpc.yaml``, and data alone: nothing in it is evaluated, and
what repeats itself by aliases, however short it is written, is refused, as is a key that is given twice.
"""

from __future__ import annotations

import os
import stat
from typing import Any

import yaml

from dask_hpc.config.rows import find
from dask_hpc.config.values import leaves
from dask_hpc.errors import ConfigError
from dask_hpc_policies.params import shown
from dask_hpc_policies.registry import UniqueKeys

#: Longer files are not read; with all settings and their comments they have a quarter of it.
MOST_BYTES = 1 << 16
#: One that could not be taken is tried again after so many seconds, though it is the same.
AGAIN_S = 10.0
#: So deep may it be; settings need four.
_DEEPEST = 10
_TOO_DEEP = f"allowed are {_DEEPEST} lists and mappings in each other"
#: What tells whether a file is another one than when it was read: time of change, length, number.
Mark = tuple[int, int, int]
#: libyaml's where PyYAML was built with it: a long schedule is read far faster.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Plain(UniqueKeys, _LOADER):  # type: ignore[misc]
    """One for which the last of two values of a key does not hold unsaid."""


def mark(path: str) -> Mark | None:
    """The mark of a file; None: it is not there, or cannot be looked at."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # no file can have such a name
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_changes(path: str) -> dict[str, Any]:
    """The settings that a file names, by key.

    Raises
    ------
    ConfigError
        When it cannot be read, is too long, is no YAML of settings, or names one that there is not.
    """
    try:
        # a pipe would have the reader wait for ever
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError("it is no file")
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"it cannot be read: {error.strerror or error}") from None
    if len(raw) > MOST_BYTES:
        raise ConfigError(f"it is longer than {MOST_BYTES} bytes")
    try:
        found = plain(raw.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"it is no UTF-8 text: {error.reason} at byte {error.start}") from None
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not isinstance(found, dict) or set(found) != {"hpc"} or not isinstance(found["hpc"], dict | None):
        raise ConfigError(f"it holds {shown(found)}; allowed: a mapping of settings below hpc")
    changes = dict(leaves(found["hpc"] or {}))
    for name in changes:
        find(name)
    return changes


def plain(text: str) -> Any:
    """What a YAML text says that is data alone: no tags that make objects, no aliases, not too deep.

    Raises
    ------
    ValueError
        For any other text; the message is one line.
    """
    try:
        _check_plain(text)
        loader = _Plain(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError) as error:
        # libyaml 0.2.6 looks ahead, and has a bound of its own
        said = _TOO_DEEP if "nesting depth" in str(error) else " ".join(str(error).split())
        raise ValueError(f"it is no YAML that is taken: {said:.200}") from None


def _check_plain(text: str) -> None:
    """Raise YAMLError for aliases, and for what takes long because it is too deep."""
    depth = 0
    for event in yaml.parse(text, _LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        if depth > _DEEPEST:
            raise yaml.YAMLError(_TOO_DEEP)
