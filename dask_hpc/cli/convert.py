"""``dask hpc convert``: any workload as a file in our YAML format."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import click

from dask_hpc.cli.replacing import check_replace, force_option
from dask_hpc.cli.types import NEW_FILE
from dask_hpc.cli.workload_options import Setup, source_options
from dask_hpc.terminal import echo_json, json_option, one_line


@click.command()
@source_options
@click.argument("out", type=NEW_FILE)
@force_option
@json_option
def convert(setup: Setup, out: Path, force: bool, as_json: bool) -> None:
    """Write WORKLOAD as YAML.

    The file OUT can be changed by hand and handed on, and is a workload itself. WORKLOAD is a file or
    builtin:NAME, as for simulate. What was left out or changed, with the seed of what was drawn, is
    noted at the head of OUT.
    """
    from dataclasses import replace

    from dask_hpc._version import __version__
    from dask_hpc.sim.formats.yaml_text import dump

    if out.suffix not in (".yaml", ".yml"):
        raise click.UsageError(f"OUT is {str(out)!r}; its name must end in .yaml or .yml")
    if "://" in setup.source:
        raise click.UsageError("WORKLOAD is a file or builtin:NAME here; a running cluster has no workload")
    check_replace([out], force=force, as_json=as_json)
    workload, machine = setup.load()
    notes = [f"converted from {setup.source} by dask-hpc {__version__}", *workload.notes]
    if workload.seed is not None:
        notes.append(f"generated from seed {workload.seed}")
    try:
        text = dump(replace(workload, machine=machine))
    except ValueError as error:
        raise click.ClickException(one_line(str(error))) from None
    _write(out, "".join(f"# {one_line(note)}\n" for note in notes) + text)
    if as_json:
        echo_json({"written": str(out), "jobs": len(workload.jobs), "nodes": machine.nodes, "notes": notes})
        return
    for note in workload.notes:
        click.echo(f"Note: {note}", err=True)
    click.echo(f"{len(workload.jobs)} jobs written to {out}")


def _write(out: Path, text: str) -> None:
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
        os.replace(part, out)
    except OSError as error:
        raise click.ClickException(f"{out} cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):  # where none could be made, none is there
            part.unlink()
