"""Versions as folders: which there are, and what each says of itself."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dask_hpc.checkpoint import manifest as manifests
from dask_hpc.checkpoint.branch import Past, past_of
from dask_hpc.checkpoint.manifest import Manifest
from dask_hpc.errors import CheckpointError, UnknownCheckpoint

logger = logging.getLogger(__name__)

_WHOLE = re.compile(r"[0-9]{6,18}", re.ASCII)
#: Manifests that are known to be as they were written, by name, number and file, with what is before each
#: version (`branch.past_of`); how many are remembered.
_known: dict[tuple[str, int, tuple[int, ...]], Past] = {}
_MOST_KNOWN = 1000
_DRAFT = re.compile(r"\.([0-9]{6,18})-[0-9a-f]{32}", re.ASCII)


class UnseenStoreError(UnknownCheckpoint):
    """This host has not the folder of a store: others may see it, and what is in it."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a checkpoint, or what was begun of one."""

    name: str
    version: int
    path: str
    #: False: a draft, or one whose manifest is damaged.
    complete: bool
    #: Of all files, as its manifest has it; of a draft, what is there.
    bytes: int
    created_s: float
    levels: tuple[str, ...]

    def manifest(self) -> Manifest:
        """What it holds.

        Raises
        ------
        CheckpointError
            When its manifest is not what was written, or that of another checkpoint.
        """
        found = manifests.read(self.path)
        if (found.plan.name, found.version) != (self.name, self.version):
            raise CheckpointError(
                f"{self.path} holds version {found.version} of {found.plan.name!r}; move it back, or open "
                "it by "
                "its path"
            )
        return found


def unknown(store: Path, name: str, names: Sequence[str]) -> UnknownCheckpoint:
    """What to raise when there is no version of a name; `names`: those of which there are some."""
    if not store.is_dir():
        return UnseenStoreError(
            f"no checkpoint is called {name!r} in {store}: this host has no such folder; mount it here by "
            "the same path, or give another store"
        )
    there = ", ".join(names[:20]) or "none"
    return UnknownCheckpoint(f"no checkpoint is called {name!r} in {store}; there are {there}")


def check_case(folder: Path) -> None:
    """Raise CheckpointError where a file system that knows no case gives another name's folder for it."""
    with suppress(PermissionError):  # nobody can tell
        alike = [each for each in os.listdir(folder.parent) if each.lower() == folder.name.lower()]
        if folder.name in alike or not alike:
            return
        raise CheckpointError(
            f"{folder} is that of checkpoint {alike[0]!r}: its file system knows no case; take a name that "
            "differs by more than capitals"
        )


def look_for(store: Path, name: str, written: int) -> None:
    """Log it when the version of a name that was written to a store last is not there; 0: none was."""
    if written > max(numbers(store / name), default=0):
        logger.warning(
            "Version %d of %s is not in %s any more, and the next one is written all the same: was it "
            "removed, or is this the folder below a mount that has gone?",
            written,
            name,
            store,
        )


def is_whole(path: str, name: str, version: int) -> bool:
    """Whether the manifest in a folder is that of a version, as it was written.

    It is read once, for it may be large.
    """
    try:
        past(path, name, version)
    except CheckpointError:
        return False
    return True


def past(path: str, name: str, version: int) -> Past:
    """What is before the version in a folder, as `branch.past_of`.

    Raises
    ------
    CheckpointError
        When its manifest is not what was written.
    """
    file = _file(path)
    if file is not None and (name, version, file) in _known:
        return _known[name, version, file]
    found = past_of(Version(name, version, path, False, 0, 0.0, ()).manifest())
    _know(name, version, file, found)
    return found


def wrote(path: str, manifest: Manifest) -> None:
    """The manifest in a folder has just been written."""
    _know(manifest.plan.name, manifest.version, _file(path), past_of(manifest))


def _know(name: str, version: int, file: tuple[int, ...] | None, found: Past) -> None:
    if file is not None:
        _known[name, version, file] = found
        while len(_known) > _MOST_KNOWN:
            del _known[next(iter(_known))]


def _file(path: str) -> tuple[int, ...] | None:
    try:
        found = os.lstat(os.path.join(path, manifests.FILE))
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def folder_name(version: int) -> str:
    """Name of the folder of a whole version."""
    return f"{version:06d}"


def is_folder_name(name: str) -> bool:
    """Whether the folder of a whole version may be called so."""
    return _WHOLE.fullmatch(name) is not None


def numbered(store: Path, name: str) -> list[Version]:
    """Versions that were finished, in no order."""
    found = []
    for path in _folders(store / name):
        if not _WHOLE.fullmatch(os.path.basename(path)):
            continue
        version = Version(name, int(os.path.basename(path)), path, False, 0, 0.0, ())
        try:
            manifest = version.manifest()
        except CheckpointError:
            found.append(_measured(version))
            continue
        found.append(
            Version(
                name,
                version.version,
                path,
                True,
                manifest.bytes,
                manifest.created_s,
                manifest.levels,
            )
        )
    return found


def numbers(folder: Path) -> list[int]:
    """Numbers of the versions that were finished below the folder of a name, rising."""
    names = [os.path.basename(path) for path in _folders(folder)]
    return sorted(int(name) for name in names if _WHOLE.fullmatch(name))


def drafts(store: Path, name: str) -> list[Version]:
    """What was begun and not finished, in no order."""
    return [
        _measured(Version(name, int(matched[1]), path, False, 0, 0.0, ()))
        for path in _folders(store / name)
        if (matched := _DRAFT.fullmatch(os.path.basename(path)))
    ]


def _measured(version: Version) -> Version:
    """A version whose manifest says nothing, with what its files say."""
    total, newest_s = 0, 0.0
    for top, _, files in os.walk(version.path):
        for file in files:
            try:
                status = os.lstat(os.path.join(top, file))
            except FileNotFoundError:
                continue
            # reserved space counts too
            total += max(status.st_size, 0)
            newest_s = max(newest_s, status.st_mtime)
    return Version(version.name, version.version, version.path, False, total, newest_s, ())


def _folders(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be read: {error.strerror or error}; look at its permissions and at its mount"
        ) from None
