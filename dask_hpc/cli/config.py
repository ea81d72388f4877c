"""``dask hpc config``: ready configuration to copy."""

from __future__ import annotations

from importlib.resources import files

import click
import yaml

from dask_hpc.terminal import echo_json, json_option


@click.command()
@click.argument("name", type=click.Choice(["slurm", "hpc"]))
@click.option("--schema", is_flag=True, help="What the file may hold (JSON schema); hpc alone.")
@json_option
def config(name: str, schema: bool, as_json: bool) -> None:
    """Print configuration to copy into ~/.config/dask.

    slurm: batch jobs (dask-jobqueue) and the Dask panel of JupyterLab; hpc: all settings, what each does,
    what it takes and its default, those of other installed packages included.
    """
    from dask_hpc.config import text as settings_text

    if schema and name != "hpc":
        raise click.UsageError("--schema is about hpc; leave it out")
    if name == "slurm":
        text = files("dask_hpc").joinpath("slurm/jobqueue.yaml").read_text(encoding="utf-8")
    else:
        text = settings_text.schema_text() if schema else settings_text.yaml_text()
    if as_json:
        echo_json(yaml.safe_load(text))
    else:
        click.echo(text, nl=False)
