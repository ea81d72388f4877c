"""``dask hpc config``: ready configuration to copy."""

from __future__ import annotations

from importlib.resources import files

import click
import yaml

from dask_hpc.terminal import echo_json, json_option


@click.command()
@click.argument("name", type=click.Choice(["slurm", "hpc"]))
@json_option
def config(name: str, as_json: bool) -> None:
    """Print configuration to copy into ~/.config/dask.

    slurm: batch jobs (dask-jobqueue) and the Dask panel of JupyterLab; hpc: all settings of this
    package with their defaults.
    """
    path = "slurm/jobqueue.yaml" if name == "slurm" else "hpc.yaml"
    text = files("dask_hpc").joinpath(path).read_text(encoding="utf-8")
    if as_json:
        echo_json(yaml.safe_load(text))
    else:
        click.echo(text, nl=False)
