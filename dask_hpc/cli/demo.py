"""``dask hpc demo``: the main job end to end on this machine."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from dask_hpc.cli.policy_options import make_policy, policy_option
from dask_hpc.cli.replacing import check_replace, force_option
from dask_hpc.cli.types import NEW_FILE
from dask_hpc.terminal import json_option


@click.command()
@policy_option
@click.option("--fast", is_flag=True, help="Less of the same: a check rather than a show.")
@click.option("--report", type=NEW_FILE, help="Where the HTML report goes.  [default: dask-hpc-demo.html]")
@click.option(
    "--trace",
    type=NEW_FILE,
    help="Where the trace goes (.gz compresses); dask hpc replay reads it.",
)
@force_option
@click.option(
    "--plot",
    type=NEW_FILE,
    metavar="FILE",
    help="Write the node map there (png, svg or pdf); needs matplotlib.",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Rounds; the table then says the spread.",
)
@click.option(
    "--only",
    metavar="ACT",
    help="Play one act alone: three-users, stepping, killed, shrinking, or power, which is played only so.",
)
@click.option("--slurm", is_flag=True, help="On jobs of Slurm, as jobqueue.slurm describes them.")
@json_option
def demo(
    policy: str | None,
    fast: bool,
    report: Path | None,
    trace: Path | None,
    force: bool,
    plot: Path | None,
    repeat: int,
    only: str | None,
    slurm: bool,
    as_json: bool,
) -> None:
    """Run the main job end to end on this machine.

    Four acts, each on stock Dask and with dask_hpc, equal work, results compared bit by bit: three users
    share a cluster; a simulation is resized while it steps, and the walltime of a node ends; a worker is
    killed, with a checkpoint of what it holds; the cluster shrinks with data on it. Where a walltime ends,
    stock Dask's worker is killed without warning, as nothing of stock's hears of walltimes. A further one,
    --only power, has two jobs under a power corridor that moves.
    The last lines are a table, and an HTML report shows what happened.
    """
    from dask_hpc import capabilities
    from dask_hpc.demo.rounds import chosen
    from dask_hpc.demo.run import main
    from dask_hpc.errors import ConfigError

    # that of the default name is of an earlier demo
    check_replace(filter(None, (report, trace, plot)), force=force, as_json=as_json)
    if policy:
        make_policy(policy, {})
    # parts of the demo are theirs to bring
    capabilities.load()
    try:
        chosen(only)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None

    # what the log would say of an interrupt is in one line
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    raise SystemExit(
        main(
            policy=policy,
            fast=fast,
            report=report,
            trace=trace,
            as_json=as_json,
            slurm=slurm,
            plot=plot,
            repeat=repeat,
            only=only,
        )
    )
