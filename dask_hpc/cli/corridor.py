"""``dask hpc power set``: the power corridor of a running cluster."""

from __future__ import annotations

from typing import Any

import click

from dask_hpc.cli.connection import connected, connection_options
from dask_hpc.cli.power import power
from dask_hpc.terminal import echo_json, echo_pairs, json_option


@power.command("set")
@click.option("--lower", metavar="W", help="Lower bound of what all nodes draw, such as 1700 or '1.7 kW'.")
@click.option("--upper", metavar="W", help="Upper bound.")
@click.option("--over", metavar="TIME", help="Hold the mean over this time to the bounds, not the draw.")
@click.option(
    "--file",
    metavar="PATH",
    help="A YAML file on the scheduler's machine, which is watched: lower_w, upper_w, over, schedule, mode.",
)
@click.option(
    "--mode",
    type=click.Choice(["enforce", "advise", "monitor"]),
    help="enforce (the default): hold decisions to it; advise: tell what would be done; monitor: look only.",
)
@click.option("--clear", is_flag=True, help="No corridor any more.")
@connection_options
@json_option
def set_corridor(
    lower: str | None,
    upper: str | None,
    over: str | None,
    file: str | None,
    mode: str | None,
    clear: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Set the power corridor of a running cluster, or clear it.

    It takes the place of the one before. Nothing is changed by bounds that cannot be.
    """
    import dask_hpc

    if not (lower or upper or file or clear):
        raise click.UsageError("nothing is to be set: give --lower, --upper, --file or --clear")
    given = {"lower_w": lower, "upper_w": upper, "over": over, "file": file, "mode": mode}
    with connected(**where) as client:
        found = dask_hpc.runtime(client).corridor(clear=clear, **given)
    if as_json:
        echo_json(found)
    elif clear:
        click.echo("there is no corridor any more")
    else:
        shown = ("lower_w", "upper_w", "over_s", "mode", "draw_w", "label", "file")
        echo_pairs([(name.replace("_", " "), found[name]) for name in shown])
