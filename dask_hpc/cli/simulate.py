"""``dask hpc simulate`` and ``dask hpc compare``: what policies would do to a workload."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dask_hpc.cli.policy_options import make_policies, make_policy, param_option
from dask_hpc.cli.replacing import check_folder, check_plot, check_replace, force_option
from dask_hpc.cli.types import FOLDER, NEW_FILE, assignments
from dask_hpc.cli.workload_options import Setup, workload_options
from dask_hpc.terminal import echo_json, echo_pairs, echo_table, json_option, progress_bar
from dask_hpc_policies.power.view import between

if TYPE_CHECKING:
    from dask_hpc.sim import Machine, Result

#: Metrics in a table, by key.
_COLUMNS = {
    "policy": "POLICY",
    "makespan_s": "MAKESPAN (s)",
    "mean_wait_s": "WAIT (s)",
    "mean_turnaround_s": "TURNAROUND (s)",
    "p95_turnaround_s": "95 % (s)",
    "mean_bounded_slowdown": "SLOWDOWN",
    "utilization": "UTILIZATION",
    "useful_utilization": "USEFUL",
    "expansions": "EXPANSIONS",
    "shrinks": "SHRINKS",
}
#: The same where the machine says what its nodes draw.
_ENERGY_COLUMN = {"energy_j": "ENERGY (J)"}
#: The same where it has a power corridor.
_CORRIDOR_COLUMNS = {
    "corridor_violation_ws": "OUTSIDE (W s)",
    "corridor_outside_s": "OUTSIDE (s)",
    "corridor_departures": "DEPARTURES",
}
#: How a coupled run was split over time.
_SPLIT_COLUMNS = {
    "step": "FROM STEP",
    "t_s": "TIME (s)",
    "in_situ": "IN SITU",
    "in_transit": "IN TRANSIT",
    "nodes": "NODES",
    "helper_cores": "HELPER CORES",
}
#: Jobs of a state, from that state on.
_FROM_NOW_COLUMNS = {
    "id": "JOB",
    "name": "NAME",
    "starts_s": "STARTS IN (s)",
    "ends_s": "ENDS IN (s)",
    "sizes": "NODES",
}


@click.command()
@workload_options
@click.option("--policy", required=True, metavar="POLICY", help="Name of a policy, or path to a YAML file.")
@param_option
@click.option(
    "--output",
    type=FOLDER,
    metavar="FOLDER",
    help="Write tables, plots of nodes and jobs, and the result as JSON there.",
)
@click.option(
    "--trace",
    type=NEW_FILE,
    metavar="FILE",
    help="Write a trace there as a live run does (.jsonl, or .jsonl.gz), for dask hpc replay.",
)
@force_option
@click.option("--profile", is_flag=True, help="Show where the time goes.")
@json_option
def simulate(
    setup: Setup,
    policy: str,
    params: dict[str, str],
    output: Path | None,
    trace: Path | None,
    force: bool,
    profile: bool,
    as_json: bool,
) -> None:
    """Run WORKLOAD under a policy.

    WORKLOAD is a file (SWF, ElastiSim JSON, YAML, sacct output, a recorded trace; .gz may follow),
    builtin:NAME, or the address or scheduler file of a running cluster: the run then goes on from its
    present state, and metrics count from there. Slowdown is bounded with tau = 10 s.
    --list shows the builtin workloads with their options.
    """
    if trace is not None and not trace.name.lower().endswith((".jsonl", ".jsonl.gz")):
        raise click.UsageError(f"--trace {trace}: the name must end in .jsonl or .jsonl.gz")
    made = make_policy(policy, params)
    check_replace(_written(output, trace), force=force, as_json=as_json)
    check_folder(output)
    result = _run(
        *setup.runner(),
        made.name,
        policy=made,
        options=setup.run_options(node_ids=output is not None, file_system_series=output is not None),
        profile=profile,
        trace=trace,
    )
    if trace is not None:
        click.echo(f"trace written to {trace}", err=True)
    try:
        if output is not None:
            _write(result, output)
    finally:
        # whatever became of the files: the run may have taken hours
        if as_json:
            echo_json({**result.to_json(), **({"profile": _profile(result)} if profile else {})})
        else:
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
    help="Name of a policy, or path to a YAML file, maybe with parameters (io-aware:reordering=0.3); give "
    "it once for each.",
)
@assignments("--param", "params", example="step=next", help="A parameter, for every policy that has it.")
@click.option(
    "--plot",
    type=NEW_FILE,
    metavar="FILE",
    help="Write a figure there (png, svg or pdf); needs matplotlib.",
)
@force_option
@json_option
def compare(
    setup: Setup,
    policies: tuple[str, ...],
    params: dict[str, str],
    plot: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Run WORKLOAD under each policy, and compare what comes of it.

    Every policy gets the same jobs, the same malleable ones among them. WORKLOAD may be the address or
    scheduler file of a running cluster, as for simulate.
    """
    made = make_policies(policies, params)
    if plot is not None:
        # before the runs, not after them
        check_plot(plot)
        check_replace([plot], force=force, as_json=as_json)
    run, jobs = setup.runner()
    results = {
        label: _run(run, jobs, label, policy=policy, options=setup.run_options())
        for label, policy in made.items()
    }
    if plot is not None:
        from dask_hpc.sim.results.plots import compare_figure

        compare_figure(list(results.items()), plot)
        click.echo(f"figure written to {plot}", err=True)
    if as_json:
        echo_json(
            {
                "schema": 1,
                "kind": "comparison",
                "runs": [{"label": label, **result.to_json(jobs=False)} for label, result in results.items()],
            }
        )
        return
    told: dict[str, str] = {}
    for label, result in results.items():
        for note in result.workload.notes:
            # what is true of the workload is so under each policy
            shared = all(note in one.workload.notes for one in results.values())
            told.setdefault(note if shared else f"{label}: {note}", note)
    _notes(told)
    rows = [{"policy": label, **result.metrics(jobs=False)} for label, result in results.items()]
    columns = {**_COLUMNS, **(_ENERGY_COLUMN if "energy_j" in rows[0] else {})}
    if "corridor_outside_s" in rows[0]:
        columns |= _CORRIDOR_COLUMNS
    echo_table(rows, columns, "nothing was run")


