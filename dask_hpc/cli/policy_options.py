"""Policies on the command line: a name or a file, and parameters as ``name=value``."""

from __future__ import annotations

from typing import Any

import click

from dask_hpc.cli.output import one_line

policy_option = click.option(
    "--policy", metavar="POLICY", help="Name of a policy (see dask hpc policies) or path to a YAML file."
)


def _parse(_ctx: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise click.BadParameter(f"{name!r} is not NAME=VALUE, such as step=next")
    return {name.replace("-", "_"): value for name, _, value in pairs}


param_option = click.option(
    "--param",
    "params",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_parse,
    help="A parameter of the policy.",
)


def make_policy(policy: str, params: dict[str, str]) -> Any:
    """The policy that the options ask for.

    Raises
    ------
    click.ClickException
        When there is no such policy or a parameter has a wrong value.
    """
    from dask_hpc_policies import registry

    try:
        return registry.create(policy, **params)
    except ValueError as error:
        raise click.ClickException(one_line(str(error))) from None
