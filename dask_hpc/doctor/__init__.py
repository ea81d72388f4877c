"""Checks of the environment: is what we rely on there, and what to do when it is not."""

from __future__ import annotations

from dask_hpc.doctor import cluster, machine, store
from dask_hpc.doctor.checks import Finding, examine, examine_cluster, register, register_cluster

__all__ = ["Finding", "examine", "examine_cluster", "register", "register_cluster"]

register(
    machine.check_python,
    machine.check_dask,
    machine.check_internals,
    machine.check_settings,
    machine.check_dashboard,
    machine.check_dashboard_link,
    machine.check_plots,
    machine.check_slurm,
    machine.check_sensors,
    machine.check_shared_memory,
    store.check_store,
    machine.check_capabilities,
)
register_cluster(cluster.check_versions, cluster.check_runtime, store.check_checkpoints)
