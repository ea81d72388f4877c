"""What the demo shows and checks, part by part. Another part is one function and one `register`.

Rules of the file: a part gets what a run gave and says what it found; it starts nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask_hpc.demo import simulation
from dask_hpc.demo.scenario import Finished
from dask_hpc.demo.simulation import Simulated
from dask_hpc.demo.workloads import WORKLOADS, digest
from dask_hpc.trace.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """One demo: what each workload gave on stock Dask and under the policy, and the trace of the latter."""

    stock: Mapping[str, Finished]
    managed: Mapping[str, Finished]
    records: Sequence[Record]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one part has found."""

    #: Printed as results: text by name.
    results: Mapping[str, str] = field(default_factory=dict)
    #: Shown in the report: text by title.
    notes: Mapping[str, str] = field(default_factory=dict)
    #: Entries of the summary as JSON.
    summary: Mapping[str, Any] = field(default_factory=dict)
    #: What is not as it should be, a sentence each without a full stop; the exit code tells of it.
    errors: Sequence[str] = ()


Part = Callable[[DemoRun], Verdict]

_parts: list[Part] = []


def register(*parts: Part) -> None:
    """Have every demo from now on show what `parts` find, after what it shows already."""
    _parts.extend(parts)


def find(run: DemoRun) -> list[Verdict]:
    """What all parts find."""
    return [part(run) for part in _parts]


def same_results(run: DemoRun) -> Verdict:
    """The results of all workloads beside those of stock Dask, bit by bit."""
    names = [name for name in run.stock if name in WORKLOADS]
    equal = {name: digest(run.stock[name].result) == digest(run.managed[name].result) for name in names}
    told = {name: WORKLOADS[name].describe(run.managed[name].result) for name in names}
    different = [name for name in names if not equal[name]]
    return Verdict(
        results={
            name: f"{'equal to stock' if equal[name] else 'DIFFERS'}: {text}" for name, text in told.items()
        },
        notes={
            WORKLOADS[name].title: (
                f"{text}; {'equal to stock Dask in every bit' if equal[name] else 'NOT equal to stock Dask'}"
            )
            for name, text in told.items()
        },
        summary={
            "results_equal": not different,
            "workloads": [
                {
                    "name": name,
                    "equal": equal[name],
                    "sha256": digest(run.managed[name].result),
                    "turnaround_s": run.managed[name].turnaround_s,
                    "stock_turnaround_s": run.stock[name].turnaround_s,
                    "result": told[name],
                }
                for name in names
            ],
        },
        errors=[f"the results of {', '.join(different)} differ from those of stock Dask"]
        if different
        else (),
    )


def undisturbed_field(run: DemoRun) -> Verdict:
    """The simulation, resized and watched, beside as many steps in one piece."""
    stock, managed = run.stock[simulation.NAME], run.managed[simulation.NAME]
    simulated: Simulated = managed.result
    identical, stock_identical = simulated.identical, stock.result.identical
    told = simulation.describe(simulated, identical)
    good = identical and stock_identical and simulated.in_situ
    return Verdict(
        results={simulation.NAME: told},
        notes={simulation.TITLE: told},
        summary={
            simulation.NAME: {
                "resized": simulated.resizes,
                "field_identical": identical,
                "stock_field_identical": stock_identical,
                "steps": simulated.steps,
                "looks": len(simulated.looks),
                "looks_in_situ": simulated.in_situ,
                "turnaround_s": managed.turnaround_s,
                "stock_turnaround_s": stock.turnaround_s,
                "sha256": digest(simulated.field),
                "windows": [dict(window) for window in simulated.windows],
            }
        },
        errors=() if good else [f"{simulation.NAME}: {told}"],
    )


register(same_results, undisturbed_field)
