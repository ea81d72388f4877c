"""``dask hpc study``: many scenarios, one table, and whether what is expected holds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from dask_hpc.terminal import echo_json, json_option, one_line


def _overrides(_ctx: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    from dask_hpc.sim.study.settings import parse_values

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
    from dask_hpc.sim.study.study import builtin_studies, load_study

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
    from dask_hpc.sim.study.study import load_study, run_study

    chosen = load_study(study, fast=fast, overrides=overrides)
    if plot is not None:
        # before the runs, not after them
        from dask_hpc.sim.study.figure import study_figure
    with _progress(chosen.name) as progress:
        found = run_study(chosen, jobs=jobs, progress=progress)
    if output is not None:
        from dask_hpc.sim.study.study import write

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


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """Shows on a terminal how many runs are done."""
    if not sys.stderr.isatty():
        yield None
        return
    with ExitStack() as stack:
        bars: list[Any] = []

        def show(done: int, all: int) -> None:
            if not bars:
                bar = click.progressbar(length=all, label=name, show_pos=True, file=sys.stderr)
                bars.append(stack.enter_context(bar))
            bars[0].update(1)

        yield show
