"""What the tests of panels on a live cluster share, and those of the explorer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import panel_work
import pytest
from distributed import Client
from helpers import Gate

import dask_hpc
from dask_hpc_widgets.explore import exploration
from dask_hpc_widgets.explorer import Explorer


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Four nodes of one thread each, in this process."""
    with dask_hpc.LocalCluster(
        n_workers=4, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as made:
        yield made


@pytest.fixture(scope="module")
def client(cluster: Any) -> Iterator[Any]:
    """A client of the cluster; it shadows the fixture of distributed in this folder."""
    with Client(cluster) as made:
        yield made


@pytest.fixture
def gate() -> Iterator[Gate]:
    """What tasks of a test wait at to its end."""
    made = Gate()
    yield made
    made.open()


# no task passes the gate before its job is cancelled
@pytest.fixture
def rt(cluster: Any, client: Any, gate: Gate) -> Iterator[Any]:
    """The runtime, under fcfs, with nothing to do; jobs that a test leaves are cancelled."""
    deadline_s = time.monotonic() + 30
    while cluster.scheduler.tasks:
        assert time.monotonic() < deadline_s, "tasks of another test are left"
        time.sleep(0.01)
    runtime = dask_hpc.install(client, policy="fcfs", tick="50 ms")
    yield runtime
    for row in runtime.jobs():
        if row["end_s"] is None and row["name"] != "default":
            runtime.cancel(row["id"])
    panel_work.kept.clear()


@pytest.fixture
def panel(rt: Any) -> Iterator[Any]:
    """A panel of it."""
    made = rt.panel()
    yield made
    made.close()


@pytest.fixture
def no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure of what the explorer ran: those tests that look at one draw it."""
    monkeypatch.setattr(exploration, "_figures", lambda runs: "")


@pytest.fixture
def explorer() -> Iterator[Any]:
    """An explorer of a small workload under two policies."""
    made = Explorer("builtin:figure-5-1", ("fcfs", "easy"))
    yield made
    made.close()
