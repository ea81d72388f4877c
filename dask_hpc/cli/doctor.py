"""``dask hpc doctor``: what is missing on this machine, or on a running cluster."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from dask_hpc.cli.connection import connected, connection_options
from dask_hpc.terminal import cell, echo_json, json_option


@click.command()
@connection_options
@json_option
@click.pass_context
def doctor(
    ctx: click.Context, address: str | None, scheduler_file: Path | None, timeout_s: float, as_json: bool
) -> None:
    """Check what we rely on and say what to do.

    Versions, internals of Dask, dashboard, Slurm, sensors and memory of this machine; with --address
    or --scheduler-file, the running cluster as well. Exit code 1 when a check fails; warnings concern
    parts that are optional.
    """
    from dask_hpc.doctor import Finding, examine, examine_cluster
    from dask_hpc_policies import codec

    found = examine()
    if address or scheduler_file:
        try:
            with connected(address, scheduler_file, timeout_s) as client:
                found += examine_cluster(client)
        except click.UsageError:
            raise
        except click.ClickException as error:  # what this machine has may say why
            found.append(Finding("scheduler", "fail", error.format_message()))
    counts = Counter(finding.verdict for finding in found)
    if as_json:
        echo_json({"ok": not counts["fail"], "findings": [codec.encode(finding) for finding in found]})
    else:
        width = max(len(finding.name) for finding in found)
        for finding in found:
            click.echo(f"{finding.verdict:<4}  {finding.name:<{width}}  {cell(finding.text)}")
            if finding.remedy:
                click.echo(f"{'':<4}  {'':<{width}}  -> {finding.remedy}")
        click.echo(f"{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failures")
    if counts["fail"]:
        ctx.exit(1)
