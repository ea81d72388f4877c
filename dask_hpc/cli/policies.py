"""``dask hpc policies``: what can decide, and its parameters."""

from __future__ import annotations

from typing import Any

import click

from dask_hpc.terminal import cell, echo_json, echo_table, json_option


@click.command()
@click.argument("name", required=False)
@json_option
def policies(name: str | None, as_json: bool) -> None:
    """List the policies and their parameters.

    With NAME, show one policy with its parameters, their bounds and units.
    """
    from dask_hpc_policies import registry

    if name is None:
        every = registry.describe_all()
        if as_json:
            echo_json(every)
        else:
            rows = [{"name": one["name"], "summary": one.get("summary")} for one in every]
            echo_table(rows, {"name": "NAME", "summary": "WHAT IT DOES"}, "no policies are installed")
        return
    try:
        described = registry.describe(name)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        echo_json(described)
    else:
        _show(described)


def _show(described: dict[str, Any]) -> None:
    click.echo(f"{described['name']}: {cell(described.get('summary', ''))}")
    parameters = described.get("parameters", [])
    if parameters:
        click.echo()
        columns = {"name": "PARAMETER", "default": "DEFAULT", "allowed": "ALLOWED", "help": "WHAT IT DOES"}
        rows = [{**one, "default": _default(one)} for one in parameters]
        echo_table(rows, columns, "")


def _default(parameter: dict[str, Any]) -> str:
    default = parameter["default"]
    if default is None:
        return "none"
    return f"{default:g} {parameter['unit']}".strip() if isinstance(default, float) else cell(default)
