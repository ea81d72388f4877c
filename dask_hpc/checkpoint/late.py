"""Writers that have not answered: whoever hangs in a file system writes what it has when that goes on.

By then others have written its blocks, perhaps with other bytes: those of an encrypted block are other ones
each time, and a result that was made again need not be the same. So a version is in no file that such a
writer may have open, or can open by its name.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from dask_hpc.checkpoint import metadata
from dask_hpc.checkpoint.blocks import block_file, checked_bytes
from dask_hpc.checkpoint.inside import copy_inside, link_inside, write_inside
from dask_hpc.checkpoint.plan import Array, Plan, Written
from dask_hpc.errors import CheckpointError

#: An array, the number of its first block over all arrays, and blocks of it that somebody may write late.
Late = tuple[Array, int, list[int]]


def late_in(plan: Plan, unheard: Collection[int]) -> list[Late]:
    """Where somebody may write late, by the blocks that were asked of who has not answered.

    Nobody else writes to a pack.
    """
    found, first = [], 0
    for array in plan.arrays:
        numbers = [number for number in range(array.count) if first + number in unheard]
        if numbers and array.kind != "opaque":
            found.append((array, first, numbers))
        first += array.count
    return found


def move(old: str, new: str, late: Sequence[Late], ordered: Sequence[Written]) -> None:
    """Have what is written in one folder in another one: copied where somebody may write late, else linked.

    Parameters
    ----------
    ordered
        What is known of each block, over all arrays.

    Raises
    ------
    OSError
        When it cannot be read or written.
    CheckpointError
        When one of them has written in the meantime what is not known of.
    """
    copied = tuple(f"{array.path}/" for array, _, _ in late)
    for folder, _, names in os.walk(old):
        inside = os.path.relpath(folder, old)
        os.makedirs(os.path.join(new, inside), 0o755, exist_ok=True)
        for name in names:
            path = name if inside == "." else f"{inside}/{name}"
            (copy_inside if path.startswith(copied) else link_inside)(old, new, path)
    for array, first, numbers in late:
        for number in numbers:
            _check(new, array, number, ordered[first + number])


def _check(folder: str, array: Array, number: int, written: Written) -> None:
    if array.kind == "apart":
        document = f"{metadata.block_folder(array, number)}/{metadata.DOCUMENT}"
        write_inside(folder, document, metadata.block(array, number, written))
    try:
        checked_bytes(folder, block_file(array, number, written), written)
    except ValueError:
        raise CheckpointError(
            f"block {number} of {array.path} was written by a worker that had not answered, after another "
            "one had: write the version again"
        ) from None
