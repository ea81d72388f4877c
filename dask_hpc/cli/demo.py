"""``dask hpc demo``: the main job end to end on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from dask_hpc.cli.policy_options import policy_option
from dask_hpc.cli.types import NEW_FILE
from dask_hpc.terminal import json_option


@click.command()
@policy_option
@click.option("--fast", is_flag=True, help="Smaller workloads: a check rather than a show.")
@click.option("--report", type=NEW_FILE, help="Where the HTML report goes.")
@click.option(
    "--trace",
    type=NEW_FILE,
    help="Where the trace goes (.gz compresses); dask hpc replay reads it.",
)
@click.option(
    "--plot",
    type=NEW_FILE,
    metavar="FILE",
    help="Write the node map there (png, svg or pdf); needs matplotlib.",
)
@click.option("--slurm", is_flag=True, help="On jobs of Slurm, as jobqueue.slurm describes them.")
@json_option
def demo(
    policy: str | None,
    fast: bool,
    report: Path | None,
    trace: Path | None,
    plot: Path | None,
    slurm: bool,
    as_json: bool,
) -> None:
    """Run the main job end to end on this machine.

    A simulation and four other workloads share a cluster of several worker processes while a policy
    resizes them. Their results are checked against a run without dask_hpc, the simulation's field against
    an undisturbed run, and an HTML report shows what happened.
    """
    from dask_hpc.demo.run import main

    raise SystemExit(
        main(policy=policy, fast=fast, report=report, trace=trace, as_json=as_json, slurm=slurm, plot=plot)
    )
