"""``dask hpc power plan`` and ``report``: what a series makes of a corridor, and what a run came to."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import click

from dask_hpc.cli.power import power
from dask_hpc.cli.types import FILE, FiniteRange
from dask_hpc.terminal import echo_json, echo_pairs, echo_table, json_option
from dask_hpc_policies.power.bill import J_PER_KWH

_BILL = {
    "who": "WHO",
    "energy_kwh": "ENERGY (kWh)",
    "least_w": "LEAST (W)",
    "mean_w": "MEAN (W)",
    "most_w": "MOST (W)",
    "cost": "COST",
    "carbon_g": "CO2 (g)",
    "label": "LABEL",
}
#: Nodes without a row of their own.
_OTHERS = ("earlier_nodes", "absent_nodes")
_COLUMNS = {"from": "FROM", "lower_w": "LOWER (W)", "upper_w": "UPPER (W)", "for": "FOR (min)"}


@power.command()
@click.argument("series", type=FILE)
@click.option("--rules", type=FILE, help="A YAML file: what prices or carbon mean for the bounds.")
@click.option(
    "--ramp",
    type=FiniteRange(0, min_open=True),
    metavar="W",
    help="Bounds change by at most so many watts a second.",
)
@json_option
def plan(series: Path, rules: Path | None, ramp: float | None, as_json: bool) -> None:
    """Show the power corridor that a series makes.

    SERIES is CSV with time (with its zone) or t_s (seconds), and lower_w, upper_w, price (per MWh) or carbon
    (g per kWh); or day-ahead prices of the ENTSO-E Transparency Platform, as XML. The file of --rules holds a
    list, of which the first that fits counts, such as [{above: 100, upper_w: 2 kW}], with {of: carbon,
    below: 50, lower_w: 3 kW} in it where the series has carbon, too.

    Where no rule fits, a bound is open. The last value holds over gaps and after the end.
    """
    from dask_hpc.errors import CorridorError
    from dask_hpc.scheduler.power.tariff.read import read_series
    from dask_hpc.scheduler.power.tariff.rules import read_rules
    from dask_hpc_policies.power.bounds import Bounds, BoundsError
    from dask_hpc_policies.power.ramp import ramped
    from dask_hpc_policies.power.tariff import TariffError, steps_of

    found = read_series(str(series))
    try:
        steps = steps_of(found, None if rules is None else read_rules(str(rules)))
        if ramp is not None:
            steps = list(ramped(Bounds(steps=tuple(steps)), ramp, steps[0][0]).steps)
    except (TariffError, BoundsError) as error:
        raise CorridorError(f"{series}: {error}") from None
    counts = {name: len(points) for name, points in found.columns.items()}
    row = {
        "steps": [list(step) for step in steps],
        "clock": "utc" if found.absolute else "from-set",
        "columns": counts,
        "currency": found.currency or None,
        "gaps": found.gaps,
        "end_s": found.end_s,
    }
    if as_json:
        echo_json(row)
        return
    told = ", ".join(f"{count} of {name}" for name, count in counts.items())
    pairs = [
        ("values", told),
        ("gaps", f"{found.gaps}, over which the value before holds" if found.gaps else 0),
    ]
    echo_pairs(pairs if found.end_s is None else [*pairs, ("until", when(found.end_s, found.absolute))])
    click.echo()
    ends = [*(step[0] for step in steps[1:]), found.end_s]
    rows = [_row(step, end, found.absolute) for step, end in zip(steps, ends, strict=True)]
    echo_table(rows, _COLUMNS, "no step")


def when(time_s: float, absolute: bool) -> str:
    """A time as it is told: in UTC, or in seconds."""
    if not absolute:
        return f"{time_s:g} s"
    try:
        moment = datetime.datetime.fromtimestamp(time_s, datetime.UTC)
    except (ValueError, OverflowError, OSError):  # a ramp may end after the last year that has a name
        return f"{time_s:.15g} s"
    return moment.strftime("%Y-%m-%d %H:%M:%SZ").replace(":00Z", "Z")


def _row(step: tuple[float, float, float], end_s: float | None, absolute: bool) -> dict[str, Any]:
    from dask_hpc_policies.power.bounds import MOST_W

    time_s, lower_w, upper_w = step
    return {
        "from": when(time_s, absolute),
        "lower_w": f"{lower_w:g}" if lower_w else "-",
        "upper_w": "-" if upper_w >= MOST_W else f"{upper_w:g}",
        # a ramp may end after the series
        "for": "-" if end_s is None or end_s <= time_s else f"{(end_s - time_s) / 60:g}",
    }


@power.command()
@click.argument("trace", type=FILE)
@click.option(
    "--prices",
    type=FILE,
    metavar="SERIES",
    help="Prices or carbon, in a form that plan takes: what the energy cost.",
)
@json_option
def report(trace: Path, prices: Path | None, as_json: bool) -> None:
    """Report what a run drew: energy, time outside its corridor, its bill, and who drew it.

    TRACE is that of a cluster on which a corridor was set (mode monitor looks at the draw alone), or of a
    simulation under one. outside_ws is watts outside over time.
    """
    from dask_hpc.report.power import power_report
    from dask_hpc.scheduler.power.tariff.read import read_series
    from dask_hpc.trace.files import read_trace

    row = power_report(read_trace(trace), None if prices is None else read_series(str(prices)))
    if as_json:
        echo_json(row)
        return
    pairs = [
        ("accounted", f"{row['accounted_s'] / 60:.1f} min"),
        ("energy", f"{row['energy_j'] / J_PER_KWH:.4g} kWh"),
        ("draw", f"{row['mean_w']:.1f} W; {row['least_w']:.1f} to {row['most_w']:.1f} W"),
        ("outside", f"{row['outside_s'] / 60:.2f} min, {row['outside_ws']:.4g} W s"),
    ]
    if "bill" in row:
        pairs.append(("bill", f"{row['bill']:.4g} {row.get('currency', '')}".strip()))
    if "carbon_g" in row:
        pairs.append(("carbon", f"{row['carbon_g']:.4g} g CO2"))
    left = [(name.removesuffix("_j"), row.get(name)) for name in ("unpriced_j", "uncounted_j")]
    pairs += [
        (name, f"{energy_j / J_PER_KWH:.4g} kWh before the first value")
        for name, energy_j in left
        if energy_j
    ]
    echo_pairs(pairs)
    for one in row["bills"]:
        click.echo()
        parts = {name: one[name] for name in ("idle", "plain", "earlier_jobs", "total")}
        rows = [{"who": who, **use} for who, use in {**one["jobs"], **parts}.items() if use["energy_j"]]
        echo_table(rows, _BILL, "no bill")
        for heading, names in (("STATE", "states"), ("NODE", "nodes")):
            others = {who: one[who] for who in _OTHERS if names == "nodes" and who in one}
            rows = [
                {"who": who, **use}
                for who, use in {**one.get(names, {}), **others}.items()
                if use["energy_j"]
            ]
            if rows:
                click.echo()
                echo_table(rows, {**_BILL, "who": heading}, "none")
