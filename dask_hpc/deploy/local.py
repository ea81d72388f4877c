"""`distributed.LocalCluster` with the runtime, and with pools."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import dask
import distributed
from dask.utils import parse_bytes, parse_timedelta
from distributed.core import Status

from dask_hpc.deploy.arguments import check_counts, check_flags, with_preload
from dask_hpc.deploy.pooled import Pooled, checked, named, role_resources
from dask_hpc.deploy.specified import DEFAULT_POOL

#: What a pool may say, with what that is called for a worker.
_OPTIONS = {"threads_per_worker": "nthreads", "memory_limit": "memory_limit", "env": "env"}
_ALLOWED = ("n_workers", "role", "resources", *_OPTIONS)


@dataclass(frozen=True)
class LocalPool:
    """Workers of one kind."""

    name: str
    #: Arguments of its workers that are not as in the default pool.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Workers that the cluster starts with.
    n_workers: int = 0


class LocalCluster(Pooled, distributed.LocalCluster):
    """`distributed.LocalCluster` that has the runtime and loses nothing when it shrinks.

    Takes the same arguments.

    Parameters
    ----------
    pools
        More kinds of workers, by name: what is not as in the arguments of the cluster
        (``threads_per_worker``, ``memory_limit``, ``env``), ``resources`` (Dask's, of each worker), ``role``
        (``compute``, ``staging`` or ``reserve``: jobs and plain work get compute nodes alone) and
        ``n_workers`` to start with. Workers of a pool have its name in theirs, and as much of a resource of
        that name as they have threads.

    Raises
    ------
    InstallError
        When the installed `distributed` is not one this release knows.
    ValueError
        When a pool has a name or an option that is not allowed.

    Examples
    --------
    >>> cluster = LocalCluster(n_workers=4, threads_per_worker=1)  # doctest: +SKIP
    >>> rt = dask_hpc.runtime(cluster.get_client())  # doctest: +SKIP
    >>> staging = {"n_workers": 1, "role": "staging"}
    >>> cluster = LocalCluster(n_workers=4, pools={"staging": staging})  # doctest: +SKIP
    >>> cluster.scale(2, pool="staging")  # doctest: +SKIP
    """

    def __init__(
        self, *args: Any, pools: Mapping[str, Mapping[str, Any]] | None = None, **kwargs: Any
    ) -> None:
        self.pools = _read({} if pools is None else pools)
        self._of_pool = itertools.count()
        if kwargs.get("worker_class") is None:  # one of the user's may take no preload
            kwargs |= with_preload(kwargs, "worker", "preload", "dask_hpc.worker.interrupted")
        super().__init__(*args, **kwargs)
        for pool in self.pools.values():
            if pool.n_workers:
                self.scale(pool.n_workers, pool=pool.name)

    def scale(self, n: int = 0, *args: Any, pool: str | None = None, **kwargs: Any) -> Any:
        """Have `n` workers in a pool (None: the default one); see `SafeScaling.scale`."""
        name = self._known(pool)
        if name == DEFAULT_POOL:
            return super().scale(n, *args, **kwargs)
        flags = {"dry_run": kwargs.pop("dry_run", False), "force": kwargs.pop("force", False)}
        if args or kwargs:
            raise ValueError(f"scale of a pool takes n, dry_run and force; it got {[*args, *kwargs]}")
        check_counts(n=n)
        check_flags(**flags)
        return self._scale_pool(name, n, **flags)

    def _memory_per_worker(self) -> int:
        limit = self.new_spec["options"].get("memory_limit")
        try:
            each = parse_bytes(limit)
        except (AttributeError, TypeError, ValueError):
            each = 0
        if each <= 1:  # a share of what there is, perhaps
            text = f"memory_limit of the workers is {limit!r}: how many have so much memory is not known"
            raise ValueError(f"{text}; give it as an amount, such as '4 GB', or a number of workers or cores")
        return each

    def _lost(self, name: Any) -> None:
        self._look_later(name)

    def _look_later(self, name: Any, times: int = 2) -> None:
        within_s = parse_timedelta(dask.config.get("distributed.deploy.lost-worker-timeout"))
        asyncio.get_running_loop().call_later(within_s, self._look, name, times)

    def _look(self, name: Any, times: int) -> None:
        """Close what stands for a lost worker, unless that is there again or its nanny is starting it."""
        if name not in self.workers or any(
            worker["name"] == name for worker in self.scheduler_info["workers"].values()
        ):
            return
        process = getattr(self.workers[name], "process", None)
        if process is not None and process.status == Status.starting:
            self._look_later(name)
        elif times > 1:  # between two processes a nanny has none for a moment
            self._look_later(name, times - 1)
        else:
            self._futures.add(asyncio.ensure_future(self.workers.pop(name).close()))

    def _next_spec(self, pool: str) -> dict[Any, Any]:
        if pool == DEFAULT_POOL:
            return super()._next_spec(pool)
        spec = self.new_spec
        options = {**spec["options"], **self.pools[pool].options}
        threads = options.get("nthreads") or 1
        given = options.get("resources") or {}
        options["resources"] = {
            name: threads if amount is None else amount for name, amount in {pool: None, **given}.items()
        }
        return {f"{pool}-{next(self._of_pool)}": {"cls": spec["cls"], "options": options, "pool": pool}}

    def _resources(self, pool: str) -> Mapping[str, Any]:
        common = self.new_spec["options"].get("resources") or {}
        return {
            **common,
            **(self.pools[pool].options.get("resources") or {}),
            **({pool: None} if pool else {}),
        }


def _read(pools: Mapping[str, Mapping[str, Any]]) -> dict[str, LocalPool]:
    """The pools by name, the default one (no name) included."""
    found = {DEFAULT_POOL: LocalPool(DEFAULT_POOL)}
    for name, given in named("pools", pools):
        said = checked(f"pools[{name!r}]", given, _ALLOWED, "n_workers")
        options = {_OPTIONS[key]: value for key, value in said.items() if key in _OPTIONS}
        options["resources"] = {**(said.get("resources") or {}), **role_resources(said["role"], None)}
        found[name] = LocalPool(name, options, said["n_workers"])
    return found
