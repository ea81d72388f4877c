"""A placement by the name of a method: which analyses run where, on what, how long it takes.

Rules of the file: one entry point, `plan`; each method is a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from dask_hpc_policies.placement.application import Application, InvalidApplication, Mode
from dask_hpc_policies.placement.bounds import bound_s
from dask_hpc_policies.placement.closed_form import Shares, shares
from dask_hpc_policies.placement.exact import exact
from dask_hpc_policies.placement.one_by_one import ORDERS, one_by_one
from dask_hpc_policies.placement.packs import Left, packs, unlimited
from dask_hpc_policies.placement.times import Phases, load_of, phases_of
from dask_hpc_policies.placement.whole import Rounding

#: Names of the methods: the least step, a search, the orders of Algorithm 1.
METHODS = ("exact", "packs", *ORDERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the analyses run, and how long the phases of a step then take."""

    mode: Mode
    #: Names, in the order in which the analyses were given.
    in_situ: tuple[str, ...]
    in_transit: tuple[str, ...]
    #: Nodes of the simulation and the analyses in situ; all others are staging nodes.
    nodes: int
    #: Cores of each of them for the analyses in situ; 0 in synchronous mode.
    helper_cores: int
    phases: Phases
    #: No placement has a shorter step than this.
    bound_s: float
    #: The split's closed form: real numbers, without memory.
    exact: Shares
    exact_step_s: float

    @property
    def step_s(self) -> float:
        """Time from step to step."""
        return self.phases.step_s(self.mode)

    def run_s(self, steps: int) -> float:
        """Time of a whole run (see `Phases.run_s`)."""
        return self.phases.run_s(steps, self.mode)


def plan(
    application: Application,
    method: str = "exact",
    *,
    mode: Mode = "asynchronous",
    rounding: Rounding = "four",
    seed: int = 0,
    left_s: Left = unlimited,
) -> Placement:
    """Place the analyses.

    Parameters
    ----------
    method
        One of `METHODS`.
    rounding
        How the orders make whole numbers; ``exact`` and ``packs`` take the best whole ones of each split.
    seed
        Draws the order of ``random``.
    left_s
        Says how many seconds are left for the search of ``packs``, and that and the integer programs of
        ``exact``. The orders try each analysis once.

    Raises
    ------
    InvalidApplication
        When a value is out of its range, something does not fit, or the method found no split that does.
    """
    if method not in METHODS:
        raise ValueError(f"method {method!r} is none of {', '.join(METHODS)}")
    application.check(mode)
    bound: float | None = None
    if method in ORDERS:
        ordered = one_by_one(application, method, mode, rounding, seed)
        found = None if ordered is None else (ordered[0], ordered[1].nodes, ordered[1].helper_cores)
    else:
        if method == "exact":
            solved = exact(application, mode, left_s)
            best = solved.found
            if best is not None and solved.bound_s < best.step_s:
                bound = solved.bound_s
        else:
            best = packs(application, mode, left_s)
        found = None if best is None else (best.split, best.nodes, best.helper_cores)
    if found is None:
        other = "" if method == "exact" else ", or the method exact"
        raise InvalidApplication(
            "analyses",
            f"{method} found no split of the {len(application.analyses)} that fits; take more nodes{other}",
        )
    split, nodes, helper_cores = found
    load = load_of(application, split)
    real = shares(application, load, mode)
    phases = phases_of(application, load, nodes, helper_cores, mode)
    step_s = phases.step_s(mode)
    if method != "exact":
        bound = bound_s(application, mode, step_s)
    names = [one.name for one in application.analyses]
    return Placement(
        mode=mode,
        in_situ=tuple(name for name, inside in zip(names, split, strict=True) if inside),
        in_transit=tuple(name for name, inside in zip(names, split, strict=True) if not inside),
        nodes=nodes,
        helper_cores=helper_cores,
        phases=phases,
        bound_s=step_s if bound is None else min(step_s, bound),
        exact=real,
        exact_step_s=phases_of(application, load, real.nodes, real.helper_cores, mode).step_s(mode),
    )
