"""Policies on the command line: a name or a file, and parameters as ``name=value``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click

from dask_hpc.cli.types import assignments

policy_option = click.option(
    "--policy", metavar="POLICY", help="Name of a policy (see dask hpc policies) or path to a YAML file."
)


param_option = assignments("--param", "params", example="step=next", help="A parameter of the policy.")


def make_policy(policy: str, params: dict[str, str]) -> Any:
    """The policy that the options ask for: a name or a file, maybe with parameters of its own behind it.

    `policy` may be ``io-aware:reordering=0.3,block=yes``; such parameters come before `params`.

    Raises
    ------
    click.UsageError
        When there is no such policy or a parameter has a wrong value.
    """
    from dask_hpc_policies import registry

    name, own = _with_parameters(policy)
    try:
        return registry.create(name, **{**params, **own})
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def make_policies(policies: Sequence[str], params: dict[str, str]) -> dict[str, Any]:
    """Several policies by what they are called in results: as they were asked for, numbered where alike.

    Each gets those of `params` that it has, unless it was given its own value.

    Raises
    ------
    click.UsageError
        As `make_policy`, and for a parameter that none of the policies has.
    """
    made: dict[str, Any] = {}
    unused = set(params)
    for text in policies:
        plain = make_policy(text, {})
        has = {parameter.name for parameter in getattr(plain, "parameters", ())}
        unused -= has
        label, number = text, 1
        while label in made:
            number += 1
            label = f"{text} ({number})"
        made[label] = make_policy(text, {name: value for name, value in params.items() if name in has})
    if unused:
        raise click.UsageError(f"none of the policies has a parameter {', '.join(sorted(unused))}")
    return made


#: A name or a path, a colon, and NAME=VALUE.
_PARAMETERS = re.compile(r"(.+?):([A-Za-z][\w-]*=.*)")


def _with_parameters(text: str) -> tuple[str, dict[str, str]]:
    found = _PARAMETERS.fullmatch(text)
    if found is None:
        return text, {}
    pairs = [pair.partition("=") for pair in re.split(r",(?=[A-Za-z][\w-]*=)", found[2])]
    return found[1], {name.replace("-", "_"): value for name, _, value in pairs}
