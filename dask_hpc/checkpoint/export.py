"""A copy of a version, checked on the way: what a user takes elsewhere, or makes their own."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from dask_hpc.checkpoint import branch, manifest, metadata
from dask_hpc.checkpoint.blocks import block_file, stored_payload, write_block
from dask_hpc.checkpoint.draft import Draft
from dask_hpc.checkpoint.inside import copy_inside, read_inside, remedy, sync_folder, sync_folders
from dask_hpc.checkpoint.locks import kept
from dask_hpc.checkpoint.manifest import Manifest
from dask_hpc.checkpoint.plan import Written
from dask_hpc.checkpoint.services import unsealed
from dask_hpc.checkpoint.verify import verify
from dask_hpc.checkpoint.versions import Version, is_folder_name, numbers
from dask_hpc.errors import CheckpointError


def export(
    version: Version,
    path: str | os.PathLike[str],
    show: Callable[[int, int], None] | None = None,
    *,
    key: bytes | None = None,
) -> None:
    """Copy a version to a folder, which is there when all of it is and was found to be what was written.

    Parameters
    ----------
    path
        Where nothing is yet.
    show
        Called with the number of files, or blocks, that were copied and that of all.
    key
        Of an encrypted version, whose copy is not; None: it is copied as it is.

    Raises
    ------
    CheckpointError
        When there is something at `path`, the version is damaged, or the copy cannot be written; nothing is
        left of it then.
    """
    target = Path(os.path.abspath(path))
    if os.path.lexists(target):
        raise CheckpointError(f"{target} exists; give a path where nothing is")
    store, real = Path(os.path.realpath(version.path)).parents[1], Path(os.path.realpath(target))
    if store in real.parents[1:]:
        name = real.relative_to(store).parts[0]
        if is_folder_name(real.name) or numbers(store / name):
            raise CheckpointError(
                f"{target} is in the folder of {name} in the store, and would be taken for one of its "
                "versions, or go with one; give a path elsewhere"
            )
    with kept(version.path):
        _export(version, target, show, key)


def _export(
    version: Version, target: Path, show: Callable[[int, int], None] | None, key: bytes | None
) -> None:
    found = version.manifest()
    part = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
    try:
        os.makedirs(part)
        if key is not None:
            _decrypt(version, found, part, key, show)
        else:
            _copy(version, found, part, show)
        if problems := verify(replace(version, path=str(part))):
            raise CheckpointError(
                f"{version.path} is damaged: {problems[0].path}: {problems[0].text}; export another version"
            )
        # a rename would take the place of an empty folder that somebody made meanwhile
        if os.path.lexists(target):
            raise CheckpointError(f"{target} exists; give a path where nothing is")
        os.rename(part, target)
        sync_folder(str(target.parent))
    except OSError as error:
        raise CheckpointError(
            f"{version.path} cannot be copied to {target}: {error.strerror or error} "
            f"({error.filename or version.path}); {remedy(error, 'give another path')}"
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _copy(version: Version, found: Manifest, part: Path, show: Callable[[int, int], None] | None) -> None:
    paths = sorted(set(_paths(found)))
    if os.path.lexists(os.path.join(version.path, branch.FILE)):
        paths.append(branch.FILE)
    for count, each in enumerate(paths, start=1):
        copy_inside(version.path, str(part), each)
        if show is not None:
            show(count, len(paths))
    sync_folders(str(part))


def _decrypt(
    version: Version, found: Manifest, part: Path, key: bytes, show: Callable[[int, int], None] | None
) -> None:
    """Write a version anew, block by block, as one that is not encrypted."""
    try:
        contents = {path: read_inside(version.path, path) for path in found.files}
        draft = Draft(part, unsealed(found.plan, contents, key), 0, found.version - 1)
        blocks: dict[int, Written] = {}
        for array, plain in zip(found.plan.arrays, draft.plan.arrays, strict=True):
            for number in range(array.count):
                payload = stored_payload(version.path, array, number, found.written(len(blocks)), key)
                blocks[len(blocks)] = write_block(draft.path, plain, number, payload)
                if show is not None:
                    show(len(blocks), found.plan.count)
        whole = draft.finish(blocks, levels=found.levels)
    except ValueError as error:
        raise CheckpointError(f"{version.path} is damaged: {error}; export another version") from None
    for name in os.listdir(whole.path):
        os.rename(os.path.join(whole.path, name), part / name)
    os.rmdir(whole.path)
    sync_folder(str(part))


def _paths(found: Manifest) -> Iterator[str]:
    """Paths of all files of a version."""
    yield manifest.FILE
    yield from found.files
    first = 0
    for array in found.plan.arrays:
        for number in range(array.count):
            written = found.written(first + number)
            if written.nbytes:
                yield block_file(array, number, written)
            if array.kind == "apart":
                yield f"{metadata.block_folder(array, number)}/{metadata.DOCUMENT}"
            elif written.pack is not None:
                yield f"{metadata.pack_folder(array, written.pack)}/{metadata.DOCUMENT}"
        first += array.count
