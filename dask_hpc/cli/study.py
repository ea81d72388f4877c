"""``dask hpc study``: many scenarios, one table, and whether what is expected holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dask_hpc.cli.replacing import check_folder, check_plot, check_replace, force_option
from dask_hpc.cli.types import FOLDER, NEW_FILE, SOURCE, assignments, showing, told_of_options
from dask_hpc.terminal import echo_json, json_option, one_line, progress_bar


def _values(text: str) -> Any:
    from dask_hpc.sim.study.settings import parse_values

    return parse_values(text)


def _names() -> None:
    from dask_hpc.sim.study.study import builtin_studies, load_study

    for name in builtin_studies():
        click.echo(f"builtin:{name.ljust(16)} {load_study(f'builtin:{name}').description}")


@click.command()
@click.argument("study", metavar="FILE", type=SOURCE)
@assignments(
    "--set",
    "overrides",
    example="seed=0..4 or option.jobs=500",
    parse=_values,
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
    type=FOLDER,
    metavar="FOLDER",
    help="Write all runs as JSON and the table as CSV there.",
)
@force_option
@click.option(
    "--plot",
    type=NEW_FILE,
    metavar="FILE",
    help="Write a figure there (png, svg or pdf); needs matplotlib.",
)
@showing(_names, "Show the builtin studies.")
@json_option
@click.pass_context
def study(
    ctx: click.Context,
    study: str,
    overrides: dict[str, Any],
    fast: bool,
    jobs: int | None,
    output: Path | None,
    force: bool,
    plot: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Run the study in FILE, or builtin:NAME.

    Many scenarios in parallel processes, one table, published figures beside ours. Exit code 1 says that a
    run failed or that a condition of the study does not hold; each has a line on stderr. Ctrl-C ends the
    runs: what is done is shown, and written where no file is replaced, conditions are not checked, and the
    exit code is 1.
    """
    from dask_hpc.sim.study.study import WRITTEN, StudyInterrupted, load_study, run_study

    with told_of_options():
        chosen = load_study(study, fast=fast, overrides=overrides)
    files = [] if output is None else [output / name for name in WRITTEN]
    if plot is not None:
        # before the runs, not after them
        check_plot(plot, output)
        files.append(plot)
    check_replace(files, force=force, as_json=as_json)
    check_folder(output)
    earlier = [path for path in files if path.exists()]
    interrupted = ""
    try:
        with progress_bar(chosen.name) as show:
            found = run_study(chosen, jobs=jobs, progress=show)
    except StudyInterrupted as error:
        found, interrupted = error.found, str(error)
    # a part of a study does not take the place of a whole one
    writes = not (interrupted and earlier)
    if not writes:
        click.echo(f"not written: {earlier[0]} is of an earlier study and stays", err=True)
    try:
        if output is not None and writes:
            from dask_hpc.sim.study.study import write

            click.echo(f"written to {output}: {', '.join(write(found, output))}", err=True)
        if plot is not None and writes:
            from dask_hpc.sim.study.figure import study_figure

            study_figure(found, plot)
            click.echo(f"figure written to {plot}", err=True)
    finally:
        # whatever became of the files: the runs may have taken hours
        if as_json:
            echo_json(found.to_json(runs=False))
        else:
            click.echo(found.table())
        failures = [*found.failures, *([interrupted] if interrupted else ())]
        for line in failures:
            click.echo(f"Error: {one_line(line)}", err=True)
    if failures:
        ctx.exit(1)
