"""Which versions of a name belong together: those that the newest one goes on from.

Who goes back to an older version and goes on from there leaves those after it: of these nothing is read
any more unless it is asked for by its number. A session notes in each version which one it goes on from, and
which were left on the way there: that counts also when those in between are gone, or cannot be read. Where
some were left, a file beside the manifest says so, too: a damaged newest version must not bring them back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dask_hpc.checkpoint.inside import read_inside
from dask_hpc.checkpoint.manifest import Manifest, seal, unseal

#: Where that is among what a session notes of a version (`Plan.extra`).
SESSION, AFTER, LEFT = "session", "after", "left"
#: So many ranges of left versions are noted, the newest ones: it is the newest versions that stay.
MOST_LEFT = 100
#: Name of the file beside the manifest, the layout of what it says, and what it has at most.
FILE, _SCHEMA, _MOST_BYTES = "past.json", 1, 1 << 20


@dataclass(frozen=True, slots=True)
class Past:
    """What is before a version."""

    #: Number of the version that it goes on from, 0 for none; None: nobody has noted it.
    after: int | None = None
    #: Versions that were left on the way there: first and last number of each range, rising.
    left: tuple[tuple[int, int], ...] = ()

    def gone_back(self, number: int, newest: int) -> Past:
        """What is before the one that goes on from a version with this past, when there is a newer one.

        Parameters
        ----------
        number
            Of the version that is gone back to, 0 for none.
        newest
            Of the newest version that there is.
        """
        now = ((number + 1, newest),) if newest > number else ()
        return Past(number, (*self.left, *now)[-MOST_LEFT:])

    def up_to(self, newest: int) -> Past:
        """The same where there are no versions after a number: those to come are none of what was left."""
        left = ((low, min(high, newest)) for low, high in self.left if low <= newest)
        return Past(None if self.after is None else min(self.after, newest), tuple(left))

    def noted(self) -> dict[str, Any]:
        """As JSON, for what a session notes; `past_of` reads it."""
        return {AFTER: self.after, LEFT: [list(each) for each in self.left]}


def past_of(manifest: Manifest) -> Past:
    """What is before a version, as far as it is noted."""
    return _past(manifest.plan.extra.get(SESSION), manifest.version)


def beside(manifest: Manifest) -> bytes | None:
    """What is before a version as a file beside its manifest; None where no version was left."""
    past = past_of(manifest)
    return seal(_SCHEMA, {"version": manifest.version, **past.noted()}) if past.left else None


def read_beside(folder: str, version: int) -> Past | None:
    """What is before a version whose manifest is damaged; None where no version was left, or nobody knows."""
    try:
        found = unseal(read_inside(folder, FILE, _MOST_BYTES), _SCHEMA)["content"]
    except (OSError, ValueError, RecursionError):
        return None
    # a copy of another version says nothing of this one
    return _past(found, version) if isinstance(found, Mapping) and found.get("version") == version else None


def _past(told: Any, version: int) -> Past:
    if not isinstance(told, Mapping):
        return Past()
    after, left, ranges = told.get(AFTER), told.get(LEFT), []
    for each in left if isinstance(left, list | tuple) else ():
        match each:
            case [int(low), int(high)] if 0 < low <= high < version:
                ranges.append((low, high))
    known = type(after) is int and 0 <= after < version
    return Past(after if known else None, tuple(ranges))


def branch(falling: Iterable[int], past: Callable[[int], Past]) -> Iterator[int]:
    """Those of some numbers that the first one goes on from, itself among them, newest first.

    Parameters
    ----------
    falling
        Numbers of versions, the newest first.
    past
        Gives what is before each, as `past_of`; a version of which it is not known what it goes on from
        goes on from the one before it.
    """
    newest: int | None = None
    left: set[tuple[int, int]] = set()
    for number in falling:
        if (newest is None or number <= newest) and not any(low <= number <= high for low, high in left):
            yield number
            told = past(number)
            newest = number - 1 if told.after is None else told.after
            left.update(told.left)
