"""The pages of our panels on a dashboard, fetched from outside: there, or not."""

from __future__ import annotations

import json

from distributed.dashboard import scheduler as pages
from tornado.httpclient import AsyncHTTPClient, HTTPClientError

PATHS = (
    "/individual-hpc-jobs",
    "/individual-hpc-decisions",
    "/individual-hpc-checkpoints",
    "/individual-hpc-io",
    "/individual-hpc-power",
)
DASHBOARD = {"dashboard": True, "dashboard_address": ":0"}


def address(scheduler, path=""):
    return f"http://127.0.0.1:{scheduler.http_server.port}{path}"


async def get(scheduler, path):
    """Body of a page; fails unless the answer is 200."""
    answer = await AsyncHTTPClient().fetch(address(scheduler, path), request_timeout=30)
    assert answer.code == 200
    return answer.body.decode()


async def code_of(scheduler, path):
    try:
        await get(scheduler, path)
    except HTTPClientError as error:
        return error.code
    return 200


async def listed(scheduler, prefix=""):
    """Our pages in what the Dask extension of JupyterLab reads, by name."""
    plots = json.loads(await get(scheduler, f"{prefix}/individual-plots.json"))
    return {name: path for name, path in plots.items() if "hpc" in path}


async def check_there(scheduler, prefix=""):
    for path in PATHS:
        body = await get(scheduler, prefix + path)
        assert "bokeh" in body
        assert "Dask: HPC" in body
    assert await listed(scheduler, prefix) == {
        "Individual Hpc Jobs": "/individual-hpc-jobs",
        "Individual Hpc Decisions": "/individual-hpc-decisions",
        "Individual Hpc Checkpoints": "/individual-hpc-checkpoints",
        "Individual Hpc Io": "/individual-hpc-io",
        "Individual Hpc Power": "/individual-hpc-power",
    }


async def check_absent(scheduler):
    for path in PATHS:
        assert await code_of(scheduler, path) == 404
    assert await listed(scheduler) == {}
    assert not [plot for plot in pages.template_variables(scheduler)["plots"] if "hpc" in plot["url"]]
