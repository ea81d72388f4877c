"""``dask hpc power``: the models behind the power corridor, usable alone.

Files, or sensors, in, figures out; no cluster is needed. ``-`` is standard input. `corridor` sets that of
a running cluster.
"""

from __future__ import annotations

import csv
import errno
import json
import math
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from dask_hpc.cli.types import FiniteRange
from dask_hpc.terminal import Lines, echo_json, echo_pairs, echo_table, json_option, one_line

if TYPE_CHECKING:
    from dask_hpc.worker.power.figures import Figure

#: A file of text, or standard input.
_TEXT = click.Path(exists=True, dir_okay=False, allow_dash=True)

_PLAN_COLUMNS = {
    "status": "STATUS",
    "nodes": "NODES",
    "start": "START",
    "idle_nodes": "IDLE",
    "off_nodes": "OFF",
    "violation_w": "OUTSIDE (W)",
    "guaranteed_upper": "BELOW UPPER",
    "guaranteed_lower": "ABOVE LOWER",
    "cpu_s": "CPU (s)",
    "reason": "REASON",
}


@click.group()
def power() -> None:
    """Measure, solve, forecast, fit or set a power corridor.

    Each command has --json.
    """


@power.command()
@click.argument("problems", metavar="JSONL", type=_TEXT)
@click.option(
    "--solver",
    type=click.Choice(["highs", "cbc", "enumerate"]),
    default="highs",
    show_default=True,
    help="Who looks for the best allocation; enumerate looks at all of them, for small machines.",
)
@click.option(
    "--limit",
    type=FiniteRange(0, 86_400, min_open=True),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for the solver, for each program; what is known then is given.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value a line instead of text.")
def solve(problems: str, solver: str, limit: float, as_json: bool) -> None:
    """Find nodes for jobs so that a machine draws what it may.

    JSONL holds a JSON object a line: nodes, lower_w, upper_w, idle_w, and maybe margin_w, off_w,
    max_off_nodes, rigid {nodes, min_w, max_w}, waiting [jobs, the first one first], jobs [{id, nodes,
    min_nodes, max_nodes, constraint, min_w, max_w}], several (start all waiting ones that fit). min_w and
    max_w of a job are watts a node; in place of them table [[nodes, min, max], ...] has the watts of the
    whole job at measured sizes. Those of rigid are the watts of all of it.

    First comes the least violation, then the fewest unused nodes, then the least movement. status is
    infeasible when no allocation is inside: the nearest one is given, and the reason.

    Lines that are right are answered whatever the others are. One that is wrong has in its place a row of
    status error and the reason, where any is right; with --json always an object with line and error. Each
    answer comes as it is found. The exit code is 1 when a line is wrong, and the first reason is said.
    """
    from dask_hpc.processes import load_solver
    from dask_hpc_policies.power.checks import ProgramError
    from dask_hpc_policies.power.program import solve as find
    from dask_hpc_policies.power.program_json import from_json

    # rows of a table that has no right one yet, and is none before
    held: list[dict[str, Any]] = []
    wrong: list[str] = []
    read, table = 0, Lines(_PLAN_COLUMNS)
    load_solver()
    with _opened(problems) as (file, _):
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            row: dict[str, Any]
            try:
                problem, began_s = from_json(_object(line)), _cpu_s()
                plan = find(problem, solver, limit)  # type: ignore[arg-type]
                row = {**plan.to_json(problem.several), "cpu_s": round(_cpu_s() - began_s, 6)}
            except ValueError as error:
                # the others are good all the same
                wrong.append(f"{problems}, line {number}: {error}")
                row = {"line": number, "error": one_line(str(error))}
            read += 1
            if as_json:
                click.echo(json.dumps(row, allow_nan=False))
                continue
            held.append(row)
            if len(wrong) < read:
                for one in held:
                    table.add(_cells(one))
                held.clear()
        if not read:
            raise ProgramError("no program in it; give one JSON object a line")
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise click.ClickException(one_line(wrong[0]) + more)


@power.command()
@click.argument("samples", metavar="CSV", type=_TEXT)
@click.option(
    "--horizon",
    required=True,
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="So many samples ahead.",
)
@click.option(
    "--season",
    type=click.IntRange(0, 10_000),
    metavar="N",
    help="Samples after which the series repeats itself, 0: never; without it, what the series shows.",
)
@json_option
def forecast(samples: str, horizon: int, season: int | None, as_json: bool) -> None:
    """Forecast the watts of the next samples, the least and the most of them.

    CSV has the columns t_s and watts, times rising. Models are fitted to the last 600 samples; the one that
    was least wrong of late is taken. mape is each model's mean error as a share of the watts.
    """
    from dask_hpc_policies.power.forecast import forecast as expect
    from dask_hpc_policies.power.forecast import load_models

    with _opened(samples) as (file, where):
        columns = _columns(file, ("t_s", "watts"), where)
        load_models()
        began_s = _cpu_s()
        with warnings.catch_warnings():
            # of searches that end early: the errors of the models are printed
            warnings.simplefilter("ignore")
            found = expect(columns["t_s"], columns["watts"], horizon, season)
        cpu_s = _cpu_s() - began_s
    row = {
        "model": found.model,
        "mean_w": list(found.mean_w),
        "min_w": found.min_w,
        "max_w": found.max_w,
        "mape": dict(found.mape),
        "cpu_s": round(cpu_s, 6),
        "step_s": found.step_s,
        "season": found.season,
        "reason": found.reason,
    }
    if as_json:
        echo_json(row)
        return
    told = {name: value for name, value in row.items() if value is not None}
    told["mean_w"] = " ".join(f"{value:.0f}" for value in found.mean_w)
    told["mape"] = ", ".join(f"{name} {error:.2%}" for name, error in found.mape.items()) or "-"
    echo_pairs(told.items())


@power.command()
@click.argument("points", metavar="CSV", type=_TEXT)
@json_option
def fit(points: str, as_json: bool) -> None:
    """Fit what a node draws at a load: idle watts and a curve that never falls.

    CSV has the columns cpu_load (in %, 0 to 100) and rapl_power (in W). curve holds pairs of load (0 to 1)
    and watts; error is the mean miss at points left out, a share of the largest watts.
    """
    from dask_hpc_policies.power.fit import FitError, fit_curve

    with _opened(points) as (file, where):
        columns = _columns(file, ("cpu_load", "rapl_power"), where)
        for number, load in zip(columns["line"], columns["cpu_load"], strict=True):
            if not 0 <= load <= 100:
                where["line"] = int(number)
                raise FitError(f"cpu_load is {load:g}; allowed: 0 to 100 (%)")
        found = fit_curve([load / 100 for load in columns["cpu_load"]], columns["rapl_power"])
    if as_json:
        echo_json(
            {"curve": [list(point) for point in found.points], "error": found.error, "idle_w": found.idle_w}
        )
        return
    echo_table(
        [{"load": load, "watts": value} for load, value in found.points],
        {"load": "LOAD", "watts": "W"},
        "no curve",
    )
    click.echo()
    echo_pairs([("idle_w", found.idle_w), ("error", f"{found.error:.1%} of the largest, points left out")])


@power.command()
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/"),
    show_default=True,
    metavar="DIR",
    help="A copy of this or another machine's /sys, or what it lies in; sensors of the kernel alone.",
)
@click.option(
    "--seconds",
    type=FiniteRange(0.01, 3600),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Over which counters are read.",
)
@json_option
def sensors(root: Path, seconds: float, as_json: bool) -> None:
    """Say what this machine draws, and what each source of it says.

    label is measured, modelled (by the load) or unavailable, with the reason and a remedy. The source is
    the one that is set (hpc.power.source), with the settings of this node.
    """
    from dask_hpc.worker.node import node_settings
    from dask_hpc.worker.power.look import look

    found = look(node_settings(), seconds, root)
    rows = [_sensor(figure) for figure in found.sources]
    if as_json:
        echo_json({**_sensor(found.figure), "sources": rows})
        return
    chosen = found.figure
    told = "unknown" if chosen.watts is None else f"{chosen.watts:.1f} W"
    told_pairs = [("power", told), ("label", chosen.label), ("source", chosen.source)]
    echo_pairs([*told_pairs, *((name, text) for name, text in (("reason", chosen.reason),
                ("remedy", chosen.remedy)) if text)])  # fmt: skip
    click.echo()
    shown = [{**row, "watts": "-" if row["watts"] is None else f"{row['watts']:.1f}"} for row in rows]
    echo_table(shown, {"source": "SOURCE", "watts": "W", "label": "LABEL", "reason": "REASON"}, "no source")


