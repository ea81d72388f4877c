"""``dask hpc status|jobs|decisions|io|why|cancel``: a running cluster, asked from outside."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from dask_hpc.cli.connection import connected, connection_options
from dask_hpc.terminal import cell, echo_json, echo_pairs, echo_table, json_option

_JOB_COLUMNS = {
    "id": "ID",
    "name": "NAME",
    "state": "STATE",
    "kind": "KIND",
    "nodes": "NODES",
    "range": "MIN-MAX",
    "priority": "PRIORITY",
    "wait_s": "WAIT S",
    "turnaround_s": "TURNAROUND S",
    "unfinished_tasks": "TASKS LEFT",
    "resizes": "RESIZES",
    "reason": "REASON",
}
_DECISION_COLUMNS = {
    "t_s": "TIME S",
    "trigger": "CALLED FOR",
    "action": "ACTION",
    "job": "JOB",
    "nodes": "NODES",
    "result": "RESULT",
    "reason_code": "CODE",
    "reason": "REASON",
}
_TARGET_COLUMNS = {
    "target": "TARGET",
    "kind": "KIND",
    "read_bytes": "READ BYTES",
    "write_bytes": "WRITTEN BYTES",
    "busy_s": "BUSY S",
    "bandwidth_bytes_s": "BYTES/S",
    "tokens": "TOKENS",
    "writers": "TASKS AT IT",
}
_NO_IO = "nothing was measured: see dask_hpc.metered, and measure_io of a job"
_IO_JOB_COLUMNS = {
    "id": "ID",
    "read_bytes": "READ BYTES",
    "write_bytes": "WRITTEN BYTES",
    "io_s": "I/O S",
    "task_s": "TASKS S",
    "intensity": "SHARE",
    "quality": "MEASURED",
}
_NODE_COLUMNS = {
    "id": "NODE",
    "state": "STATE",
    "job": "JOB",
    "workers": "WORKERS",
    "nthreads": "THREADS",
    "role": "ROLE",
    "domain": "DOMAIN",
    "walltime_left_s": "WALLTIME LEFT S",
}


@click.command()
@connection_options
@json_option
def status(as_json: bool, **where: Any) -> None:
    """Show policy, nodes and jobs of a running cluster."""
    import dask_hpc

    with connected(**where) as client:
        found = dask_hpc.runtime(client).status()
    if as_json:
        echo_json(found)
    else:
        # what is nested, beside the sections of parts, is for programs: --json has it all
        # and what is empty is no news
        flat = {
            name: value for name, value in found.items() if not isinstance(value, dict | list) and value != ""
        }
        echo_pairs(
            [("policy", _policy(found["policy"])), *((name.replace("_", " "), flat[name]) for name in flat)]
        )
        click.echo()
        for name in found["sections"]:
            told = found[name] if isinstance(found[name], dict) else {"": found[name]}
            tables = [value for value in told.values() if _is_table(value)]
            pairs = [(key.replace("_", " "), value) for key, value in told.items() if not _is_table(value)]
            click.echo(f"{name.replace('_', ' ')}:")
            echo_pairs(pairs, indent="  ")
            for rows in tables:
                echo_table(rows, {key: key.replace("_", " ").upper() for key in rows[0]}, "")
            click.echo()
        asleep = "asleep: no job is active, and Dask works as without dask_hpc"
        echo_table(found["nodes"], _NODE_COLUMNS, "no nodes" if found["awake"] else asleep)


@click.command()
@connection_options
@json_option
def jobs(as_json: bool, **where: Any) -> None:
    """List the jobs of a running cluster."""
    import dask_hpc

    with connected(**where) as client:
        found = dask_hpc.runtime(client).jobs()
    if as_json:
        echo_json(found)
    else:
        echo_table([_job_row(job) for job in found], _JOB_COLUMNS, "no job has been declared")


@click.command()
@click.option("--job", metavar="JOB", help="Only decisions about this job (id or name).")
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Latest decisions shown."
)
@connection_options
@json_option
def decisions(job: str | None, limit: int, as_json: bool, **where: Any) -> None:
    """List the latest decisions of a running cluster."""
    import dask_hpc

    with connected(**where) as client:
        found = dask_hpc.runtime(client).decisions(job=job, limit=limit)
    if as_json:
        echo_json(found)
    else:
        echo_table(found, _DECISION_COLUMNS, "no decision has been taken" + (f" about {job}" if job else ""))


@click.command()
@connection_options
@json_option
def io(as_json: bool, **where: Any) -> None:
    """Show what jobs read and write, and how many tasks may.

    Through stores that are dask_hpc.metered, and in jobs with measure_io=True also past them. Seconds are
    those in which a task was busy with it, summed over tasks. --json has the laws by nodes, too.
    """
    import dask_hpc

    with connected(**where) as client:
        found = dask_hpc.runtime(client).io()
    if as_json:
        echo_json(found)
        return
    echo_table(found["targets"], _TARGET_COLUMNS, _NO_IO)
    if found["jobs"]:
        click.echo()
        echo_table(found["jobs"], _IO_JOB_COLUMNS, "")


@click.command()
@click.argument("job")
@connection_options
@json_option
def why(job: str, as_json: bool, **where: Any) -> None:
    """Say why a job waits, and what would start it earlier.

    JOB is an id or a name. All times come from runs of the simulator from the present state.
    """
    import dask_hpc

    with connected(**where) as client:
        runtime = dask_hpc.runtime(client)
        row = runtime.find(job).status()
        found = runtime.find(row["id"]).why_waiting()
    if as_json:
        echo_json(None if found is None else asdict(found))
    elif found is None:
        click.echo(f"{cell(row['id'])} does not wait: it is {row['state']}")
    else:
        click.echo("\n".join(cell(line) for line in str(found).splitlines()))


@click.command()
@click.argument("job")
@connection_options
@json_option
def cancel(job: str, as_json: bool, **where: Any) -> None:
    """Cancel a job of a running cluster.

    JOB is an id or a name. What it runs is cancelled and its nodes are freed.
    """
    import dask_hpc

    with connected(**where) as client:
        row = dask_hpc.runtime(client).cancel(job, reason="cancelled from the command line")
    if row["state"] != "cancelled":
        raise click.ClickException(f"{cell(row['id'])} cannot be cancelled: it is {row['state']}")
    if as_json:
        echo_json(row)
    else:
        click.echo(f"{cell(row['id'])} is cancelled")


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _job_row(job: dict[str, Any]) -> dict[str, Any]:
    return {
        **job,
        "range": f"{cell(job.get('min_nodes'))}-{cell(job.get('max_nodes'))}",
        "resizes": (job.get("expansions") or 0) + (job.get("shrinks") or 0),
    }


def _policy(spec: dict[str, Any]) -> str:
    params = ", ".join(f"{name}={value}" for name, value in spec.get("params", {}).items())
    return f"{spec['policy']} ({params})" if params else str(spec["policy"])
