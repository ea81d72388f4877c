"""A version that is being written: begun, filled by any number of writers, finished or abandoned."""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from dask_hpc.checkpoint import branch, late, layout, manifest, metadata
from dask_hpc.checkpoint.blocks import check_written
from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.inside import (
    link_inside,
    open_inside,
    remedy,
    rename,
    sync_folder,
    sync_folders,
    write_all,
    write_inside,
)
from dask_hpc.checkpoint.locks import Lock
from dask_hpc.checkpoint.manifest import Manifest
from dask_hpc.checkpoint.metadata import DOCUMENT
from dask_hpc.checkpoint.names import is_sealed
from dask_hpc.checkpoint.plan import Array, Plan, Written
from dask_hpc.checkpoint.sealing import read_key
from dask_hpc.checkpoint.services import most_bytes, sealed_files, slot
from dask_hpc.checkpoint.versions import Version, folder_name, numbers, wrote
from dask_hpc.clock import epoch_s
from dask_hpc.errors import CheckpointError

#: How often a draft is removed into which somebody writes.
_TRIES = 5


class Draft:
    """The next version of a checkpoint while it is written; made by `Store.begin`.

    Attributes
    ----------
    path
        Its folder: what `write_blocks` takes.
    plan
        What it is made of.
    version
        The number that it gets.
    target
        The folder that it gets once it is whole.
    given_up
        Whether nobody waits for it any more: then it gets no name, also when it is being finished.
    """

    given_up = False

    def __init__(self, folder: Path, plan: Plan, newest: int, after: int = 0) -> None:
        self._key = None if plan.sealed is None else read_key()
        self.plan = plan if self._key is None else sealed_files(plan, self._key)
        self.version = max(newest, after) + 1
        self._folder = folder
        self.target = str(folder / folder_name(self.version))
        self._newest = newest
        self._lock: Lock | None
        self.path, self._lock = self._begun()
        #: Folders that it was in before, and that go with it.
        self._left: list[tuple[str, Lock]] = []
        #: Whoever ends it does so alone: what is being finished by another thread is not abandoned under it.
        self._ending = threading.Lock()
        try:
            self._fill()
        except BaseException:
            self.abandon()
            raise

    def __repr__(self) -> str:
        return f"<Draft of version {self.version} of {self.plan.name} in {self.path}>"

    def finish(
        self,
        written: Mapping[int, Written],
        *,
        levels: tuple[str, ...] = ("L3",),
        unheard: Collection[int] = (),
    ) -> Version:
        """Make the version whole and give it its name.

        Parameters
        ----------
        written
            What is known of each block, by its number over all arrays of the plan in order.
        levels
            Where copies of it are.
        unheard
            Blocks that somebody who has not answered may be writing as well: files with such are copied, so
            that this comes too late.

        Raises
        ------
        CheckpointError
            When a block is missing, cannot be of this plan, the store cannot be written to, or another writer
            has finished a version of this name meanwhile, or written a block of `unheard`. The draft stays;
            abandon it.
        """
        with self._ending:
            return self._finish(written, levels, unheard)

    def _finish(
        self, written: Mapping[int, Written], levels: tuple[str, ...], unheard: Collection[int]
    ) -> Version:
        if self._lock is None:
            raise CheckpointError(f"{self.path} was finished or abandoned before; begin a new version")
        ordered = self._ordered(written)
        try:
            if found_late := late.late_in(self.plan, unheard):
                # the folder of before stays until there is the version: results are read from it
                before, begun = (self.path, self._lock), self._begun()
                self._left.append(before)
                self.path, self._lock = begun
                late.move(before[0], self.path, found_late, ordered)
            self._end_shards(ordered)
            self._drop_packs(ordered)
            found = self._manifest(ordered, tuple(levels))
            if (past := branch.beside(found)) is not None:
                write_inside(self.path, branch.FILE, past)
            sync_folders(self.path)
            # before that nothing is a version, after that all of it is
            self._write_manifest(found)
            with Lock.take(self._folder):
                self._check_wanted()
                self._check_newest()
                self._rename(Path(self.target))
        except OSError as error:
            raise CheckpointError(
                f"version {self.version} of {self.plan.name} cannot be finished in {self._folder}: "
                f"{error.strerror or error}; "
                f"{remedy(error, 'set hpc.checkpoint.store to another folder')}"
            ) from None
        self._lock.release()
        self._lock = None
        self._remove_left()
        return Version(
            self.plan.name, self.version, self.target, True, found.bytes, found.created_s, found.levels
        )

    def link(self, packs: Iterable[tuple[str, str, str]]) -> None:
        """Have packs of other versions in this one too: the same files, or copies.

        The files of a version are never written again.

        Parameters
        ----------
        packs
            Folder of the version, path of the array there and here, name of the pack.

        Raises
        ------
        CheckpointError
            When one of them is not there any more, nothing can be written, or both are encrypted, and with
            another key each: no key would open this one.
        """
        found = set(packs)
        if self._key is not None:
            for folder in {folder for folder, _, pack in found if is_sealed(pack)}:
                manifest.check_signed(folder, manifest.read(folder))
        for folder, path, pack in found:
            try:
                for name in ("0", DOCUMENT):
                    link_inside(folder, self.path, f"{path}/{pack}/{name}")
            except OSError as error:
                raise CheckpointError(
                    f"results that {folder} has cannot be had in version {self.version} of "
                    f"{self.plan.name}: {error.strerror or error}"
                ) from None

    def abandon(self) -> None:
        """Remove the draft; does nothing when it was finished. Whoever still writes there finds no folder."""
        with self._ending:
            if self._lock is not None:
                self._left.append((self.path, self._lock))
                self._lock = None
                self._remove_left()

    def _begun(self) -> tuple[str, Lock]:
        """A new folder that is no version yet, which is locked."""
        path = self._name()
        os.mkdir(path, 0o755)
        return path, Lock.take(path)

    def _name(self) -> str:
        return str(self._folder / f".{folder_name(self.version)}-{uuid.uuid4().hex}")

    def _remove_left(self) -> None:
        while self._left:
            path, lock = self._left.pop()
            self._remove(path)
            lock.release()

    def _remove(self, old: str) -> None:
        path = self._name()
        try:
            os.rename(old, path)
        except OSError:
            path = old
        for _ in range(_TRIES):
            # who had opened a folder by then may put a file there once it was found to be empty
            shutil.rmtree(path, ignore_errors=True)
            if not os.path.lexists(path):
                return

    def _fill(self) -> None:
        for path, content in self.plan.files.items():
            write_inside(self.path, path, content)
        if one := {path.partition("/")[0] for path in self.plan.files}.difference(os.listdir(self.path)):
            raise CheckpointError(
                f"{min(one)!r} cannot be beside what is called so but for capitals: the file system of "
                f"{self._folder} knows no case; give one of them another name"
            )
        for array in self.plan.arrays:
            if array.kind != "shard":
                os.makedirs(os.path.join(self.path, array.path), 0o755, exist_ok=True)
                continue
            if not most_bytes(array):
                continue
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            descriptor = open_inside(self.path, metadata.shard_path(array), flags, make=True)
            try:
                if not array.compressed:
                    # a full file system says so now, and not when a writer is half through
                    os.posix_fallocate(descriptor, 0, layout.shard_bytes(array.count, slot(array)))
            finally:
                os.close(descriptor)

    def _ordered(self, written: Mapping[int, Written]) -> list[Written]:
        missing = [number for number in range(self.plan.count) if number not in written]
        if missing or len(written) != self.plan.count:
            told = ", ".join(map(str, missing[:5])) or "none"
            raise CheckpointError(
                f"version {self.version} of {self.plan.name} is not whole: of its {self.plan.count} blocks "
                f"{len(missing)} were not written (first: {told}), and {len(written)} are told of; write "
                "them, "
                "or abandon it"
            )
        first = 0
        for array in self.plan.arrays:
            for number in range(array.count):
                try:
                    check_written(array, number, written[first + number])
                except ValueError as error:
                    raise CheckpointError(f"{error}; write it again, or abandon the version") from None
            first += array.count
        return [written[number] for number in range(self.plan.count)]

    def _end_shards(self, ordered: list[Written]) -> None:
        first = 0
        for array in self.plan.arrays:
            lengths = [block.nbytes for block in ordered[first : first + array.count]]
            first += array.count
            if array.kind != "shard" or not most_bytes(array):
                continue
            descriptor = open_inside(self.path, metadata.shard_path(array), os.O_WRONLY)
            try:
                step = slot(array)
                os.lseek(descriptor, array.count * step, os.SEEK_SET)
                write_all(descriptor, layout.index(step, lengths))
                os.ftruncate(descriptor, layout.shard_bytes(array.count, step))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _drop_packs(self, ordered: list[Written]) -> None:
        """Remove packs of workers whose answers were never heard."""
        there = {block.pack for block in ordered if block.pack is not None}
        for array in self.plan.arrays:
            if array.kind == "opaque":
                folder = os.path.join(self.path, array.path)
                for name in os.listdir(folder):
                    if name not in there and os.path.isdir(os.path.join(folder, name)):
                        shutil.rmtree(os.path.join(folder, name))

    def _manifest(self, ordered: list[Written], levels: tuple[str, ...]) -> Manifest:
        files = {path: (len(content), crc32c(content)) for path, content in self.plan.files.items()}
        digests = {str(n): block.digest for n, block in enumerate(ordered) if block.digest is not None}
        return Manifest(
            plan=self.plan,
            version=self.version,
            created_s=epoch_s(),
            levels=levels,
            files=files,
            blocks=tuple((block.offset, block.nbytes, block.crc32c) for block in ordered),
            digests=digests,
            packs={str(n): block.pack for n, block in enumerate(ordered) if block.pack is not None},
            bytes=sum(length for length, _ in files.values()) + _bytes(self.path, self.plan.arrays, ordered),
        )

    def _write_manifest(self, found: Manifest) -> None:
        write_inside(self.path, f".{manifest.FILE}", manifest.dump(found, self._key))
        rename(os.path.join(self.path, f".{manifest.FILE}"), os.path.join(self.path, manifest.FILE))
        sync_folder(self.path)
        wrote(self.path, found)

    def _rename(self, target: Path) -> None:
        """Give the version its name, durably, or not at all."""
        try:
            rename(self.path, str(target))
        except OSError:
            # without locks another writer may have had it meanwhile
            self._check_newest()
            raise
        try:
            sync_folder(str(self._folder))
            sync_folder(str(self._folder.parent))
            self._check_wanted()
        except (OSError, CheckpointError):
            # its writer is told that there is none
            rename(str(target), self.path)
            raise

    def _check_wanted(self) -> None:
        if self.given_up:
            raise CheckpointError(f"version {self.version} of {self.plan.name} was given up")

    def _check_newest(self) -> None:
        newest = max(numbers(self._folder), default=0)
        if newest < self._newest:
            raise CheckpointError(
                f"version {self._newest} of {self.plan.name} was removed while the next one was written; "
                "write again"
            )
        if newest != self._newest:
            raise CheckpointError(
                f"version {newest} of {self.plan.name} was finished by another writer while this one was "
                f"written, which knows of {self._newest or 'none'}; abandon it and write again, or let each "
                "writer have a name of its own"
            )


def _bytes(folder: str, arrays: tuple[Array, ...], ordered: list[Written]) -> int:
    """Bytes of the files of all blocks, without holes."""
    total = first = 0
    for array in arrays:
        blocks = ordered[first : first + array.count]
        first += array.count
        if array.kind == "shard":
            if most_bytes(array):
                total += sum(layout.slot_bytes(block.nbytes) for block in blocks)
                total += layout.index_bytes(array.count)
        elif array.kind == "opaque":
            for pack in {block.pack for block in blocks if block.pack is not None}:
                for path in (
                    metadata.pack_path(array, pack),
                    f"{metadata.pack_folder(array, pack)}/{DOCUMENT}",
                ):
                    total += os.stat(os.path.join(folder, path)).st_size
        else:
            total += sum(
                block.nbytes
                + layout.CHECKSUM * bool(block.nbytes)
                + (len(metadata.block(array, number, block)) if array.kind != "grid" else 0)
                for number, block in enumerate(blocks)
            )
    return total
