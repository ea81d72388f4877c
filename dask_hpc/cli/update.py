"""``dask hpc update``: other settings, or another policy, for a running cluster."""

from __future__ import annotations

from typing import Any

import click

from dask_hpc.cli.connection import connected, connection_options
from dask_hpc.cli.policy_options import make_policy, param_option, policy_option
from dask_hpc.terminal import echo_json, echo_pairs, json_option


@click.command()
@click.argument("settings", metavar="[SETTING=VALUE]...", nargs=-1)
@policy_option
@param_option
@connection_options
@json_option
def update(
    settings: tuple[str, ...], policy: str | None, params: dict[str, str], as_json: bool, **where: Any
) -> None:
    """Change settings or the policy of a running cluster.

    SETTING is a key of dask hpc config hpc: tick="2 s", pool.max-nodes=16. All is changed, or nothing.
    """
    import dask_hpc
    from dask_hpc_policies import registry

    if not (settings or policy or params):
        raise click.UsageError("nothing is to be changed: give SETTING=VALUE, --policy or --param")
    # what is wrong is said before a cluster is asked
    changes: dict[str, str] = {}
    for text in settings:
        key, value = _checked(text)
        if key in changes:
            raise click.UsageError(f"{key} is given twice, {changes[key]!r} and {value!r}: give one of them")
        changes[key] = value
    spec = None if policy is None else registry.spec_of(make_policy(policy, params))
    given = changes if policy else {**params, **changes}
    with connected(**where) as client:
        status = dask_hpc.runtime(client).update(spec, **given)
    if as_json:
        echo_json(status)
    else:
        echo_pairs([("policy", status["policy"]["policy"]), *changes.items()])


def _checked(text: str) -> tuple[str, str]:
    """Key and value of ``KEY=VALUE``, or a usage error."""
    from dask_hpc.config import find
    from dask_hpc.errors import ConfigError

    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.UsageError(f"{text!r} is not SETTING=VALUE, such as tick=2s")
    try:
        one = find(name)
        if one.field in ("policy", "policy_params"):
            raise click.UsageError(f"{name}: --policy and --param change the policy of a cluster")
        return one.key, one.row.format(one.check(value))
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
