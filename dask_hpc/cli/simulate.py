"""``dask hpc simulate`` and ``dask hpc compare``: what policies would do to a workload."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dask_hpc.cli.output import echo_json, echo_pairs, echo_table, json_option
from dask_hpc.cli.policy_options import make_policy, param_option
from dask_hpc.cli.workload_options import Setup, workload_options

if TYPE_CHECKING:
    from dask_hpc.sim import Result, Workload

#: Metrics in a table, by key.
_COLUMNS = {
    "policy": "POLICY",
    "makespan_s": "MAKESPAN (s)",
    "mean_wait_s": "WAIT (s)",
    "mean_turnaround_s": "TURNAROUND (s)",
    "mean_bounded_slowdown": "SLOWDOWN",
    "utilization": "UTILIZATION",
    "useful_utilization": "USEFUL",
    "expansions": "EXPANSIONS",
    "shrinks": "SHRINKS",
}


@click.command()
@workload_options
@click.option("--policy", required=True, metavar="POLICY", help="Name of a policy, or path to a YAML file.")
@param_option
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write tables, plots of nodes and jobs, and the result as JSON there.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a trace there as a live run does (.jsonl, or .jsonl.gz), for dask hpc replay.",
)
@click.option("--profile", is_flag=True, help="Show where the time goes.")
@json_option
def simulate(
    setup: Setup,
    policy: str,
    params: dict[str, str],
    output: Path | None,
    trace: Path | None,
    profile: bool,
    as_json: bool,
) -> None:
    """Run WORKLOAD under a policy.

    WORKLOAD is a file (SWF, ElastiSim JSON, YAML, sacct output, a recorded trace; .gz may follow) or
    builtin:NAME. Slowdown is bounded with tau = 10 s.
    """
    from dask_hpc.sim import simulate as run

    made = make_policy(policy, params)
    workload, machine = setup.load()
    options = setup.run_options(node_ids=output is not None, file_system_series=output is not None)
    result = run(
        workload,
        made,
        machine=machine,
        options=options,
        profile=profile,
        progress=_progress(workload, made.name),
        trace=trace,
    )
    if trace is not None:
        click.echo(f"trace written to {trace}", err=True)
    if output is not None:
        from dask_hpc.sim.outputs import write

        written = write(result, output)
        click.echo(f"written to {output}: {', '.join(written)}", err=True)
    if as_json:
        echo_json({**result.to_json(), **({"profile": _profile(result)} if profile else {})})
        return
    _show(result)
    if profile:
        click.echo()
        echo_pairs(_profile(result).items())


@click.command()
@workload_options
@click.option(
    "--policy",
    "policies",
    required=True,
    multiple=True,
    metavar="POLICY",
    help="Name of a policy, or path to a YAML file; give it twice or more.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a figure there (png, svg or pdf); needs matplotlib.",
)
@json_option
def compare(setup: Setup, policies: tuple[str, ...], plot: Path | None, as_json: bool) -> None:  # fmt: skip
    """Run WORKLOAD under several policies.

    Every policy gets the same jobs, the same malleable ones among them.
    """
    from dask_hpc.sim import simulate as run

    made = [make_policy(policy, {}) for policy in policies]
    workload, machine = setup.load()
    results = []
    for policy in made:
        progress = _progress(workload, policy.name)
        results.append(run(workload, policy, machine=machine, options=setup.run_options(), progress=progress))
    if plot is not None:
        from dask_hpc.sim.plots import compare_figure

        compare_figure(list(zip(policies, results, strict=True)), plot)
        click.echo(f"figure written to {plot}", err=True)
    if as_json:
        echo_json(
            {
                "schema": 1,
                "kind": "comparison",
                "runs": [result.to_json(jobs=False) for result in results],
            }
        )
        return
    _notes(workload)
    rows = [
        {"policy": name, **result.metrics(jobs=False)} for name, result in zip(policies, results, strict=True)
    ]
    echo_table(rows, _COLUMNS, "nothing was run")


def _show(result: Result) -> None:
    found = result.metrics(jobs=False)
    _notes(result.workload)
    echo_pairs(
        [
            ("workload", f"{result.workload.name}, {len(result.workload.jobs)} jobs"),
            ("machine", f"{result.machine.nodes} nodes"),
            ("policy", result.policy["policy"]),
            *((name, value) for name, value in found.items() if value is not None),
        ]
    )
    if result.counts.refused:
        first = result.refusals[0]
        click.echo(
            f"\n{result.counts.refused} actions could not be carried out; the first: {first.kind} "
            f"{first.job} at {first.t_s:g} s: {first.reason}"
        )


def _notes(workload: Workload) -> None:
    for note in workload.notes:
        click.echo(f"Note: {note}", err=True)


def _profile(result: Result) -> dict[str, Any]:
    counts = result.counts
    jobs = len(result.workload.jobs)
    return {
        "engine_s": result.run_s,
        "of_which_policy_s": result.policy_s,
        "jobs_per_s": jobs / result.run_s if result.run_s else None,
        "events": counts.events,
        "moments": counts.moments,
        "policy_calls": counts.policy_calls,
        "queue_scans": counts.queue_scans,
        "policy_calls_between_events": counts.idle_policy_calls,
        "queue_scans_between_events": counts.idle_queue_scans,
    }


def _progress(workload: Workload, name: str) -> Callable[[int], None] | None:
    """Tells on a terminal how far a long run is."""
    jobs = len(workload.jobs)
    if not sys.stderr.isatty() or jobs < 5000:
        return None

    def show(ended: int) -> None:
        click.echo(f"\r{name}: {ended} of {jobs} jobs", err=True, nl=False)
        if ended + 1000 > jobs:
            click.echo("\r" + " " * 60 + "\r", err=True, nl=False)

    return show
