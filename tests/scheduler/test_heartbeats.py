"""Every worker has our plugin, whatever made it; its heartbeats tell what only the worker knows."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import dask.config
import psutil
import pytest
from command_line import run
from distributed import Client, Nanny, Scheduler, Worker
from distributed.protocol.pickle import dumps
from distributed.utils_test import gen_test, inc
from helpers import engine, live, started, until

import dask_hpc
from dask_hpc.config import Settings, settings
from dask_hpc.errors import ConfigError
from dask_hpc.scheduler.install import attach
from dask_hpc.scheduler.internals.remote import sections_of
from dask_hpc.wire import HEARTBEAT, WORKER_PLUGIN
from dask_hpc.worker import heartbeat
from dask_hpc.worker.carried import carried
from dask_hpc.worker.node import node_settings
from dask_hpc_policies.codec import encode

LIMIT_S = 86_400.0
QUICK = {"distributed.scheduler.worker-ttl": None, "hpc.tick": "100 ms"}


def told(scheduler: Scheduler) -> list[dict[str, Any]]:
    return [dict(sections_of(ws)) for ws in scheduler.workers.values()]


def all_tell(scheduler: Scheduler, count: int) -> bool:
    found = told(scheduler)
    return len(found) == count and all("node" in sections for sections in found)


async def beat(workers: Any) -> None:
    """Heartbeats now; by themselves they come every half second or so."""
    for worker in workers:
        await worker.heartbeat()


@pytest.mark.parametrize(
    ("where", "domain"),
    [
        (("top.s1.n17", "switch.switch.node"), "top.s1"),
        (("top.s1.n17.site.org", "switch.switch.node"), "top.s1"),
        # no topology is configured, or there is no job
        (("n17", "node"), None),
        ((None, None), None),
        (("top.s1.n17", None), None),
        (("", "switch.node"), None),
    ],
)
def test_a_failure_domain_may_be_what_slurms_topology_says(where, domain, monkeypatch):
    for name, value in zip(("SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN"), where, strict=True):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    with dask.config.set({"hpc.node.domain": "slurm-topology"}):
        assert node_settings().node_domain == domain
    # it is not asked where nobody wants that
    assert node_settings().node_domain is None
    with dask.config.set({"hpc.node.domain": "rack-1"}):
        assert node_settings().node_domain == "rack-1"


@live(workers=2, config={"hpc.walltime.limit": f"{LIMIT_S} s", "hpc.node.domain": "rack-1"})
async def test_walltime_left_and_labels_are_in_snapshot_and_status_and_go_when_we_go(c, s, a, b):
    rt = await dask_hpc.install(c)
    late = await Worker(s.address, nthreads=1)
    workers = (a, b, late)
    await until(lambda: all(WORKER_PLUGIN in w.plugins for w in workers), "the plugin is everywhere")
    await beat(workers)
    assert all_tell(s, 3)
    async with rt.job("main", nodes=1) as job:
        await started(s, job, 1)
        status, snapshot = await rt.status(), await rt.snapshot()
        for node in (*status["nodes"], *map(encode, snapshot.nodes)):
            left_s = psutil.Process().create_time() + LIMIT_S - time.time()
            assert node["walltime_left_s"] == pytest.approx(left_s, abs=2.0)
            assert node["domain"] == "rack-1"
            assert node["host"] == "127.0.0.1"
    await rt.uninstall()
    for worker in workers:
        assert WORKER_PLUGIN not in worker.plugins
        assert HEARTBEAT not in worker.metrics
    assert WORKER_PLUGIN not in s.worker_plugins
    await beat(workers)
    assert told(s) == [{}, {}, {}]
    await late.close()


@live(workers=2)
async def test_the_heartbeats_of_a_worker_that_has_nothing_to_tell_are_those_of_stock(c, s, a, b):
    await beat((a, b))
    before = {ws.name: set(ws.metrics) for ws in s.workers.values()}
    rt = await dask_hpc.install(c)
    await until(lambda: all(HEARTBEAT in w.metrics for w in (a, b)), "the plugin is everywhere")
    await beat((a, b))
    assert {ws.name: set(ws.metrics) for ws in s.workers.values()} == before
    # what a worker comes to know later is told
    a.metrics[HEARTBEAT].section("node")._told["domain"] = "rack-1"
    await beat((a, b))
    assert sorted(map(len, told(s))) == [0, 1]
    await rt.uninstall()


@pytest.mark.errors("Section .* of the heartbeats fails")
@live(workers=2)
async def test_a_section_that_fails_says_so_and_takes_nothing_else_with_it(c, s, a, b, monkeypatch):
    def failing(worker):
        def sample():
            raise OSError("the sensor is gone")

        return sample

    def unmade(worker):
        raise ValueError("no sensor")

    for name, make in (("failing", failing), ("unmade", unmade)):
        monkeypatch.setitem(heartbeat.SECTIONS, name, make)
    rt = await dask_hpc.install(c)
    await until(lambda: all(WORKER_PLUGIN in w.plugins for w in (a, b)), "the plugin is everywhere")
    await beat((a, b))
    for sections in told(s):
        assert sections == {
            "failing": {"error": "OSError: the sensor is gone"},
            "unmade": {"error": "ValueError: no sensor"},
        }
    failures = (await rt.status())["heartbeat_failures"]
    assert failures == {
        str(w.name): {"failing": "OSError: the sensor is gone", "unmade": "ValueError: no sensor"}
        for w in (a, b)
    }
    assert await c.submit(inc, 1) == 2
    await rt.uninstall()


@live(workers=1)
async def test_what_a_heartbeat_says_that_makes_no_sense_is_passed_over(c, s, a):
    rt = await dask_hpc.install(c)
    await until(lambda: WORKER_PLUGIN in a.plugins, "the plugin is there")
    for nonsense in ({"end_s": float("nan"), "host": 7, "domain": ""}, {"end_s": "soon"}, "no section", None):
        a.metrics[HEARTBEAT] = lambda worker, nonsense=nonsense: {"node": nonsense}
        await a.heartbeat()
        async with rt.job("main", nodes=1) as job:
            await started(s, job, 1)
            (node,) = (await rt.status())["nodes"]
        assert (node["walltime_left_s"], node["host"], node["domain"]) == (None, "127.0.0.1", "127.0.0.1")


def test_a_worker_without_the_package_or_with_another_version_takes_no_harm(tmp_path):
    script = """
