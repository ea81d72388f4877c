"""What is given to the runtime's methods, checked there, and what goes over the network for it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from distributed import Client
from distributed.protocol.pickle import dumps

from dask_hpc.channel import is_closed
from dask_hpc.errors import InstallError
from dask_hpc_policies.params import shown

#: What says which job is meant.
_JOB = "the id or name of a job, a text as in rt.jobs() (job.id of a handle)"


def text_of(what: str, value: Any, needed: str) -> str:
    """A text that says what is meant; raises `TypeError` for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is {shown(value)}; needed: {needed}")
    return value


def client_of(value: Any, wrong: type[TypeError] = TypeError) -> Client:
    """A connected client; raises `wrong` for anything else, `InstallError` for one that is not."""
    if not isinstance(value, Client):
        raise wrong(f"client is {shown(value)}; allowed: a connected Client of distributed")
    if is_closed(value):
        raise InstallError(f"the client is {value.status}, not connected; connect a new one")
    return value


def job_of(value: Any) -> str:
    """Id or name of a job; raises `TypeError` for anything else."""
    return text_of("job", value, _JOB)


def texts_of(what: str, values: Any, example: str) -> list[str]:
    """Several texts; raises `TypeError` for anything else, and for one text alone."""
    found: list[Any] = (
        list(values) if isinstance(values, Iterable) and not isinstance(values, str) else [None]
    )
    if not all(isinstance(one, str) for one in found):
        raise TypeError(f"{what} is {shown(values)}; needed: a list of texts, such as {example}")
    return found


def path_of(what: str, value: Any) -> str:
    """The path of a file as text; raises `TypeError` for anything else."""
    return text_of(what, os.fspath(value) if isinstance(value, os.PathLike) else value, "the path of a file")



def policy_arguments(policy: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Names and numbers, or the user's own object pickled."""
    if policy is None:
        return {"parameters": params}
    if isinstance(policy, (str, dict)) and not str(policy).endswith((".yaml", ".yml")):
        return {"policy": policy, "parameters": params}
    # all policies, which nobody else needs
    from dask_hpc_policies import registry

    made = registry.create(policy)
    spec = registry.spec_of(made)
    if spec.get("custom"):
        return {"pickled": dumps(made), "parameters": params}
    return {"policy": spec, "parameters": params}
