"""``dask hpc study``: many scenarios, one table, and whether what is expected holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from dask_hpc.cli.output import echo_json, json_option, one_line


def _overrides(_ctx: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    from dask_hpc.sim.study_settings import parse_values

    found = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not (name and equals and text):
            raise click.BadParameter(f"{value!r} is not NAME=VALUE, such as seed=0..4 or option.jobs=500")
        found[name.replace("-", "_")] = parse_values(text)
    return found


def _names(ctx: click.Context, _option: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from dask_hpc.sim.study import builtin_studies, load_study

    for name in builtin_studies():
        click.echo(f"builtin:{name.ljust(16)} {load_study(f'builtin:{name}').description}")
    ctx.exit()


@click.command()
@click.argument("study", metavar="FILE")
@click.option(
    "--set",
    "overrides",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_overrides,
    help="Another value, a,b,c or 0..9 of a setting, such as seed or option.jobs.",
)
@click.option("--fast", is_flag=True, help="The study's own small settings.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Processes; without it, as many as there are cores.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write all runs as JSON and the table as CSV there.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a figure there (png, svg or pdf); needs matplotlib.",
)
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_names,
    help="Show the builtin studies.",
)
@json_option
@click.pass_context
def study(
    ctx: click.Context,
    study: str,
    overrides: dict[str, Any],
    fast: bool,
    jobs: int | None,
    output: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Run the study in FILE, or builtin:NAME.

    Many scenarios in parallel processes, one table, published figures beside ours. Exit code 1 says that a
    run failed or that a condition of the study does not hold; each has a line on stderr.
    """
    from dask_hpc.sim.study import load_study, run_study

    chosen = load_study(study, fast=fast, overrides=overrides)
    if plot is not None:
        # before the runs, not after them
        from dask_hpc.sim.study_figure import study_figure
    bar = _Bar(chosen.name)
    try:
        found = run_study(chosen, jobs=jobs, progress=bar if sys.stderr.isatty() else None)
    finally:
        bar.clear()
    if output is not None:
        from dask_hpc.sim.study_table import write

        click.echo(f"written to {output}: {', '.join(write(found, output))}", err=True)
    if plot is not None:
        study_figure(found, plot)
        click.echo(f"figure written to {plot}", err=True)
    if as_json:
        echo_json(found.to_json(runs=False))
    else:
        click.echo(found.table())
    for line in found.failures:
        click.echo(f"Error: {one_line(line)}", err=True)
    if found.failures:
        ctx.exit(1)


class _Bar:
    """A progress bar on a terminal."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.shown = False

    def __call__(self, done: int, all: int) -> None:
        filled = 30 * done // all
        text = f"{self.name}: [{'#' * filled}{'-' * (30 - filled)}] {done} of {all} runs"
        click.echo(f"\r{text}", err=True, nl=False)
        self.shown = True

    def clear(self) -> None:
        """Leave the line empty."""
        if self.shown:
            click.echo("\r" + " " * 78 + "\r", err=True, nl=False)
