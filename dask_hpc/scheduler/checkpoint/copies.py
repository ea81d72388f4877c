"""The copies of one result: in what order they are read, and what can be counted on."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

from dask_hpc.scheduler.tables.small import size
from dask_hpc.worker.saved import AnyCopy, Copy, MemoryCopy
from dask_hpc.worker.small import SmallCopy

#: Versions of one result in the store that are tried; in memory there is one of each name.
_COPIES = 2


def with_newer(copy: AnyCopy, before: Sequence[AnyCopy], beside: bool) -> tuple[AnyCopy, ...]:
    """Copies of a result with a newer one, or one that is whole now: what is in memory is read first.

    Parameters
    ----------
    beside
        Whether an older copy of its name in the memory of a host of which others have parities stays. Those
        of other names do: they may survive more.
    """
    every = [copy, *(each for each in before if whole(each) or each.name != copy.name)]
    in_memory = [each for each in every if isinstance(each, MemoryCopy)]
    of = copy.of if isinstance(copy, MemoryCopy) else None
    older = [each for each in in_memory if each.of == of and each is not copy]
    return (
        *[each for each in every if isinstance(each, SmallCopy)][:1],
        *[each for each in in_memory if each.of != of or each is copy],
        *[each for each in older if beside and each.group is not None][:1],
        *[each for each in every if isinstance(each, Copy)][:_COPIES],
    )


def draft_of(copy: AnyCopy) -> str:
    """Name of its version as long as that is not whole, and may be given up; else empty."""
    return "" if isinstance(copy, SmallCopy) else copy.draft


def whole(copy: AnyCopy) -> bool:
    """Whether its version is."""
    return not draft_of(copy)


def staying(copy: AnyCopy) -> bool:
    """Whether it is there whichever host leaves."""
    return whole(copy) and not isinstance(copy, MemoryCopy)


def lasting(copies: tuple[AnyCopy, ...]) -> tuple[AnyCopy, ...]:
    """Those that stay when their result is back."""
    return tuple(copy for copy in copies if not (isinstance(copy, Copy) and copy.passing))


def stored(copies: tuple[AnyCopy, ...]) -> bool:
    """Whether the store has it, and still has when the result is back."""
    return any(isinstance(copy, Copy) and whole(copy) for copy in lasting(copies))


@dataclass(frozen=True, slots=True)
class InVersions(Container[Any]):
    """Keys of results that a version has, in the store or in memory, and still has when they are back."""

    copies_of: Callable[[Any], tuple[AnyCopy, ...]]
    #: Name of the versions in memory that count alone; None: all count.
    name: str | None = None

    def __contains__(self, key: object) -> bool:
        copies = lasting(self.copies_of(key))
        if self.name is not None:
            copies = tuple(each for each in copies if isinstance(each, MemoryCopy) and each.of == self.name)
        return any(whole(copy) and not isinstance(copy, SmallCopy) for copy in copies)

    def in_memory(self, name: str) -> InVersions:
        """Those that versions of this name in memory have."""
        return InVersions(self.copies_of, name)


def small_bytes(copies: Sequence[AnyCopy]) -> int:
    """What those that the scheduler holds itself take, in bytes."""
    return sum(size(copy) for copy in copies if isinstance(copy, SmallCopy))
