"""Clusters whose workers are of several kinds: pools, each with a size and perhaps a role of its own."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, ItemsView, Mapping
from typing import Any

from dask_hpc.deploy.adaptive import PolicyAdaptive
from dask_hpc.deploy.scaling import SafeScaling
from dask_hpc.deploy.specified import DEFAULT_POOL
from dask_hpc.wire import ROLE_RESOURCE
from dask_hpc_policies.model import COMPUTE, ROLES
from dask_hpc_policies.numeric import whole

#: Names go into job scripts as they are.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class Pooled(SafeScaling):
    """A cluster with pools."""

    #: What is known of each pool, by name; the default one has none.
    pools: Mapping[str, Any]
    #: Gives the abstract resources of the workers of a pool.
    _resources: Callable[[str], Mapping[str, Any]]

    def adapt(self, *args: Any, **kwargs: Any) -> Any:
        """Follow the load by the default pool; see `SafeScaling.adapt`."""
        if len(self.pools) > 1 and not args:
            kwargs.setdefault("Adaptive", PoolAdaptive)
        return super().adapt(*args, **kwargs)

    def elsewhere(self) -> set[str]:
        """Names of the workers that are not of the default pool."""
        specs = [spec for spec in list(self.worker_spec) if self._pool_of(spec) != DEFAULT_POOL]
        return {str(name) for spec in specs for name in self._workers_of(spec)}

    def resources_elsewhere(self) -> list[str]:
        """Names of abstract resources that workers of the default pool do not have and others do."""
        named = {name: set(self._resources(name)) for name in self.pools}
        return sorted(set().union(*named.values()) - named[DEFAULT_POOL])

    def _known(self, pool: str | None) -> str:
        if pool is None:
            return DEFAULT_POOL
        if pool not in self.pools:
            names = ", ".join(repr(name) for name in self.pools if name) or "none but the default one"
            raise ValueError(f"pool is {pool!r}; allowed: {names}")
        return pool


class PoolAdaptive(PolicyAdaptive):
    """Adaptive scaling of the default pool; workers of the others are neither counted nor let go."""

    def _mine(self, names: set[Any]) -> set[Any]:
        elsewhere = self.cluster.elsewhere()
        return {name for name in names if str(name) not in elsewhere}

    @property
    def plan(self) -> set[Any]:
        """Names of workers of the pool that there should be."""
        return self._mine(super().plan)

    @property
    def requested(self) -> set[Any]:
        """Names of workers of the pool that have been started."""
        return self._mine(super().requested)

    @property
    def observed(self) -> set[Any]:
        """Names of workers of the pool that are connected."""
        return self._mine(super().observed)

    @property
    def elsewhere(self) -> dict[str, list[str]]:
        """Workers of the other pools: they do their part of the work, and have their own."""
        cluster = self.cluster
        return {"elsewhere": sorted(cluster.elsewhere()), "resources": cluster.resources_elsewhere()}

    def _left_alone(self) -> set[Any]:
        """Those that could not go are left alone for a while, those of the other pools for ever."""
        there = super().observed
        return super()._left_alone() | (there - self._mine(there))


def named(where: str, pools: Any) -> ItemsView[str, Any]:
    """What pools say, by name; raises ValueError when it is not by name, or a name is not allowed."""
    if not isinstance(pools, Mapping):
        raise ValueError(f"{where} is {pools!r}; allowed: options by name of the pool")
    for name in pools:
        check_name(where, name)
    return pools.items()


def check_name(where: str, name: Any) -> None:
    """Raise ValueError unless `name` may be that of a pool or a resource; `where` says whose it is."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{where} has the name {name!r}; allowed: letters, digits, '_' and '-', a letter first"
        )


def checked(where: str, given: Any, allowed: Collection[str], count: str) -> dict[str, Any]:
    """What a pool says, with ``_`` in place of ``-``; its role is there, and its count of workers or jobs.

    Parameters
    ----------
    where
        Whose it is, for messages.
    allowed
        Options that it may say.
    count
        The one of them that says how many the cluster starts with.

    Raises
    ------
    ValueError
        When something is not allowed.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{where} is {given!r}; allowed: options, such as {{{count!r}: 1}}")
    options = {str(key).replace("-", "_"): value for key, value in given.items()}
    for key in options:
        if key not in allowed:
            near = difflib.get_close_matches(key, allowed, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(sorted(allowed))}"
            raise ValueError(f"{where} has the option {key!r}; {hint}")
    many = whole(options.get(count, 0))
    if many is None or many < 0:
        raise ValueError(f"{where}[{count!r}] is {options[count]!r}; allowed: a whole number, 0 or more")
    options[count] = many
    if not isinstance(options.get("resources") or {}, Mapping):
        raise ValueError(f"{where}['resources'] is {options['resources']!r}; allowed: amounts by name")
    role = options.setdefault("role", COMPUTE)
    if role not in ROLES:
        raise ValueError(f"{where}['role'] is {role!r}; allowed: {', '.join(ROLES)}")
    return options


def role_resources(role: str, amount: float | None) -> dict[str, float | None]:
    """The abstract resource by which workers say the role of their nodes; none when they compute."""
    return {} if role == COMPUTE else {f"{ROLE_RESOURCE}{role}": amount}
