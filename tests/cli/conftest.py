"""A running cluster for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client, LocalCluster

import dask_hpc


@pytest.fixture(scope="module")
def s() -> Iterator[dict[str, Any]]:
    """Addresses of a scheduler and its two workers; it shadows the fixture of distributed in this folder."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=":0"
    ) as cluster:
        workers = [worker.address for worker in cluster.workers.values()]
        yield {"address": cluster.scheduler_address, "workers": workers}


@pytest.fixture
def client(s: dict[str, Any]) -> Iterator[Client]:
    """A client there; the runtime is as after an installation for each test."""
    with Client(s["address"]) as made:
        yield made
        dask_hpc.install(made).uninstall()
