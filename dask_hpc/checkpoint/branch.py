"""Which versions of a name belong together: those that the newest one goes on from.

Who goes back to an older version and goes on from there leaves those after it: of these nothing is read
any more unless it is asked for by its number. A session notes in each version which one it goes on from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from dask_hpc.checkpoint.manifest import Manifest

#: Where that is among what a session notes of a version (`Plan.extra`).
SESSION, AFTER = "session", "after"


def goes_on_from(manifest: Manifest) -> int | None:
    """Number of the version that one goes on from, 0 for none; None: nobody has noted it."""
    told = manifest.plan.extra.get(SESSION)
    after = told.get(AFTER) if isinstance(told, Mapping) else None
    return after if type(after) is int and 0 <= after < manifest.version else None


def branch(falling: Iterable[int], after: Callable[[int], int | None]) -> Iterator[int]:
    """Those of some numbers that the first one goes on from, itself among them, newest first.

    Parameters
    ----------
    falling
        Numbers of versions, the newest first.
    after
        Gives what each goes on from, as `goes_on_from`; a version of which that is not known goes on from
        the one before it.
    """
    newest: int | None = None
    for number in falling:
        if newest is None or number <= newest:
            yield number
            told = after(number)
            newest = number - 1 if told is None else told
