"""The main job: play the acts on stock Dask and under a policy, compare, show, report."""

from __future__ import annotations

import io
import os
import sys
import time
from functools import partial
from pathlib import Path

from dask_hpc import capabilities
from dask_hpc.demo import summary
from dask_hpc.demo.clusters import check_slurm, local_cluster, slurm_cluster
from dask_hpc.demo.parts import DemoRun, find
from dask_hpc.demo.progress import ProgressDisplay
from dask_hpc.demo.rounds import chosen, run_managed, run_stock
from dask_hpc.demo.stage import NODES
from dask_hpc.errors import ConfigError
from dask_hpc.report.figure import node_map_figure
from dask_hpc.report.page import write_report
from dask_hpc.terminal import echo_json
from dask_hpc.trace.files import write_trace
from dask_hpc_policies import registry

DEFAULT_POLICY = "fair"
#: Times and amounts of work are multiplied by this in a fast run.
FAST_SCALE = 0.2
DEFAULT_REPORT = Path("dask-hpc-demo.html")
#: Exit code of a command that was interrupted from the keyboard.
INTERRUPTED = 130


def main(
    policy: str | None = None,
    fast: bool = False,
    report: str | os.PathLike[str] | None = None,
    trace: str | os.PathLike[str] | None = None,
    as_json: bool = False,
    slurm: bool = False,
    plot: str | os.PathLike[str] | None = None,
    repeat: int = 1,
    only: str | None = None,
) -> int:
    """Run the demo; progress goes to stderr, the summary to stdout.

    Parameters
    ----------
    policy
        Name or YAML file of the policy; ``fair`` when None.
    fast
        Less of the same.
    report, trace
        Where the HTML report and the trace go, of the last round under the policy;
        ``dask-hpc-demo.html`` and nowhere when None.
    as_json
        Print the summary as one JSON value instead of a table.
    slurm
        Play the acts under the policy on jobs of Slurm, as ``jobqueue.slurm`` of Dask's configuration
        describes them; stock Dask runs on this machine all the same, and no walltime ends.
    plot
        Where the node map goes as a figure; nowhere when None.
    repeat
        How many rounds; the table then says the spread.
    only
        Name of the one act that is played; all usual ones when None.

    Returns
    -------
    int
        Exit code: 0; 1 when a part of the demo has found what is not as it should be, such as a result that
        differs from that of stock Dask; 130 when interrupted.

    Raises
    ------
    ConfigError
        Before anything is started, for an unknown policy or act, or a path that cannot be written.
    DemoError
        When a workload fails or does not end.
    """
    # parts of the demo are theirs to bring
    capabilities.load()
    policy = policy or DEFAULT_POLICY
    report = Path(report or DEFAULT_REPORT)
    _check_policy(policy)
    acts = chosen(only)
    trace = None if trace is None else Path(trace)
    plot = None if plot is None else Path(plot)
    for path in (report, trace, plot):
        if path is not None:
            _check_writable(path)
    if plot is not None:
        _check_plot(plot)
    if slurm:
        check_slurm()
    progress = ProgressDisplay(sys.stderr or io.StringIO())
    scale = FAST_SCALE if fast else 1.0
    begin = time.monotonic()
    stock, managed = [], []
    try:
        for number in range(1, repeat + 1):
            which = "" if repeat == 1 else f", round {number} of {repeat}"
            progress.say(f"1/2  stock Dask on {NODES} worker processes{which}")
            stock.append(run_stock(scale, progress, only))
            progress.say(f"2/2  the same under the policy {policy}{which}")
            make = partial(slurm_cluster, progress) if slurm else local_cluster
            given, records = run_managed(scale, policy, progress, make, only)
            managed.append(given)
    except KeyboardInterrupt:
        progress.say("interrupted; all processes are stopped")
        return INTERRUPTED
    ran = DemoRun(stock=stock, managed=managed, records=records)
    # parts of others may look at any of the usual acts
    found = [*(act.verdict(ran) for act in acts), *(find(ran) if only is None else ())]
    wall_s = time.monotonic() - begin
    notes = {title: text for part in found for title, text in part.notes.items()}
    write_report(report, records, title=f"dask hpc demo: {policy}", notes=notes)
    if trace is not None:
        write_trace(trace, records)
    if plot is not None:
        node_map_figure(records, title=f"dask hpc demo: {policy}").savefig(plot, dpi=120)
    if as_json:
        echo_json(summary.as_json(policy, ran, found, wall_s, report, trace))
    else:
        summary.print_text(ran, found, wall_s, report)
    errors = [error for part in found for error in part.errors]
    for error in errors:
        print(f"Error: {error}; the report {report} shows the run", file=sys.stderr)
    return 1 if errors else 0


def _check_policy(policy: str) -> None:
    try:
        registry.create(policy)
    except (ValueError, LookupError, OSError) as error:
        raise ConfigError(str(error.args[0] if error.args else error)) from None


def _check_plot(path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("a plot needs matplotlib: pip install 'dask-hpc[plot]'") from None
    known = Figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise ConfigError(f"cannot plot into {path}: choose a name that ends in .png, .svg or .pdf")


def _check_writable(path: Path) -> None:
    folder = path.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or path.is_dir():
        raise ConfigError(f"cannot write {path}: choose a file in a folder that exists and can be written")
