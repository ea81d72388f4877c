"""``dask hpc place``: where the analyses of a simulation should run, from models alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dask_hpc.cli.types import FILE, Seconds
from dask_hpc.clock import countdown
from dask_hpc.errors import WorkloadError
from dask_hpc.terminal import echo_table
from dask_hpc_policies.placement.application import MODES, InvalidApplication
from dask_hpc_policies.placement.plan import METHODS, Placement, plan
from dask_hpc_policies.placement.whole import ROUNDINGS

if TYPE_CHECKING:
    from dask_hpc_policies.placement.application import Application

#: Fields of a JSON line in a table, by key.
_COLUMNS = {
    "in_situ": "IN SITU",
    "in_transit": "IN TRANSIT",
    "nodes": "NODES",
    "staging": "STAGING",
    "helper_cores": "HELPER CORES",
    "step_s": "STEP (s)",
    "simulation_s": "SIMULATION (s)",
    "in_situ_s": "IN SITU (s)",
    "in_transit_s": "IN TRANSIT (s)",
    "bound_s": "BOUND (s)",
    "run_s": "RUN (s)",
}


@click.command()
@click.argument("file", type=FILE)
@click.option(
    "--method", type=click.Choice(METHODS), default="exact", show_default=True, metavar="METHOD",
    help=f"How it is planned: {', '.join(METHODS)}.",
)  # fmt: skip
@click.option("--mode", type=click.Choice(MODES), default=MODES[0], show_default=True,
              help="Analyses in situ beside the simulation, or while it pauses.")  # fmt: skip
@click.option("--rounding", type=click.Choice(ROUNDINGS), default="four", show_default=True,
              help="How the orders make whole nodes and cores of real ones.")  # fmt: skip
@click.option("--steps", metavar="N", type=click.IntRange(1), default=1, show_default=True,
              help="Steps of the whole run.")  # fmt: skip
@click.option("--seed", metavar="N", type=click.IntRange(0), default=0, show_default=True,
              help="Draws the order of the method random.")  # fmt: skip
@click.option("--time-limit", "time_limit_s", metavar="S", type=Seconds(0.001), default="10 s",
              show_default=True, help="Longest that the methods exact and packs may search; then bound_s "
              "stays below step_s.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print a JSON line for each application.")
def place(
    file: Path,
    method: str,
    mode: Any,
    rounding: Any,
    steps: int,
    seed: int,
    time_limit_s: float,
    as_json: bool,
) -> None:
    """Plan which analyses run in situ, which in transit.

    FILE has a YAML document for each application, with platform, simulation and analyses (format:
    dask_hpc.sim.formats.placement_file). The plan says on how many nodes the simulation runs, with how many
    helper cores on each for the analyses in situ; all other nodes are for those in transit. exact_nodes
    and exact_cores are what the closed form gives before whole numbers and memory; exact_step_s is null where
    one side has so little of the work that it comes out without any node.
    """
    from dask_hpc.sim.formats.placement_file import read

    rows = []
    for number, application in enumerate(read(file, mode), start=1):
        left_s = countdown(time_limit_s)
        try:
            found = plan(application, method, mode=mode, rounding=rounding, seed=seed, left_s=left_s)
        except InvalidApplication as error:
            raise WorkloadError(f"{file}, document {number}: {error}") from None
        row = _row(found, time_limit_s - left_s(), steps)
        if as_json:
            click.echo(json.dumps(row, allow_nan=False))
        rows.append(row | {"staging": _staging(application, found)})
    if not as_json:
        shown = [row | {key: ", ".join(row[key]) or "-" for key in ("in_situ", "in_transit")} for row in rows]
        echo_table(shown, _COLUMNS, "no application")


def _row(found: Placement, solve_s: float, steps: int) -> dict[str, Any]:
    phases = found.phases
    return {
        "in_situ": list(found.in_situ),
        "in_transit": list(found.in_transit),
        "nodes": found.nodes,
        "helper_cores": found.helper_cores,
        "step_s": found.step_s,
        "simulation_s": phases.simulation_s,
        "in_situ_s": phases.in_situ_s,
        "in_transit_s": phases.in_transit_s,
        "bound_s": found.bound_s,
        "solve_s": solve_s,
        "run_s": found.run_s(steps),
        "exact_nodes": found.exact.nodes,
        "exact_cores": found.exact.helper_cores,
        # what has no node takes for ever, which JSON has no number for
        "exact_step_s": found.exact_step_s if math.isfinite(found.exact_step_s) else None,
    }


def _staging(application: Application, found: Placement) -> int:
    return application.platform.nodes - found.nodes
