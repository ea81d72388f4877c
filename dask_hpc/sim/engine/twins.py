"""Twins: what capabilities of the scheduler side are in a simulation.

A twin is any object with one or more of these methods, which mean what they mean for a part of a live
scheduler: ``section()`` adds plain data to the picture that the policy gets, ``guards()`` has the decision
held to vetoes, bounds and sums, ``enactors()`` carries out kinds of actions that allot nothing.

Here alone: ``completed(view, policy)`` adds to a picture what can only be told of the whole of it, such as
the plans of solvers; ``amended(view, decision)`` says what is done in place of a decision; ``moments()``
lists times at which something of it changes, ``minds(policy)`` whether the policy is to be asked then.

A twin is plain data besides, for a run may be copied (`Engine.fork`).

`register` takes what makes a twin from the world of a run, or None where the run has nothing for it: then the
run is as without it. What is switched on for a run is in `Options.extra`, as the settings of capabilities are
in ``Settings.extra`` on a live cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dask_hpc_policies.combine.arbitrate import arbitrate
from dask_hpc_policies.combine.limits import AnyGuard
from dask_hpc_policies.decision import Decision, Outcome
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.protocol import Policy

#: What makes twins, each from the world of a run.
_MAKERS: list[Callable[[Any], Any]] = []


def register(make: Callable[[Any], Any]) -> None:
    """Have ``make(world)`` make a twin, or None, for every run from now on."""
    _MAKERS.append(make)


class Twins:
    """The twins of one run; false without any."""

    def __init__(self) -> None:
        self._all: list[Any] = []

    def __bool__(self) -> bool:
        return bool(self._all)

    def join(self, world: Any) -> None:
        """Make a twin of every capability that the run has something for."""
        self._all = [twin for make in _MAKERS if (twin := make(world)) is not None]

    def _having(self, method: str) -> Sequence[Callable[..., Any]]:
        return [getattr(twin, method) for twin in self._all if hasattr(twin, method)]

    def sections(self) -> dict[str, Any]:
        """What they add to the picture, by name."""
        return {name: value for ask in self._having("section") for name, value in ask().items()}

    def moments(self, after_s: float) -> list[float]:
        """When something of theirs changes (trigger ``corridor``), after `after_s`."""
        return sorted({t_s for ask in self._having("moments") for t_s in ask() if t_s > after_s})

    def minds(self, policy: Policy) -> bool:
        """Whether `policy` is to be asked then."""
        return any(ask(policy) for ask in self._having("minds"))

    def completed(self, view: ClusterSnapshot, policy: Policy) -> ClusterSnapshot:
        """The picture with what they can tell of the whole of it, before `policy` sees it."""
        for add in self._having("completed"):
            view = add(view, policy)
        return view

    def arbitrated(self, view: ClusterSnapshot, decision: Decision) -> Decision:
        """What their guards let through of a decision, or what is done in its place."""
        guards: list[AnyGuard] = [guard for ask in self._having("guards") for guard in ask()]
        decision = arbitrate(view, decision, guards)
        for amend in self._having("amended"):
            decision = amend(view, decision)
        return decision

    def enactor(self, kind: type[Any]) -> Callable[[Any], Outcome] | None:
        """What carries out a kind of action; None when nobody does."""
        found: Mapping[type[Any], Callable[[Any], Outcome]] = {}
        for ask in self._having("enactors"):
            found = {**ask(), **found}
        return found.get(kind)
