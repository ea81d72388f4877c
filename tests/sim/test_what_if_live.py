"""A running cluster as the start of a simulation: by command, and from Python."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from distributed import Client, Event
from distributed.utils_test import gen_cluster

import dask_hpc
from dask_hpc.cli import state
from dask_hpc.errors import WorkloadError
from dask_hpc.sim.what_if import engine_from, simulate_from


def wait(stop: Event) -> None:
    stop.wait(60)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3)
async def test_a_snapshot_is_what_the_policy_sees(c: Any, s: Any, *workers: Any) -> None:
    runtime = await dask_hpc.install(c, "fcfs")
    with pytest.raises(WorkloadError, match="no job runs or waits there"):
        engine_from(await runtime.snapshot(), "fcfs")
    stop = Event("stop-what-if", client=c)
    async with runtime.job("first", nodes=2, walltime=100) as first:
        task = c.submit(wait, stop)
    async with runtime.job("second", nodes=2, walltime=10) as second:
        other = c.submit(wait, stop, key="other")
    wanted = {first.id: "running", second.id: "pending"}
    # the jobs are on a stream of their own
    view = await runtime.snapshot()
    while {job.id: job.state for job in view.jobs} != wanted:
        await asyncio.sleep(0.01)
        view = await runtime.snapshot()
    assert (view.idle_nodes, view.pool_nodes) == (1, 3)
    assert view.sections["lending"] == {"limit_s": 5.0, "saturation": s.WORKER_SATURATION}
    result = simulate_from(view, "fcfs")
    one, two = result.runs
    assert (one.start_s, two.start_s) == (view.now_s, one.end_s)
    assert one.end_s is not None
    assert 0 < one.end_s - view.now_s <= 100
    assert two.end_s == pytest.approx(one.end_s + 10)
    # another machine: nobody has to wait
    wide = simulate_from(view, "fcfs", nodes=4)
    assert wide.runs[1].start_s == view.now_s
    await stop.set()
    await c.gather([task, other])


def test_the_commands_go_on_from_a_running_cluster(client: Client, s: Any, tmp_path: Path) -> None:
    runtime = dask_hpc.install(client, policy="fcfs")
    address = s["address"]
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"type": "Scheduler", "address": address}))
    empty = run("simulate", address, "--policy", "easy")
    assert (empty.exit_code, empty.stderr.count("\n")) == (1, 1)
    stop = Event("stop-what-if", client=client)
    with runtime.job("long", nodes=2, walltime=1000):
        futures = [client.submit(wait, stop)]
    with runtime.job("next", nodes=1):
        futures.append(client.submit(wait, stop, key="next"))
    try:
        for _ in range(3000):
            if [job.state for job in runtime.snapshot().jobs] == ["running", "pending"]:
                break
            time.sleep(0.01)
        refused = run("simulate", address, "--policy", "easy")
        assert refused.exit_code == 1
        assert "--default-time, in Python default_s" in refused.stderr
        arguments = ("--policy", "easy", "--default-time", "60 s", "--json")
        for source in (address, str(file)):
            found = json.loads(run("simulate", source, *arguments).stdout)
            long, after = found["jobs"]
            assert (long["name"], after["name"]) == ("long", "next")
            from_s = found["what_if"]["from_s"]
            assert long["start_s"] == from_s
            assert after["start_s"] == long["end_s"]
            assert after["end_s"] == pytest.approx(long["end_s"] + 60)
            assert 0 < found["makespan_s"] - 60 <= 1000
        text = run("simulate", address, *arguments[:-1])
        assert "1 jobs running, 1 waiting, 2 nodes" in text.stderr
        heading = next(line for line in text.stdout.splitlines() if line.startswith("JOB"))
        assert heading.split("  ")[-1].strip() == "NODES"
        wide = json.loads(run("simulate", address, *arguments, "--nodes", "3").stdout)
        assert wide["mean_wait_s"] == 0
        compared = run("compare", address, "--policy", "fcfs", *arguments)
        assert [run["label"] for run in json.loads(compared.stdout)["runs"]] == ["fcfs", "easy"]
        wrong = run("simulate", address, *arguments, "--malleable-share", "1")
        assert (wrong.exit_code, wrong.stdout) == (2, "")
        assert "--malleable-share cannot be used with the state of a cluster" in wrong.stderr
    finally:
        stop.set()
        client.gather(futures)


def test_nobody_at_the_address_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_TIMEOUT_S", 0.2)
    result = run("simulate", "tcp://127.0.0.1:1", "--policy", "easy")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: no scheduler answers at tcp://127.0.0.1:1")
    assert result.stderr.count("\n") == 1
