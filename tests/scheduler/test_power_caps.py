"""The lever ``cap``: hosts that give leave are capped while the draw is above the bound, and no longer."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from helpers import live, until
from sensor_trees import Powercap, contents, counting, limits

import dask_hpc
from dask_hpc.wire import CAP
from dask_hpc.worker.power import section as sections
from dask_hpc.worker.power import sources
from dask_hpc.worker.power.caps import asked

FAST = {"hpc.power.interval": "100 ms", "hpc.tick": "50 ms"}
MODEL = {"power_model_idle_w": 10, "power_model_busy_w": 200}


def host(root: Path) -> Powercap:
    """A host with a package that can be capped."""
    tree = Powercap(root)
    limits(tree.zone("intel-rapl:0", "package-0"))
    return tree


def limit_w(root: Path) -> float:
    path = root / "sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw"
    return int(path.read_text() or 0) / 1e6


def settable(root: Path) -> dict[str, str]:
    return {path: text for path, text in contents(root).items() if "energy" not in path}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    tree = host(tmp_path / "root")
    root = tmp_path / "root"
    monkeypatch.setattr(sections, "made", lambda settings: sources.made(settings, root))
    monkeypatch.setattr(sections, "governed", lambda settings: sources.governed(settings, root))
    monkeypatch.setattr(asked, "_ROOT", root)
    monkeypatch.setenv("DASK_HPC__POWER__CAP__FOLDER", str(tmp_path / "old"))
    monkeypatch.setenv("DASK_HPC__POWER__CAP__BY", "powercap")
    with counting(tree, {"intel-rapl:0": 150.0}):
        yield root


async def state_is(rt: Any, state: str) -> dict[str, Any]:
    """Wait until the one host there is says so."""
    found: list[dict[str, Any]] = []

    async def look() -> bool:
        found[:] = (await rt.power())["caps"]
        return [row["state"] for row in found] == [state]

    until_s = time.monotonic() + 30
    while not await look():
        assert time.monotonic() < until_s, found
    return found[0]


@live(workers=2, config=FAST)
async def test_a_host_is_capped_while_more_is_drawn_than_may_be(c, s, a, b, machine, monkeypatch):
    monkeypatch.setenv("DASK_HPC__POWER__CAP__WRITE", "true")
    before = settable(machine)
    rt = await dask_hpc.install(c)
    await rt.update(**MODEL, power_levers=["cap", "hold"])
    assert (await rt.corridor(upper_w=1_000))["caps"] == []
    await rt.corridor(upper_w=120)
    row = await state_is(rt, "written")
    assert 60 <= row["watts"] <= 120
    assert (row["least_w"], row["most_w"]) == (50, 180)
    await until(lambda: limit_w(machine) <= 120, "it is written")
    assert any("is capped at" in one["reason"] for one in await rt.decisions())
    # a bound that rises takes it back, and so does the end of the corridor
    await rt.corridor(upper_w=1_000)
    await until(lambda: settable(machine) == before, "the old values are back")
    await state_is(rt, "released")
    await rt.corridor(upper_w=120)
    await state_is(rt, "written")
    await rt.corridor(clear=True)
    await until(lambda: settable(machine) == before, "the old values are back")
    assert (await rt.power())["caps"] == []


@live(workers=2, config=FAST)
async def test_a_dry_run_tells_what_would_be_written_and_nobody_is_asked_without_the_lever(
    c, s, a, b, machine
):
    before = settable(machine)
    rt = await dask_hpc.install(c)
    await rt.update(**MODEL)
    await rt.corridor(upper_w=120)
    await until(lambda: len(a.plugins) and s.workers[a.address].metrics, "they beat")
    assert (await rt.power())["caps"] == []
    await rt.update(power_levers="resize, cap")
    row = await state_is(rt, "dry-run")
    assert [old for old, _ in row["values"].values()] == [200_000_000]
    assert all(new < 130_000_000 for _, new in row["values"].values())
    assert settable(machine) == before
    assert any("would be capped" in one["reason"] for one in await rt.decisions())


@live(workers=1, config=FAST)
async def test_a_device_that_takes_its_time_keeps_no_worker_from_closing_beside_its_loop(
    c, s, a, machine, monkeypatch
):
    monkeypatch.setenv("DASK_HPC__POWER__CAP__WRITE", "true")
    before = settable(machine)
    rt = await dask_hpc.install(c)
    await rt.update(**MODEL, power_levers="cap")
    await rt.corridor(upper_w=120)
    await state_is(rt, "written")
    keeper = asked._caps[a]._keeper
    assert keeper is not None
    keeper.send_signal(signal.SIGSTOP)
    try:
        closing = asyncio.create_task(a.close())
        await until(lambda: a not in asked._caps, "it gives its caps back")
        for _ in range(20):
            await asyncio.sleep(0.005)
        # the scheduler, which has not heard of it, goes on asking
        answer = await a.handlers[CAP](watts=100.0)
        assert (answer["state"], answer["reason"]) == ("refused", "its worker closes")
        assert a not in asked._caps
        assert not closing.done()
        assert settable(machine) != before
    finally:
        keeper.send_signal(signal.SIGCONT)
    await closing
    assert settable(machine) == before


class _Obeys(dict[str, float]):
    """Watts of a package that would draw 150 W and obeys its limit, and of the platform, 50 W more."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root

    def items(self) -> Any:
        package_w = min(150.0, limit_w(self._root) or 150.0)
        return {"intel-rapl:0": package_w, "intel-rapl:1": package_w + 50.0}.items()


