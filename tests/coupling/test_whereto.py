"""Where blocks and analyses of a flow go when workers are lost or wanted by others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import WorkerPlugin
from distributed.comm import connect
from helpers import live, until
from sources import in_loop

import dask_hpc
from dask_hpc.coupling import given
from dask_hpc.coupling import source as of_source
from dask_hpc.coupling.kept import Kept
from dask_hpc.errors import CouplingError
from dask_hpc.scheduler.coupling.flow import Flow
from dask_hpc.scheduler.coupling.joining import Joining
from dask_hpc.scheduler.coupling.workers import Workers
from dask_hpc.wire import COUPLE

HERE = "tcp://here:1"


def test_a_source_comes_back_at_once_where_its_worker_was_replaced_and_then_waits_for_another() -> None:
    there = {HERE: ["here"]}
    flow = Flow("heat", "id", (), 2, "wait", "client")
    workers: Any = SimpleNamespace(hosts=lambda client: there)
    engine: Any = SimpleNamespace(scheduler=SimpleNamespace(workers=there))
    again: Any = SimpleNamespace(wanted=lambda *asked: [])
    joining = Joining(engine, workers, again, {"heat": flow}.get, None)  # type: ignore[arg-type]

    async def check() -> None:
        async def join(lost: str | None = None) -> dict[str, Any]:
            return await joining.flow_join("heat", 0, 1, "token", ["here"], lost=lost)

        assert (await join())["worker"] == HERE
        # another one has its address
        flow.adrift.add(0)
        assert (await join(lost=HERE))["worker"] == HERE
        assert await join(lost=HERE) == {"wait": f"worker {HERE} does not answer"}

    asyncio.run(check())


def test_analyses_go_where_blocks_would_come_now_when_none_of_their_flows_workers_fits() -> None:
    flow: Any = SimpleNamespace(client="client")
    workers = object.__new__(Workers)
    fit = {"a": ["host"], "b": ["host"]}
    workers.hosts = lambda client: fit  # type: ignore[method-assign]
    assert workers._next(flow, ["a", "drained"]) == ["a"]
    assert workers._next(flow, ["drained"]) == ["a", "b"]
    assert workers._next(flow, []) == []

    def none(client: str) -> dict[str, list[str]]:
        raise CouplingError("no worker is there that blocks could go to; add workers")

    workers.hosts = none  # type: ignore[method-assign]
    assert workers._next(flow, ["drained"]) == ["drained"]


def test_a_source_keeps_of_what_a_lost_worker_had_only_what_the_next_one_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(*said: Any) -> dict[str, Any]:
        return {}

    async def connect(*asked: Any, **options: Any) -> Any:
        return SimpleNamespace(write=nothing, read=nothing)

    monkeypatch.setattr(of_source, "connect", connect)
    source = object.__new__(dask_hpc.Source)
    source._kept, source._security, source.rank, source._last = Kept(), {}, 0, 5
    for step in (4, 5):
        # else the memory of the ring of the lost one would be there as long as the source is
        source._kept.copy(step, [], [], most=2)
    told = {"worker": HERE, "flow": "id", "place": 0, "members": [0], "fields": [], "slots": 2, "again": [5]}
    assert asyncio.run(source._connected(told))
    assert list(source._kept) == [5]


def test_a_scheduler_that_has_not_written_its_file_yet_is_waited_for(
    monkeypatch, tmp_path: Path, caplog
) -> None:
    path, texts = tmp_path / "scheduler.json", ['{"address": "tcp', '{"address": "tcp://127.0.0.1:1"}']
    monkeypatch.setattr(given.time, "sleep", lambda _: path.write_text(texts.pop(0)))
    monkeypatch.setattr(given, "_SAID_S", 0.0)
    assert given.address_of(path, 60) == "tcp://127.0.0.1:1"
    # once, however long it takes
    said = f"Waiting for a scheduler, up to 30 s: '{path}' is not a scheduler file: No such file"
    assert [one.getMessage().startswith(said) for one in caplog.records] == [True]


def test_a_file_of_a_scheduler_is_not_waited_for_where_none_can_come_or_nothing_else_could_run(
    monkeypatch, tmp_path: Path
) -> None:
    sleeps: list[float] = []
    monkeypatch.setattr(given.time, "sleep", sleeps.append)
    with pytest.raises(ValueError, match="is not a scheduler file: No such file"):
        dask_hpc.Source("heat", tmp_path / "none" / "scheduler.json")
    with pytest.raises(RuntimeError, match="a Source blocks: call it outside"):
        asyncio.run(in_loop(lambda: dask_hpc.Source("heat", tmp_path / "none.json")))
    assert sleeps == []


class _Held(WorkerPlugin):
    """Goes after all others, once it is let."""

    def __init__(self) -> None:
        self.others_gone, self.may_go = asyncio.Event(), asyncio.Event()

    async def teardown(self, worker: Any) -> None:
        """The others do not wait while they go."""
        self.others_gone.set()
        await self.may_go.wait()


@live(workers=1)
async def test_a_producer_that_comes_as_its_worker_closes_is_not_told_that_this_lacks_dask_hpc(
    c: Any, s: Any, a: Any
) -> None:
    held = _Held()
    await dask_hpc.install(c)
    await until(lambda: COUPLE in a.handlers, "the worker takes blocks")
    await a.plugin_add(held, name="held")
    closing = asyncio.ensure_future(a.close())
    await held.others_gone.wait()
    comm = await connect(a.address)
    told = {"flow": "id", "place": 0, "members": [0], "worker": a.address, "rank": 0}
    await comm.write({"op": COUPLE, **told})
    answer = await comm.read()
    held.may_go.set()
    await closing
    # no answer at all is what comes where dask_hpc is not installed
    assert answer == {"error": "flow '' is closed", "user": False}