def _written(output: Path | None, trace: Path | None) -> list[Path]:
    """Files that a run may leave."""
    files = [] if trace is None else [trace]
    if output is not None:
        from dask_hpc.sim.results.outputs import NAMES

        files += [output / name for name in NAMES]
    return files


def _write(result: Result, output: Path) -> None:
    from dask_hpc.sim.results.outputs import PLOTTED_JOBS, write

    written = write(result, output)
    click.echo(f"written to {output}: {', '.join(written)}", err=True)
    if not any(name.endswith(".png") for name in written):
        many = len(result.runs) > PLOTTED_JOBS
        why = (
            f"more than {PLOTTED_JOBS} jobs" if many else "they need matplotlib: pip install 'dask-hpc[plot]'"
        )
        click.echo(f"Note: no plots: {why}", err=True)


def _show(result: Result) -> None:
    found = result.metrics(jobs=False)
    _notes(result.workload.notes)
    echo_pairs(
        [
            ("workload", f"{result.workload.name}, {len(result.workload.jobs)} jobs"),
            ("machine", _machine(result.machine)),
            ("policy", result.policy["policy"]),
            *_corridor(result.machine),
            *((name, value) for name, value in found.items() if value is not None),
        ]
    )
    if result.from_s is not None:
        click.echo()
        echo_table(_from_now(result), _FROM_NOW_COLUMNS, "no job")
    for flow in result.flows:
        click.echo(f"\nflow {flow['flow']}, {len(flow['steps'])} steps, {flow['mode']}")
        names = ("in_situ", "in_transit")
        rows = [one | {name: ", ".join(one[name]) or "-" for name in names} for one in flow["splits"]]
        echo_table(rows, _SPLIT_COLUMNS, "no step")
    if result.counts.refused:
        first = result.refusals[0]
        click.echo(
            f"\n{result.counts.refused} actions could not be carried out; the first: {first.kind} "
            f"{first.job} at {first.t_s:g} s: {first.reason}"
        )


def _machine(machine: Machine) -> str:
    there, most = machine.initial_nodes, f"{machine.nodes} nodes"
    return most if machine.pool is None else f"{there} of {most} at the start"


def _corridor(machine: Machine) -> list[tuple[str, str]]:
    if machine.corridor is None:
        return []
    steps = [
        f"from {t_s:g} s {between(lower_w, upper_w)}" for t_s, lower_w, upper_w in machine.corridor.steps
    ]
    return [("corridor", "; ".join(steps))]


def _from_now(result: Result) -> list[dict[str, Any]]:
    """What will become of the jobs of a state, counted from it."""
    from_s = result.from_s or 0.0
    return [
        {
            "id": run.id,
            "name": run.name,
            "starts_s": None if run.start_s is None else run.start_s - from_s,
            "ends_s": None if run.end_s is None else run.end_s - from_s,
            "sizes": ", ".join(str(nodes) for _, nodes in run.nodes if nodes),
        }
        for run in result.runs
    ]


def _notes(notes: Iterable[str]) -> None:
    for note in notes:
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


def _run(run: Callable[..., Result], jobs: int, name: str, **more: Any) -> Result:
    """Run, and tell on a terminal how many of the jobs have ended."""
    with progress_bar(name) as show:
        result = run(progress=show and (lambda ended: show(ended, jobs)), **more)
        if show:
            show(jobs, jobs)
    return result