@live(workers=2, config=FAST)
async def test_what_a_cap_is_not_for_counts_beside_it_so_that_the_bound_holds(
    c, s, a, b, tmp_path, monkeypatch
):
    root = tmp_path / "root"
    tree = host(root)
    tree.zone("intel-rapl:1", "psys")
    monkeypatch.setattr(sections, "made", lambda settings: sources.made(settings, root))
    monkeypatch.setattr(sections, "governed", lambda settings: sources.governed(settings, root))
    monkeypatch.setattr(asked, "_ROOT", root)
    for name, value in {"FOLDER": str(tmp_path / "old"), "BY": "powercap", "WRITE": "true"}.items():
        monkeypatch.setenv(f"DASK_HPC__POWER__CAP__{name}", value)
    with counting(tree, _Obeys(root)):
        rt = await dask_hpc.install(c)
        await rt.update(**MODEL, power_levers="cap")
        await rt.corridor(upper_w=150)
        # 100 W for the package: its platform draws 50 W more
        await until(lambda: 98 <= limit_w(root) <= 102, "the package has what is left for it", 30)
        found: list[float] = []

        async def held() -> bool:
            power = await rt.power()
            found.append(power["draw_w"])
            return power["label"] == "measured" and found[-1] <= 150 * 1.03

        until_s = time.monotonic() + 30
        while not await held():
            assert time.monotonic() < until_s, found
        await rt.corridor(clear=True)


_PRELOAD = """
from pathlib import Path
from dask_hpc.worker.power import section, sources
from dask_hpc.worker.power.caps import asked

ROOT = Path({root!r})
section.made = lambda settings: sources.made(settings, ROOT)
section.governed = lambda settings: sources.governed(settings, ROOT)
asked._ROOT = ROOT
"""


def begun(*words: str, **config: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, sys.path))
    own = {f"DASK_HPC__{key}": value for key, value in config.items()}
    return subprocess.Popen(
        [sys.executable, "-m", "distributed.cli." + words[0], *words[1:]],
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **own},
        start_new_session=True,
    )


def test_of_a_killed_scheduler_and_a_killed_worker_the_old_values_are_back(tmp_path):
    root, told = tmp_path / "root", tmp_path / "scheduler.json"
    tree = host(root)
    preload = tmp_path / "tree_of_the_test.py"
    preload.write_text(_PRELOAD.format(root=str(root)))
    before = settable(root)
    node = {
        "POWER__CAP__BY": "powercap",
        "POWER__CAP__WRITE": "true",
        "POWER__CAP__SILENCE": "3 s",
        "POWER__CAP__FOLDER": str(tmp_path / "old"),
        "POWER__INTERVAL": "100 ms",
    }
    running = [
        begun(
            "dask_scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(told),
            "--preload", "dask_hpc.preload", TICK="100 ms", POWER__LEVERS="cap",
            POWER__MODEL__IDLE="10", POWER__MODEL__BUSY="200",
        )
    ]  # fmt: skip
    scheduler = running[0]

    def worker() -> subprocess.Popen[str]:
        running.append(
            begun("dask_worker", "--no-nanny", "--no-dashboard", "--scheduler-file", str(told),
                  "--preload", str(preload), **node)
        )  # fmt: skip
        return running[-1]

    def wait_for(done: Any, what: str) -> None:
        until_s = time.monotonic() + 60
        while not done():
            assert time.monotonic() < until_s, what
            time.sleep(0.02)

    def is_capped() -> bool:
        return 0 < limit_w(root) <= 120

    try:
        with counting(tree, {"intel-rapl:0": 150.0}):
            first = worker()
            wait_for(told.exists, "there is a scheduler")
            with Client(scheduler_file=str(told)) as client:
                client.wait_for_workers(1)
                dask_hpc.runtime(client).corridor(upper_w=120)
                wait_for(is_capped, "it is capped")
                first.send_signal(signal.SIGKILL)
                wait_for(lambda: settable(root) == before, "the old values are back without the worker")
                worker()
                wait_for(is_capped, "it is capped again")
                scheduler.send_signal(signal.SIGKILL)
                wait_for(lambda: settable(root) == before, "the old values are back without the scheduler")
        assert not list(tmp_path.rglob("old-values.json"))
    finally:
        for process in running:
            process.kill()
            process.wait()
