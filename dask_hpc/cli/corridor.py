"""``dask hpc power set``: the power corridor of a running cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dask_hpc.cli.connection import connected, connection_options
from dask_hpc.cli.power import power
from dask_hpc.cli.types import FILE
from dask_hpc.terminal import echo_json, echo_pairs, json_option


@power.command("set")
@click.option("--lower", metavar="W", help="Lower bound of what all nodes draw, such as 1700 or '1.7 kW'.")
@click.option("--upper", metavar="W", help="Upper bound.")
@click.option(
    "--over",
    metavar="TIME",
    help="What has been drawn is held to the bounds as its mean over this time; what sizes of jobs let "
    "expect is at every moment, but for mode=reactive of power-aware.",
)
@click.option(
    "--file",
    metavar="PATH",
    help="A YAML file on the scheduler's machine, which is watched: bounds, schedule, series, rules, ...",
)
@click.option(
    "--series",
    metavar="PATH",
    help="A series on the scheduler's machine, which is watched: bounds, or prices or carbon with --rules.",
)
@click.option(
    "--rules",
    type=FILE,
    help="A YAML file on this machine: what prices or carbon mean for the bounds (see dask hpc power plan).",
)
@click.option("--ramp", metavar="W", help="Bounds change by at most so many watts a second.")
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
    series: str | None,
    rules: Path | None,
    ramp: str | None,
    mode: str | None,
    clear: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Set the power corridor of a running cluster, or clear it.

    It takes the place of the one before. Nothing is changed by bounds that cannot be.
    """
    import dask_hpc
    from dask_hpc.scheduler.power.tariff.rules import rule_rows

    if not (lower or upper or file or series or clear):
        raise click.UsageError("nothing is to be set: give --lower, --upper, --series, --file or --clear")
    given: dict[str, Any] = {"lower_w": lower, "upper_w": upper, "over": over, "file": file, "mode": mode}
    given |= {"series": series, "ramp_w_s": ramp, "rules": None if rules is None else rule_rows(str(rules))}
    with connected(**where) as client:
        found = dask_hpc.runtime(client).corridor(clear=clear, **given)
    if as_json:
        echo_json(found)
    elif clear:
        click.echo("there is no corridor any more")
    else:
        shown = ("lower_w", "upper_w", "over_s", "mode", "draw_w", "label", "file")
        echo_pairs([(name.replace("_", " "), found[name]) for name in shown])
