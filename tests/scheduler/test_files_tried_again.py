"""Watched files that could not be taken for what is not in them: they are tried again, unchanged."""

from __future__ import annotations

import logging

import dask
import pytest
from helpers import asleep, live, until

import dask_hpc
from dask_hpc.scheduler.power import corridor
from dask_hpc.scheduler.rpc import settings_file
from dask_hpc.scheduler.rpc.service import of


def said(caplog, words):
    return [one for one in caplog.records if words in one.getMessage()]


def upper(s):
    """The upper bound that the trace has seen last."""
    records = of(s).engine.state.records
    return [one.data for one in records if getattr(one, "kind", "") == "corridor"][-1]["upper_w"]


@pytest.mark.errors("Settings stay as they are")
@live(workers=0)
async def test_settings_that_name_a_folder_which_comes_later_are_taken_then(
    c, s, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(settings_file, "AGAIN_S", 0.05)
    path, folder, tries = tmp_path / "settings.yaml", tmp_path / "later", []
    path.write_text(f"hpc: {{lend: 3 s, trace: {{path: {folder}/trace.jsonl}}}}")
    read = settings_file.read_changes
    monkeypatch.setattr(settings_file, "read_changes", lambda path: tries.append(path) or read(path))
    with dask.config.set({"hpc.settings-file": str(path), "hpc.tick": "20 ms"}):
        rt = await dask_hpc.install(c)
    await until(lambda: len(tries) > 3, "it is tried again")
    assert "cannot write the trace" in (await rt.status())["settings_file"]["problem"]
    assert len(said(caplog, "Settings stay")) == 1
    folder.mkdir()
    await until(lambda: of(s).engine.state.settings.lend_s == 3.0, "it is taken, unchanged")
    row = (await rt.status())["settings_file"]
    assert (row["problem"], row["applied_s"] is None) == ("", False)
    count = len(tries)
    for _ in range(5):
        await s.periodic_callbacks["hpc-settings-file"].callback()
    assert len(tries) == count, "what is taken is not taken again"
    await rt.uninstall()


@pytest.mark.errors("The corridor stays as it is")
@live(workers=1)
async def test_a_corridor_that_names_a_series_which_comes_later_is_taken_then(
    c, s, a, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(corridor, "AGAIN_S", 0.05)
    tries, read = [], corridor.read_wanted
    monkeypatch.setattr(corridor, "read_wanted", lambda *args: tries.append(args) or read(*args))
    caplog.set_level(logging.ERROR)
    rt = await dask_hpc.install(c, tick="50 ms", power_model_idle_w=70, power_model_busy_w=200)
    path, series = tmp_path / "corridor.yaml", tmp_path / "series.csv"
    path.write_text("upper_w: 800\n")
    await rt.corridor(file=path)
    path.write_text(f"series: {series}\n")
    await until(lambda: said(caplog, "The corridor stays"), "it is refused")
    series.write_text("t_s;upper_w\n0;900\n")
    await until(lambda: upper(s) == 900, "it is taken, unchanged")
    assert (await rt.power())["problem"] == ""
    assert len(said(caplog, "The corridor stays")) == 1
    count, part = len(tries), s.extensions[corridor._EXTENSION]
    for _ in range(5):
        await part._look(part._given)
    assert len(tries) == count, "what is taken is not taken again"
    await rt.corridor(clear=True)
    await asleep(s)
