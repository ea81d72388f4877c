"""``dask hpc config``: ready configuration to copy."""

from __future__ import annotations

from importlib.resources import files

import click


@click.command()
@click.argument("name", type=click.Choice(["slurm", "hpc"]))
def config(name: str) -> None:
    """Print configuration to copy into ~/.config/dask.

    slurm: batch jobs (dask-jobqueue) and the Dask panel of JupyterLab; hpc: all settings of this
    package with their defaults.
    """
    path = "slurm/jobqueue.yaml" if name == "slurm" else "hpc.yaml"
    click.echo(files("dask_hpc").joinpath(path).read_text(encoding="utf-8"), nl=False)
