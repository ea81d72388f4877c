"""The folder of all checkpoints: ``STORE/NAME/000001``, each version a Zarr group.

Rules of the file: a version is written under a hidden name and gets its own by one rename, after every byte
of it is durable and its manifest written; so whoever sees a version sees all of it, whatever was killed when.
A version replaces the one that its writer saw, and no other. Folders and files may be read by others as far
as the umask lets them, and never be written to.

Writers of one name on several machines are told apart by locks on folders, where the file system has those
between machines; where it has none, as NFS and Lustre, the rename alone decides, and drafts are abandoned
when they are old. Versions that are read are told by a lock on a file as well, which these have (`locks`).
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path

from dask_hpc.checkpoint import passing, versions
from dask_hpc.checkpoint.branch import Past, branch, read_beside
from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.draft import Draft
from dask_hpc.checkpoint.inside import remedy, sync_folder, wrong
from dask_hpc.checkpoint.locks import Lock
from dask_hpc.checkpoint.names import checked_folder, checked_name, checked_version
from dask_hpc.checkpoint.plan import Plan
from dask_hpc.checkpoint.versions import Version, drafts, folder_name, is_whole, numbered, numbers, past
from dask_hpc.clock import epoch_s
from dask_hpc.errors import CheckpointError, CheckpointValueError, UnknownCheckpoint

#: A draft that nobody has locked is abandoned when nothing of it changed for so long.
ABANDONED_S = 3600.0


class Store:
    """A folder with checkpoints by name.

    Parameters
    ----------
    folder
        Made when the first version is written.

    Raises
    ------
    CheckpointValueError
        When it is no path of a folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(checked_folder(folder))

    def __repr__(self) -> str:
        return f"<Store {self.folder}>"

    def problem(self) -> str | None:
        """Why nothing can be written to it, with the remedy; None when something can."""
        probe = self.folder / f".probe-{uuid.uuid4().hex}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(descriptor, b"\0")
            finally:
                os.close(descriptor)
                probe.unlink()
        except OSError as error:
            return (
                f"the store {self.folder} cannot be written to: {wrong(error)}; "
                f"{remedy(error, 'set hpc.checkpoint.store to a folder that can be')}"
            )
        return None

    def begin(self, plan: Plan, after: int = 0) -> Draft:
        """Begin the next version of a checkpoint: its folder, with metadata and reserved space.

        Parameters
        ----------
        after
            Number of a version that is elsewhere: this one comes after it, too.

        Raises
        ------
        CheckpointError
            When the store cannot be written to, is full, or somebody else writes checkpoints of that name.
        CheckpointValueError
            For a name that is not allowed.
        """
        crc32c(b"")  # says now that it is not installed
        folder = self.home(plan.name)
        try:
            return Draft(folder, plan, max(numbers(folder), default=0), after)
        except OSError as error:
            raise self._refused(plan.name, error) from None

    def home(self, name: str) -> Path:
        """The folder of a name; made when there is none.

        Raises
        ------
        CheckpointError
            When it cannot be made, others could write to it, or it is that of another name.
        CheckpointValueError
            For a name that is not allowed.
        """
        folder = self.folder / checked_name(name)
        try:
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True, exist_ok=True)
                sync_folder(str(self.folder.parent))
            with suppress(FileExistsError):
                folder.mkdir(mode=0o755)
            _own(folder)
            versions.check_case(folder)
        except OSError as error:
            raise self._refused(name, error) from None
        return folder

    def path(self, name: str, version: int) -> str:
        """The folder of a whole version of a name."""
        return str(self.folder / name / folder_name(version))

    def _refused(self, name: str, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"{name} cannot be written to {self.folder}: {wrong(error)}; "
            f"{remedy(error, 'set hpc.checkpoint.store to a folder that can be written to')}"
        )

    def versions(self, name: str | None = None) -> list[Version]:
        """What there is: by name, whole versions oldest first, then drafts.

        Raises
        ------
        CheckpointError
            When the store cannot be read.
        """
        names = self.names() if name is None else [checked_name(name)]
        found: list[Version] = []
        for each in names:
            found += sorted(numbered(self.folder, each), key=lambda version: version.version)
            found += sorted(drafts(self.folder, each), key=lambda version: version.created_s)
        return found

    def names(self) -> list[str]:
        """Names of all checkpoints, but for those that their owners let nobody else read."""
        try:
            with os.scandir(self.folder) as entries:
                found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            named = sorted(name for name in found if not name.startswith(".") and _is_name(name))
            mode = os.R_OK | os.X_OK
            return [name for name in named if os.access(self.folder / name, mode) or self._is_ours(name)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(
                f"the store {self.folder} cannot be read: {error.strerror or error}; give the folder that "
                "hpc.checkpoint.store names"
            ) from None

    def newest(self, name: str, version: int | None = None) -> Version:
        """The newest version of a checkpoint, or the one asked for.

        Raises
        ------
        UnknownCheckpoint
            When there is none; the message says which there are.
        CheckpointError
            When its manifest is damaged; the message says which versions are whole.
        """
        chosen = self.find(name, version)
        try:
            chosen.manifest()
        except CheckpointError as error:
            whole = sorted(each.version for each in numbered(self.folder, name) if each.complete)
            there = f"whole are versions {', '.join(map(str, whole))}" if whole else "none is whole"
            raise CheckpointError(f"{error} ({there})") from None
        return chosen

    def find(self, name: str, version: int | None = None) -> Version:
        """As `newest`, whatever its manifest says: for who wants to know what is wrong with it.

        Raises
        ------
        UnknownCheckpoint
            When there is none; the message says which there are. `UnseenStoreError`: nor is the folder.
        CheckpointValueError
            For a name or version that is none.
        """
        version = checked_version(version)
        found = {each.version: each for each in numbered(self.folder, checked_name(name))}
        if not found:
            names = [each for each in self.names() if any(numbered(self.folder, each))]
            raise versions.unknown(self.folder, name, names)
        if version is not None and version not in found:
            raise UnknownCheckpoint(
                f"{name!r} has no version {version} in {self.folder}; there are "
                f"{', '.join(map(str, sorted(found)))}"
            )
        return found[max(found) if version is None else version]

    def collect(
        self,
        keep: int = 2,
        spare: Collection[str] = (),
        older_than_s: float = ABANDONED_S,
        *,
        name: str | None = None,
        dry_run: bool = False,
    ) -> list[str]:
        """Remove all but the newest whole versions of each name and those that a cluster reads, abandoned
        drafts, and what schedulers that were killed have left. What other users have stays.

        Parameters
        ----------
        keep
            So many whole versions of each name stay, the newest and those that it goes on from, and damaged
            ones that are newer; at least 1.
        spare
            Paths that stay whatever their age: of versions that are being read.
        older_than_s
            Drafts that nobody writes, and folders of schedulers that nobody uses, are abandoned when they did
            not change for so long.
        name
            Only of this name; None: of all.
        dry_run
            Only say what would be removed.

        Returns
        -------
        list
            Paths that were removed.

        Raises
        ------
        CheckpointValueError
            When `keep` is less than 1.
        CheckpointError
            When something cannot be removed.
        """
        if keep < 1:
            raise CheckpointValueError(
                f"keep is {keep}; allowed: 1 and more, for a checkpoint that nobody has is none"
            )
        # one store may have several names
        spared = {os.path.realpath(path) for path in spare}
        removed = []
        names = filter(self._is_ours, self.names()) if name is None else [checked_name(name)]
        for each_name in names:
            home = self.folder / each_name
            old = _older(home, keep)
            left = [
                each.path for each in drafts(self.folder, each_name) if _abandoned(each.path, older_than_s)
            ]
            paths = [path for path in [*old, *left] if os.path.realpath(path) not in spared]
            removed += [path for path in paths if (not _is_read(path) if dry_run else _remove(path))]
        for path in passing.in_store(self.folder) if name is None else ():
            if _abandoned(path, older_than_s):
                if not dry_run:
                    _remove(path)
                removed.append(path)
        return removed

    def _is_ours(self, name: str) -> bool:
        with suppress(FileNotFoundError):
            return os.lstat(self.folder / name).st_uid == os.geteuid()
        return False  # it has gone

    def discard(self, paths: Iterable[str], spare: Collection[str] = ()) -> None:
        """Remove what `collect` has named, but for `spare`, and what is read by now.

        Raises CheckpointError when that cannot be.
        """
        spared = {os.path.realpath(path) for path in spare}
        for path in paths:
            if os.path.realpath(path) not in spared:
                _remove(path)

    def remove(self, name: str, newest: int) -> None:
        """Remove versions up to a number, oldest first, but for those that a cluster reads.

        Raises CheckpointError when that cannot be.
        """
        for number in numbers(self.folder / checked_name(name)):
            if number <= newest:
                _remove(self.path(name, number))


def _is_name(name: str) -> bool:
    try:
        return bool(checked_name(name))
    except ValueError:
        return False


def _own(folder: Path) -> None:
    found = os.lstat(folder)
    if not os.path.isdir(folder) or os.path.islink(folder):
        raise CheckpointError(f"{folder} is no folder; take another name for the checkpoint, or remove it")
    if found.st_uid != os.geteuid():
        raise CheckpointError(
            f"{folder} belongs to another user (id {found.st_uid}); take another name for the checkpoint, or "
            "another store"
        )
    if found.st_mode & 0o022:
        raise CheckpointError(
            f"{folder} can be written to by others than you; chmod go-w {folder}, or take another name for "
            "the checkpoint"
        )


def _older(home: Path, keep: int) -> list[str]:
    """Versions that so many whole ones of their name do without, oldest first: older ones, and those of a
    branch that was left.
    """
    found = {number: str(home / folder_name(number)) for number in numbers(home)}
    if len(found) <= keep:
        return []

    @cache
    def before(number: int) -> Past | None:
        try:
            return past(found[number], home.name, number)
        except CheckpointError:
            return read_beside(found[number], number)

    known = (number for number in sorted(found, reverse=True) if before(number) is not None)
    line = branch(known, lambda number: before(number) or Past())
    kept = list(islice((number for number in line if is_whole(found[number], home.name, number)), keep))
    if len(kept) < keep:
        return []
    left = {number for number in range(kept[-1], kept[0]) if number in found} - set(kept)
    left = {number for number in left if is_whole(found[number], home.name, number)}
    return [path for number, path in sorted(found.items()) if number < kept[-1] or number in left]


def _abandoned(path: str, older_than_s: float) -> bool:
    """Whether nobody uses a draft, or a folder of a scheduler, any more."""
    try:
        lock = Lock.attempt(path)
        if lock is None:
            return False
        lock.release()
        newest_s = os.lstat(path).st_mtime
        for top, _, files in os.walk(path):
            newest_s = max([newest_s, *(os.lstat(os.path.join(top, file)).st_mtime for file in files)])
    except FileNotFoundError:
        return False  # finished, or removed by another
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror or error}; remove it by hand"
        ) from None
    return epoch_s() - newest_s >= older_than_s


def _is_read(path: str) -> bool:
    """Whether tasks of a cluster read a version, which its scheduler has locked then."""
    lock = _attempt(path)
    if lock is not None:
        lock.release()
    return lock is None


def _attempt(path: str) -> Lock | None:
    try:
        return Lock.attempt(path)
    except FileNotFoundError:
        return Lock()  # by another collector
    except OSError:
        return None  # nobody can tell who reads it


def _remove(path: str) -> bool:
    """Remove a folder; gives whether it has. A version that is read stays."""
    try:
        folder, name = os.path.split(path)
        if not name.startswith("."):
            lock = _attempt(path)
            if lock is None:
                return False
            hidden = os.path.join(folder, f".{name}-{uuid.uuid4().hex}")
            with lock:
                # in one step no version any more, whatever happens to the removing
                os.rename(path, hidden)
            path = hidden
        shutil.rmtree(path)
    except FileNotFoundError:
        pass  # by another collector
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be removed: {error.strerror or error}; remove it by hand"
        ) from None
    return True
