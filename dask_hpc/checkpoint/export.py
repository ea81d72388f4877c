"""A copy of a version, checked on the way: what a user takes elsewhere, or makes their own."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from dask_hpc.checkpoint import manifest, metadata
from dask_hpc.checkpoint.blocks import block_file
from dask_hpc.checkpoint.inside import copy_inside, sync_folder, sync_folders
from dask_hpc.checkpoint.manifest import Manifest
from dask_hpc.checkpoint.verify import verify
from dask_hpc.checkpoint.versions import Version
from dask_hpc.errors import CheckpointError


def export(
    version: Version, path: str | os.PathLike[str], show: Callable[[int, int], None] | None = None
) -> None:
    """Copy a version to a folder, which is there when all of it is and was found to be what was written.

    Parameters
    ----------
    path
        Where nothing is yet.
    show
        Called with the number of files that were copied and that of all.

    Raises
    ------
    CheckpointError
        When there is something at `path`, the version is damaged, or the copy cannot be written; nothing is
        left of it then.
    """
    target = Path(os.path.abspath(path))
    if os.path.lexists(target):
        raise CheckpointError(f"{target} exists; give a path where nothing is")
    found = version.manifest()
    part = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
    try:
        os.makedirs(part)
        paths = sorted(set(_paths(found)))
        for count, each in enumerate(paths, start=1):
            copy_inside(version.path, str(part), each)
            if show is not None:
                show(count, len(paths))
        sync_folders(str(part))
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
            f"({error.filename or version.path}); free some space there, or give another path"
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


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
