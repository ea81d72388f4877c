"""A phase of an elastic program, as the user declares it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dask_hpc.program.coupled import Coupled

Kind = Literal["init", "elastic", "rigid", "branch"]


@dataclass(frozen=True)
class Phase:
    """One phase: its kind, its name, and what the user gave for it (see the methods of `Program`)."""

    kind: Kind
    name: str
    function: Callable[..., Any]
    steps: int | Callable[[Any], Any] = 0
    halo: int = 0
    adapt: Callable[..., Any] | None = None
    after: Callable[..., Any] | None = None
    keep: int | None = None
    #: Where its steps are handed over to.
    coupled: Coupled | None = None

    def check(self, size: int) -> None:
        """Raise `ValueError` for what cannot be over a domain of `size` indices."""
        if not callable(self.steps) and not _is_whole(self.steps, 0):
            raise ValueError(
                f"steps is {self.steps!r}; allowed: an integer, 0 or more, or a function of the program"
            )
        if not _is_whole(self.halo, 0) or self.halo > size:
            raise ValueError(f"halo is {self.halo!r}; allowed: 0 to {size} indices")
        if self.keep is not None and not _is_whole(self.keep, 1):
            raise ValueError(f"keep is {self.keep!r}; allowed: a number of steps, 1 or more, or None")

    def chosen(self, answer: Any, names: Sequence[str]) -> int:
        """Number of the phase that a branch goes to, among the `names` of all.

        Raises
        ------
        ValueError
            When there is none like that, or it is the first.
        """
        if isinstance(answer, str) and answer in names[1:]:
            return names.index(answer)
        if isinstance(answer, int) and not isinstance(answer, bool) and 0 < answer < len(names):
            return answer
        raise ValueError(
            f"branch {self.name!r} goes to {answer!r}; allowed: 1 to {len(names) - 1}, "
            f"{', '.join(map(repr, names[1:]))}, or None"
        )


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
