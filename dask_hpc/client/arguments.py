"""What goes over the network for a policy."""

from __future__ import annotations

from typing import Any

from distributed.protocol.pickle import dumps


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