def _sensor(figure: Figure) -> dict[str, Any]:
    """One figure as JSON."""
    return {
        "watts": figure.watts,
        "label": figure.label,
        "source": figure.source,
        "reason": figure.reason,
        "remedy": figure.remedy,
    }


#: The line that is being read, under the name ``line``; None when it is not about one.
_Where = dict[str, int | None]


@contextmanager
def _opened(path: str) -> Iterator[tuple[IO[str], _Where]]:
    """A file; what is wrong with it is one line, which begins with the name and the number of the line."""
    where: _Where = {"line": None}
    try:
        if path == "-" and sys.stdin is None:
            raise ValueError("standard input is closed")
        with click.open_file(path, encoding="utf-8", errors="replace") as file:
            yield file, where
    except ValueError as error:
        line = f", line {where['line']}" if where["line"] else ""
        raise click.ClickException(one_line(f"{path}{line}: {error}")) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EPIPE):  # that is about the output
            raise
        raise click.ClickException(one_line(f"{path} cannot be read: {error.strerror or error}")) from None


def _columns(file: IO[str], names: tuple[str, ...], where: _Where) -> Mapping[str, list[float]]:
    """Columns of numbers by name, and the line of each row as ``line``."""
    reader = csv.reader(file)
    heading = [name.strip().lstrip("\ufeff") for name in next(_lines(reader), [])]
    if not heading:
        raise ValueError(f"the file is empty; give a heading with {', '.join(names)} and rows below it")
    missing = [name for name in names if name not in heading]
    if missing:
        raise ValueError(
            f"no column {missing[0]!r}; there are {', '.join(heading)[:200]}; needed: {', '.join(names)}"
        )
    at = {name: heading.index(name) for name in names}
    found: dict[str, list[Any]] = {"line": [], **{name: [] for name in names}}
    for row in _lines(reader):
        where["line"] = reader.line_num
        for name in names:
            found[name].append(_number(name, row[at[name]] if at[name] < len(row) else ""))
        found["line"].append(reader.line_num)
    where["line"] = None
    if not found["line"]:
        raise ValueError(f"no row below the heading; give values of {', '.join(names)}")
    return found


def _lines(reader: Any) -> Iterator[list[str]]:
    """Rows that are not blank."""
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise ValueError(f"no CSV: {error}") from None
        if row is None:
            return
        if any(cell.strip() for cell in row):
            yield row


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} is {text[:80]!r}; give a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{name} is {text.strip()}; give a finite number, or leave the row out")
    return value


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """An answer as a row of a table."""
    if "error" in row:
        return {"status": "error", "reason": f"line {row['line']}: {row['error']}"}
    return {**row, "nodes": " ".join(f"{id}:{nodes}" for id, nodes in row["nodes"].items())}


def _object(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}; give one object a line") from None
    except RecursionError:
        raise ValueError("no JSON that can be read: it is nested too deep") from None


def _cpu_s() -> float:
    """CPU seconds of this process and of those that it waited for: a solver may be one."""
    times = time.process_time()
    import resource

    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return times + spent.ru_utime + spent.ru_stime
