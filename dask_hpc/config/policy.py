"""The policy that the settings ask for."""

from __future__ import annotations

from typing import Any

from distributed.protocol.pickle import loads

from dask_hpc.config.rows import find
from dask_hpc.config.values import Settings
from dask_hpc.errors import ConfigError
from dask_hpc_policies import registry
from dask_hpc_policies.params import ParameterError, shown
from dask_hpc_policies.protocol import InvalidPolicy, Policy


def configured_policy(settings: Settings) -> Policy:
    """The policy of ``hpc.policy``, with the parameters of ``hpc.policy-params``.

    Raises
    ------
    ConfigError
        For a parameter that it does not have, or cannot take.
    UnknownPolicy, InvalidPolicy
        For a name that does not exist, or a file that holds no policy.
    """
    params = dict(settings.policy_params)
    try:
        return registry.create(settings.policy, **params)
    except ParameterError as error:
        where = find("policy-params").places
        raise ConfigError(
            f"hpc.policy-params is {shown(params)}, for the policy {settings.policy}: {error} ({where})"
        ) from None


def loaded(pickled: bytes) -> Any:
    """A policy of a user's own, as the client has sent it.

    Raises
    ------
    InvalidPolicy
        When it cannot be made here, as its module is not there.
    """
    try:
        return loads(pickled)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise InvalidPolicy(
            f"the scheduler cannot load the policy ({type(error).__name__}: {error}); have its module there, "
            "too, or sent along: cloudpickle.register_pickle_by_value(module)"
        ) from None
