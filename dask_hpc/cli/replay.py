"""``dask hpc replay``: a recorded trace through a policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dask_hpc.cli.policy_options import make_policy, param_option, policy_option
from dask_hpc.cli.types import FILE
from dask_hpc.terminal import cell, echo_json, echo_pairs, json_option

if TYPE_CHECKING:
    from dask_hpc.trace.replay import Difference, ReplayReport


@click.command()
@click.argument("trace", type=FILE)
@policy_option
@param_option
@json_option
@click.pass_context
def replay(
    ctx: click.Context, trace: Path, policy: str | None, params: dict[str, str], as_json: bool
) -> None:
    """Put a recorded trace through a policy.

    Every decision in TRACE is asked for again. Without --policy, or with the recorded one, the answers
    must be the same: exit code 1 says that they are not. With another policy the report says how often
    it would have decided otherwise.
    """
    from dask_hpc.trace.files import read_trace
    from dask_hpc.trace.replay import replay as run
    from dask_hpc_policies import codec

    if params and policy is None:
        raise click.UsageError("--param needs --policy: parameters of recorded policies are recorded too")
    chosen = None if policy is None else make_policy(policy, params)
    report = run(read_trace(trace), chosen)
    if as_json:
        echo_json({"trace": str(trace), "ok": report.ok, **codec.encode(report)})
    else:
        _show(trace, report)
    if report.mode == "verify" and not report.ok:
        ctx.exit(1)


def _show(trace: Path, report: ReplayReport) -> None:
    asked = "the recorded policy again" if report.mode == "verify" else "another policy on the same snapshots"
    echo_pairs(
        [
            ("trace", str(trace)),
            ("asked", f"{asked}: {report.policy or '-'}"),
            ("passes", report.passes),
            ("same", report.same),
            ("differing", report.differing),
            ("recorded", _counts(report.recorded_actions)),
            ("replayed", _counts(report.replayed_actions)),
        ]
    )
    for flow, row in report.flows.items():
        steps = row["steps"]
        known = [f"{name} {row[name]:.4g}" for name in row if name != "steps" and row[name] is not None]
        click.echo(f"flow {cell(flow)}, {steps} steps, medians: {', '.join(known) or 'not known'}")
    if report.first is not None:
        _show_difference(report.first)


def _counts(actions: Any) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in actions.items()) or "no actions"


def _show_difference(first: Difference) -> None:
    click.echo(f"\nfirst difference: pass {first.number}, t = {first.t_s:.3f} s, called for {first.trigger}")
    for title, decision in (("recorded", first.recorded), ("replayed", first.replayed)):
        click.echo(f"  {title}:")
        if decision is None:
            click.echo(f"    failed: {cell(first.error)}")
            continue
        for action in decision.actions:
            nodes = f" to {action.nodes} nodes" if hasattr(action, "nodes") else ""
            job = f" {cell(action.job)}" if hasattr(action, "job") else ""
            click.echo(
                f"    {action.TAG}{job}{nodes}: {action.reason.code.value}, {cell(action.reason.text)}"
            )
        if not decision.actions:
            click.echo("    nothing")
