"""A runtime that is not there any more: clients are told so, and nothing is logged."""

from __future__ import annotations

import pytest
from distributed.utils_test import captured_logger
from helpers import installed, live

import dask_hpc
from dask_hpc.errors import InstallError


@live()
async def test_who_asks_a_runtime_that_has_gone_is_told_and_no_traceback_is_logged(c, s, *workers):
    with captured_logger("distributed") as log:
        with pytest.raises(InstallError, match="not installed on this cluster"):
            await dask_hpc.runtime(c)
        rt = await dask_hpc.install(c)
        assert await rt.jobs() == []
        await rt.uninstall()
        for question in (rt.jobs, rt.status, rt.decisions):
            with pytest.raises(InstallError, match="not installed on this cluster"):
                await question()
        assert "KeyError" not in log.getvalue()
        assert "No handler" not in log.getvalue()
    rt = await dask_hpc.install(c)
    assert await rt.jobs() == []


@live()
async def test_uninstalling_again_changes_nothing(c, s, *workers):
    rt = await dask_hpc.install(c)
    assert await rt.uninstall() == await rt.uninstall() == {"uninstalled": True}
    assert not installed(s)
