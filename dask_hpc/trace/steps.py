"""What the steps of flows have taken, out of the records of a trace, live or simulated.

Rules of the file: pure. A trace that says nothing of steps has none; what one leaves out, or says in a way
that cannot be, is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from dask_hpc.trace.records import STEP, Other, Record
from dask_hpc_policies.placement.figures import OF_VALUES

#: What is told of a step beside its number.
FIGURES = ("step_s", "simulation_s", "helper_cores", *OF_VALUES)
#: A number beyond it is damage, and may be none that a float holds.
_LARGEST = 1e300


def step_rows(records: Iterable[Record]) -> dict[str, list[dict[str, float | None]]]:
    """The steps of each flow, in the order in which they were told: ``t_s``, ``step`` and `FIGURES`."""
    found: dict[str, list[dict[str, float | None]]] = {}
    for record in records:
        if isinstance(record, Other) and record.kind == STEP and isinstance(record.data.get("flow"), str):
            row = {name: _number(record.data, name) for name in ("t_s", "step", *FIGURES)}
            found.setdefault(record.data["flow"], []).append(row)
    return found


def step_medians(records: Iterable[Record]) -> dict[str, dict[str, float | None]]:
    """Of each flow the number of ``steps``, and the medians of what is known of them (`FIGURES`)."""
    return {
        flow: {"steps": len(rows)} | {name: _median(rows, name) for name in FIGURES}
        for flow, rows in step_rows(records).items()
    }


def _number(data: Mapping[str, Any], name: str) -> float | None:
    value = data.get(name)
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
    return value if number else None


def _median(rows: Iterable[Mapping[str, float | None]], name: str) -> float | None:
    known = [value for row in rows if (value := row[name]) is not None]
    return median(known) if known else None
