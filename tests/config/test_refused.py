"""What is refused when the runtime is installed, updated, or a job declared: by whom, and in what words."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from functools import partial
from pathlib import Path

import dask
import pytest
from distributed.utils_test import captured_logger, gen_cluster

import dask_hpc
from dask_hpc.checkpoint import store_threads
from dask_hpc.errors import ConfigError
from dask_hpc.scheduler.rpc import service
from dask_hpc_policies.jobs.jobspec import InvalidJob
from dask_hpc_policies.params import ParameterError


@gen_cluster(client=True, nthreads=[])
async def test_wrong_parameters_in_the_configuration_are_told_by_key_and_value(c, s):
    for params, allowed in (({"step": "all"}, "one of max, next"), ({"stride": 2}, "known parameters: step")):
        told = pytest.raises(ConfigError, match=r"^hpc\.policy-params is ")
        with dask.config.set({"hpc.policy": "pwma-fpsma", "hpc.policy-params": params}), told as refused:
            await dask_hpc.install(c)
        assert str(params) in str(refused.value)
        assert allowed in str(refused.value)
        assert "hpc" not in s.handlers


@gen_cluster(client=True, nthreads=[])
async def test_a_number_or_text_that_no_message_can_hold_is_refused_in_one_sentence(c, s):
    rt = await dask_hpc.install(c)
    with captured_logger("distributed", level=logging.ERROR) as log:
        for asked in (
            partial(rt.update, tick=10**30),
            partial(rt.update, tick=-(10**30)),
            partial(rt.decisions, limit=2**64),
            partial(rt.update, checkpoint_store="/scratch/\udc80"),
            partial(rt.update, **{"\udc80": 1}),
            partial(rt.expect, ["ä", "\udc80"]),
        ):
            with pytest.raises(ValueError, match=r"no number of 2\*\*64 or more, and text that UTF-8"):
                await asked()
    assert log.getvalue() == ""


@gen_cluster(client=True, nthreads=[])
async def test_a_folder_that_the_scheduler_cannot_write_to_is_refused(c, s, tmp_path):
    rt = await dask_hpc.install(c)
    folder = str(Path(__file__) / "below-a-file")
    for setting, name in (
        ("spill_directory", "hpc.spill.directory"),
        ("checkpoint_store", "hpc.checkpoint.store"),
    ):
        with pytest.raises(ConfigError, match=rf"{name} is .*below-a-file.*workers are not asked"):
            await rt.update(**{setting: folder})
        long, longer = str(tmp_path / "new" / ("n" * 256)), str(tmp_path) + "/new" * 1024
        for each, said in (
            (long, "too long"),
            (longer, "too long"),
            (f"{tmp_path}/a\0b", "an absolute path"),
        ):
            with pytest.raises(ConfigError, match=rf"(?s){name} is .*{said}"):
                await rt.update(**{setting: each})
        assert (await rt.status())["settings"][setting] is None
        await rt.update(**{setting: str(tmp_path / "new" / "folder")})
    assert not list(tmp_path.iterdir()), "who writes there first makes it"


@gen_cluster(client=True, nthreads=[])
async def test_a_folder_whose_mount_hangs_is_refused_and_nobody_waits_for_it(c, s, tmp_path, monkeypatch):
    rt = await dask_hpc.install(c)
    answers = threading.Event()
    monkeypatch.setattr(store_threads, "PATIENCE_S", 0.05)
    monkeypatch.setattr(service, "problem", lambda folder: answers.wait(60) and None)
    try:
        with pytest.raises(ConfigError, match=r"hpc\.checkpoint\.store is .* not answered within 0\.05 s"):
            await rt.update(checkpoint_store=str(tmp_path))
    finally:
        answers.set()
    assert (await rt.status())["settings"]["checkpoint_store"] is None


@gen_cluster(client=True, nthreads=[])
async def test_an_update_that_waits_for_a_folder_takes_none_back_that_comes_meanwhile(
    c, s, tmp_path, monkeypatch
):
    rt = await dask_hpc.install(c)
    asked, answers = threading.Event(), threading.Event()
    monkeypatch.setattr(service, "problem", lambda folder: asked.set() or answers.wait(60) and None)
    slow = asyncio.ensure_future(rt.update(checkpoint_store=str(tmp_path)))
    try:
        assert await asyncio.to_thread(asked.wait, 10)
        await rt.update(checkpoint_every_s=12.0)
    finally:
        answers.set()
    told = (await slow)["settings"]
    assert (told["checkpoint_store"], told["checkpoint_every_s"]) == (str(tmp_path), 12.0)


@gen_cluster(client=True, nthreads=[])
async def test_an_error_about_a_parameter_tells_of_no_settings(c, s):
    rt = await dask_hpc.install(c, "pwma-fpsma")
    with pytest.raises(
        ParameterError, match="parameter 'step' cannot be 'all': it must be one of"
    ) as refused:
        await rt.update(step="all")
    assert "setting" not in str(refused.value)
    with pytest.raises(ParameterError, match="unknown parameter 'stride'; known parameters: step") as refused:
        await rt.update(stride=2)
    assert "the settings are" not in str(refused.value)
    assert len(str(refused.value)) < 200


@gen_cluster(client=True, nthreads=[])
async def test_times_of_a_job_may_be_those_of_the_standard_library(c, s):
    rt = await dask_hpc.install(c)
    hour = timedelta(hours=1)
    job = rt.job("timed", walltime=timedelta(minutes=30), soft_deadline=hour, deadline=2 * hour)
    assert (job._spec["walltime_s"], job._spec["soft_deadline_s"], job._spec["deadline_s"]) == (
        1800.0,
        3600.0,
        7200.0,
    )

    class Other(timedelta):
        """As those of pandas."""

    for wrong in (timedelta(seconds=-5), timedelta(0), Other(minutes=1)):
        with pytest.raises(InvalidJob, match="walltime"):
            rt.job("timed", walltime=wrong)


@gen_cluster(client=True, nthreads=[])
async def test_times_and_places_of_settings_may_be_those_of_the_standard_library(c, s, tmp_path):
    rt = await dask_hpc.install(c, tick=timedelta(seconds=2))
    told = (await rt.update(checkpoint_store=tmp_path, trace_path=tmp_path / "run.jsonl"))["settings"]
    assert (told["tick_s"], told["checkpoint_store"]) == (2.0, str(tmp_path))
    assert told["trace_path"] == str(tmp_path / "run.jsonl")
    with pytest.raises(ConfigError, match=r"hpc\.checkpoint\.store is .*an absolute path"):
        await rt.update(checkpoint_store=Path("here"))
