"""A generator of workloads: a function with declared options.

Rules of the file: options are declared as parameters of policies are, so that one declaration feeds checks,
the command line and help.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dask_hpc.errors import OptionError
from dask_hpc.sim.model.job import LINEAR, SpeedUp, amdahl, power_law
from dask_hpc.sim.model.workload import Workload
from dask_hpc_policies.params import Choice, Float, Parameter, Parameters


@dataclass(frozen=True, slots=True)
class Generator:
    """Makes the workload ``builtin:NAME``; call it with a seed and options by keyword."""

    name: str
    #: One sentence.
    summary: str
    options: Parameters
    _make: Callable[..., Workload]

    def __call__(self, *, seed: int = 0, **options: Any) -> Workload:
        """The workload; options that are not given have their defaults.

        Raises
        ------
        OptionError
            For an unknown option or a value that it cannot have.
        """
        try:
            workload = self._make(seed=seed, **self.options.resolve(options))
        except ValueError as error:
            raise OptionError(f"builtin:{self.name}: {error}") from None
        return replace(workload, name=self.name, source=f"builtin:{self.name}", seed=seed)


def generator(name: str, *options: Parameter) -> Callable[[Callable[..., Workload]], Generator]:
    """Make a function of `seed` and `options` the generator of ``builtin:NAME``."""

    def wrap(make: Callable[..., Workload]) -> Generator:
        summary = (make.__doc__ or "").strip().split("\n", 1)[0]
        return Generator(name, summary, Parameters(options), make)

    return wrap


def speed_options(default: str = "linear", parameter: float = 0.0) -> tuple[Parameter, Parameter]:
    """Options for the speed-up of all jobs; `speed_of` reads them."""
    return (
        Choice(
            "speedup", default, ("linear", "amdahl", "power-law"), label="Speed-up",
            help="how a job's speed grows with its nodes",
        ),
        Float(
            "speedup_parameter", parameter, lo=0.0, hi=1.0, label="Parameter of the speed-up",
            help="serial fraction (amdahl) or exponent (power-law)",
        ),
    )  # fmt: skip


def speed_of(speedup: str, parameter: float) -> SpeedUp:
    """The speed-up that the options of `speed_options` mean."""
    if speedup == "amdahl":
        return amdahl(parameter)
    return power_law(parameter) if speedup == "power-law" else LINEAR