import sys
from pickle import load
class Worker:
    metrics = {}
    handlers = {}
    status = None
    class state:
        tasks = total_resources = available_resources = {}
with open(sys.argv[1], "rb") as file:
    for plugin in (load(file), load(file)):
        plugin.setup(Worker)
        plugin.teardown(Worker)
assert Worker.metrics == {}
"""
    hidden = tmp_path / "without" / "dask_hpc"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('it is hidden')")
    payload = tmp_path / "plugins"
    payload.write_bytes(dumps(carried("0.0.1")) + dumps(carried("0.0.2")))
    for path, said in ((str(hidden.parent), "missing"), (None, "dask_hpc is ")):
        environment = {} if path is None else {"PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", script, str(payload)],
            env={**os.environ, **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("will not know when this worker's walltime ends") == 2, done.stderr
        assert said in done.stderr


@gen_test(timeout=10)
async def test_who_closes_a_worker_waits_for_what_takes_its_time_and_for_nothing_else():
    ended = []

    async def ends():
        ended.append("slow")

    plugin = carried("0.0.1")
    names = ("heartbeat", "small", "power.switch", "coupling.switch", "io.switch")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setitem(sys.modules, f"dask_hpc.worker.{name}", SimpleNamespace(stop=ended.append))
        assert plugin.teardown("worker") is None
        patch.setitem(
            sys.modules, "dask_hpc.worker.coupling.switch", SimpleNamespace(stop=lambda worker: ends())
        )
        await plugin.teardown("worker")
    assert ended == ["worker"] * 9 + ["slow"]


@gen_test(timeout=120)
async def test_worker_processes_tell_by_their_own_configuration_also_after_a_restart():
    limit = f"{LIMIT_S:g} s"
    with dask.config.set(QUICK):
        async with (
            Scheduler(dashboard_address=":0", host="127.0.0.1") as s,
            Client(s.address, asynchronous=True) as c,
        ):
            attach(s)
            async with (
                Nanny(s.address, name="a", nthreads=1, config={"hpc.node.domain": "rack-1"}) as a,
                Nanny(
                    s.address,
                    name="b",
                    nthreads=1,
                    config={"hpc.node.host": "board-2", "hpc.walltime.limit": limit},
                ),
            ):
                await c.wait_for_workers(2)
                await until(lambda: sum("node" in each for each in told(s)) == 2, "two tell")
                begun_s = time.time()
                async with engine(s).kept_awake():
                    nodes = {node["id"]: node for node in await _status_nodes(c)}
                    assert nodes["a"]["domain"] == "rack-1"
                    assert nodes["a"]["walltime_left_s"] is None
                    assert (nodes["b"]["host"], nodes["b"]["domain"]) == ("board-2", "board-2")
                    left_s = nodes["b"]["walltime_left_s"]
                    assert LIMIT_S - 60 < left_s <= LIMIT_S
                    shown = await asyncio.to_thread(run, "status", "--json", "--address", s.address)
                    seen = {node["id"]: node for node in json.loads(shown.output)["nodes"]}
                    passed_s = time.time() - begun_s
                    assert seen["b"]["walltime_left_s"] == pytest.approx(left_s, abs=passed_s + 1.0)
                    assert seen["b"]["walltime_left_s"] <= left_s
                    await a.kill()
                    await a.instantiate()
                    await until(lambda: sum("node" in each for each in told(s)) == 2, "it tells again")
                    await until(
                        lambda: engine(s).state.nodes.nodes["a"].facts.domain == "rack-1", "it is in its rack"
                    )


async def _status_nodes(client: Client) -> list[dict[str, Any]]:
    runtime = await dask_hpc.runtime(client)
    return (await runtime.status())["nodes"]


def test_labels_belong_to_the_node_alone():
    with dask.config.set({"hpc.node.host": "here"}):
        assert settings().node_host == "here"
    with pytest.raises(ConfigError, match=r"node\.host"):
        Settings().updated_live(node_host="elsewhere")
