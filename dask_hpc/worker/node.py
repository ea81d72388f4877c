"""What a worker knows of its node: when it has to end, who shares its memory, and who fails with it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import dask.config
import psutil

from dask_hpc.config import Settings, settings
from dask_hpc.slurm.commands import own_job_end_s, own_switch

#: Environment variable in which a nanny tells its worker when the walltime ends, in seconds since 1970.
#: Not one that Dask takes for configuration.
END_VARIABLE = "_DASK_HPC_WALLTIME_END"
#: The same, by ``hpc.walltime.limit`` alone: that does not move when Slurm's limit does.
LIMIT_VARIABLE = "_DASK_HPC_WALLTIME_LIMIT_END"
#: In place of a label, who fails together is what Slurm's topology says.
TOPOLOGY = "slurm-topology"


def walltime_end_s(limit_s: float | None, job_end_s: float | None) -> float | None:
    """When the walltime of this process ends, in seconds since 1970; None: not known.

    Parameters
    ----------
    limit_s
        How long it may run (``hpc.walltime.limit``).
    job_end_s
        When its batch job ends. The earlier of both counts.
    """
    ends_s = [] if limit_s is None else [psutil.Process().create_time() + limit_s]
    return min(ends_s if job_end_s is None else [*ends_s, job_end_s], default=None)


def node_settings() -> Settings:
    """The settings of this node: its own environment counts for more than its configuration.

    A nanny has its worker take over its whole configuration, which would hide variables that were set for the
    workers of one pool alone.

    A failure domain that Slurm's topology is to give is the node's switch; None where Slurm has none.

    Raises
    ------
    ConfigError
        When the configuration of the node is not allowed.
    """
    own = {name: value for name, value in os.environ.items() if name.startswith("DASK_HPC__")}
    wanted = deepcopy(dask.config.get("hpc", {}))
    found = settings(dask.config.update(wanted, dask.config.collect_env(own).get("hpc", {})))
    return replace(found, node_domain=own_switch()) if found.node_domain == TOPOLOGY else found


class NodeSection:
    """Section ``node`` of the heartbeats: ``host``, ``domain`` and ``end_s``, those that are known.

    Labels are read on the node (its configuration or environment), so no client can change them. The end
    of the walltime is what the agent in the worker's nanny goes by; without one, the end of the batch job or
    what ``hpc.walltime.limit`` says, counted from the start of this process. In a job of Slurm's the section
    also has ``slurm_job``, so that the scheduler can ask again for all of them at once, and ``limit_end_s``,
    the end by that setting, if there is one.

    Raises
    ------
    ConfigError
        When the configuration of the node is not allowed.
    """

    def __init__(self, worker: Any) -> None:
        wanted = node_settings()
        labels = {"host": wanted.node_host, "domain": wanted.node_domain}
        self._told: dict[str, Any] = {name: label for name, label in labels.items() if label is not None}
        self._asking: asyncio.Future[None] | None = None
        if job := os.environ.get("SLURM_JOB_ID"):
            self._told["slurm_job"] = job
        known = os.environ.get(END_VARIABLE)
        if known is not None and getattr(worker, "nanny", None):
            self._told["end_s"] = float(known)
            limit = os.environ.get(LIMIT_VARIABLE)
            self._limited(None if limit is None else float(limit))
        else:
            # a Slurm that is slow to answer does not keep the worker from starting
            self._asking = asyncio.ensure_future(self._ask(wanted.walltime_limit_s))

    async def _ask(self, limit_s: float | None) -> None:
        self._limited(walltime_end_s(limit_s, None))
        end_s = walltime_end_s(limit_s, await own_job_end_s())
        if end_s is not None:
            self._told["end_s"] = end_s

    def _limited(self, end_s: float | None) -> None:
        if end_s is not None and "slurm_job" in self._told:
            self._told["limit_end_s"] = end_s

    def __call__(self) -> Mapping[str, Any]:
        """What is known now."""
        return self._told

    def stop(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
