"""`distributed.LocalCluster` with the runtime."""

from __future__ import annotations

import distributed

from dask_hpc.deploy.scaling import SafeScaling


class LocalCluster(SafeScaling, distributed.LocalCluster):
    """`distributed.LocalCluster` that has the runtime and loses nothing when it shrinks.

    Takes the same arguments.

    Raises
    ------
    InstallError
        When the installed `distributed` is not one this release knows.

    Examples
    --------
    >>> cluster = LocalCluster(n_workers=4, threads_per_worker=1)  # doctest: +SKIP
    >>> rt = dask_hpc.runtime(cluster.get_client())  # doctest: +SKIP
    """
