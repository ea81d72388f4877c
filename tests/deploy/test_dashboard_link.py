"""The link to the dashboard: behind JupyterHub it goes through the proxy."""

from __future__ import annotations

import re
from typing import Any

import dask
import pytest

import dask_hpc
from dask_hpc.deploy.dashboard_link import STOCK_LINK, link_template

PREFIX = "JUPYTERHUB_SERVICE_PREFIX"


def test_the_link_of_stock_is_known() -> None:
    assert any(
        dask.config.get("distributed.dashboard.link", None, config=one) == STOCK_LINK
        for one in dask.config.defaults
    )


def test_only_what_nobody_has_changed_is_replaced() -> None:
    hub = {PREFIX: "/user/me/"}
    assert link_template(STOCK_LINK, hub) == "{JUPYTERHUB_SERVICE_PREFIX}proxy/{port}/status"
    assert link_template(STOCK_LINK, {}) == STOCK_LINK
    assert link_template("/my/{port}", hub) == "/my/{port}"


@pytest.mark.parametrize("prefix", [None, "/user/me/"])
def test_a_cluster_links_where_the_notebook_can_go(monkeypatch: Any, prefix: str | None) -> None:
    monkeypatch.delenv(PREFIX, raising=False)
    if prefix:
        monkeypatch.setenv(PREFIX, prefix)
    with (
        dask_hpc.LocalCluster(n_workers=0, dashboard_address=":0", processes=False) as cluster,
        cluster.get_client() as client,
    ):
        port = cluster.scheduler_info["services"]["dashboard"]
        assert cluster.dashboard_link == client.dashboard_link
        if prefix:
            assert cluster.dashboard_link == f"/user/me/proxy/{port}/status"
        else:
            assert re.fullmatch(rf"http://[^/]+:{port}/status", cluster.dashboard_link)
        assert dask.config.get("distributed.dashboard.link") == STOCK_LINK
        with dask.config.set({"distributed.dashboard.link": "/mine/{port}"}):
            assert cluster.dashboard_link == f"/mine/{port}"
