"""A phase of an elastic program, as the user declares it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dask_hpc.program.coupled import Coupled
from dask_hpc_policies import numeric

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

    def __post_init__(self) -> None:
        for what, given in (("function", self.function), ("adapt", self.adapt), ("after", self.after)):
            if not callable(given) and (given is not None or what == "function"):
                raise TypeError(f"{what} of phase {self.name!r} is {given!r:.80}; needed: a function")
        if not isinstance(self.name, str):
            raise TypeError(f"name of a phase is {self.name!r:.80}; needed: text")

    def checked(self, size: int) -> Phase:
        """With plain numbers, over a domain of `size` indices; raises `ValueError` for what cannot be."""
        steps = self.steps if callable(self.steps) else numeric.whole(self.steps)
        if steps is None or (not callable(steps) and steps < 0):
            raise ValueError(
                f"steps is {self.steps!r}; allowed: a whole number, 0 or more, or a function of the program"
            )
        halo = numeric.whole(self.halo)
        if halo is None or not 0 <= halo <= size:
            raise ValueError(f"halo is {self.halo!r}; allowed: 0 to {size} indices")
        keep = numeric.whole(self.keep)
        if self.keep is not None and (keep is None or keep < 1):
            raise ValueError(f"keep is {self.keep!r}; allowed: a number of steps, 1 or more, or None")
        return replace(self, steps=steps, halo=halo, keep=keep)

    def chosen(self, answer: Any, names: Sequence[str]) -> int:
        """Number of the phase that a branch goes to, among the `names` of all.

        Raises
        ------
        ValueError
            When there is none like that, or it is the first.
        """
        if isinstance(answer, str) and answer in names[1:]:
            return names.index(answer)
        number = numeric.whole(answer)
        if number is not None and 0 < number < len(names):
            return number
        raise ValueError(
            f"branch {self.name!r} goes to {answer!r}; allowed: 1 to {len(names) - 1}, "
            f"{', '.join(map(repr, names[1:]))}, or None"
        )
