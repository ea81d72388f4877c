"""``dask hpc interval``: how long to compute between two checkpoints."""

from __future__ import annotations

import math
from typing import Any

import click

from dask_hpc.cli.types import Seconds
from dask_hpc.terminal import echo_json, echo_table, json_option

#: Longer times are those of no run, and what comes of them is no number.
_LONGEST_S = 1e12
_FROM_ZERO, _ABOVE_ZERO = Seconds(most_s=_LONGEST_S), Seconds(0.001, most_s=_LONGEST_S)
_COLUMNS = {
    "method": "METHOD",
    "interval_s": "INTERVAL (s)",
    "expected_s": "EXPECTED RUN (s)",
    "overhead": "OVERHEAD",
}


@click.command()
@click.option("--cost", "cost_s", metavar="S", type=_FROM_ZERO, required=True,
              help="How long one checkpoint holds the run up.")  # fmt: skip
@click.option("--mtbf", "mtbf_s", metavar="S", type=_ABOVE_ZERO, required=True,
              help="Mean time between failures: of a node with --nodes, else of the run.")  # fmt: skip
@click.option("--nodes", metavar="N", type=click.IntRange(1, 1_000_000_000), default=1, show_default=True,
              help="Nodes that fail independently, each of which ends the run.")  # fmt: skip
@click.option("--restart", "restart_s", metavar="S", type=_FROM_ZERO, default="0 s", show_default=True,
              help="Time from a failure until it computes again.")  # fmt: skip
@click.option("--work", "work_s", metavar="S", type=_ABOVE_ZERO, default="1 d", show_default=True,
              help="Time of the run without failures and checkpoints.")  # fmt: skip
@click.option("--interval", "given_s", metavar="S", type=_ABOVE_ZERO, default=None,
              help="An interval of your own to compare.")  # fmt: skip
@json_option
def interval(
    cost_s: float,
    mtbf_s: float,
    nodes: int,
    restart_s: float,
    work_s: float,
    given_s: float | None,
    as_json: bool,
) -> None:
    """Say how long to compute between two checkpoints.

    By Young (1974), Daly (2006) and the exact optimum of Daly's model, each with the expected time of the
    run in that model: failures at a constant rate, also during checkpoints and restarts. The last row is a
    run without checkpoints.
    """
    from dask_hpc_policies.resilience.intervals import METHODS, Costs, expected_s

    costs = Costs(cost_s, mtbf_s / nodes, restart_s)
    chosen = {name: method(costs) for name, method in METHODS.items()}
    if given_s is not None:
        chosen["given"] = given_s
    rows: list[dict[str, Any]] = []
    for name, interval_s in chosen.items():
        rows.append(_row(name, interval_s, expected_s(costs, work_s, interval_s), work_s))
    never = expected_s(Costs(0.0, costs.mtbf_s, restart_s), work_s, work_s)
    rows.append(_row("none", None, never, work_s))
    if as_json:
        echo_json({"mtbf_s": costs.mtbf_s, "rows": rows})
    else:
        shown = [{**row, "overhead": _percent(row["overhead"])} for row in rows]
        echo_table(shown, _COLUMNS, "")


def _row(name: str, interval_s: float | None, run_s: float, work_s: float) -> dict[str, Any]:
    """A row; a run that never ends has no length."""
    ends = math.isfinite(run_s)
    return {
        "method": name,
        "interval_s": interval_s,
        "expected_s": run_s if ends else None,
        "overhead": run_s / work_s - 1 if ends else None,
    }


def _percent(part: float | None) -> str | None:
    return None if part is None else f"{100 * part:.1f} %"
