"""What cannot be is refused where it is given, with what is allowed, and never in Python's own words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import dask
import pytest
from cloudpickle import dumps
from distributed import Client, LocalCluster, get_client

import dask_hpc
from dask_hpc.errors import InstallError

#: What somebody may give who did not read.
NOTHING: tuple[Any, ...] = (None, [], 5, object())
#: The same where None is allowed.
WRONG = NOTHING[1:]
#: Calls of the runtime, or of none, with what cannot be; what is given; what is said of it.
CALLS: dict[str, tuple[Callable[[Any, Any], Any], tuple[Any, ...], str]] = {
    "install": (lambda _, bad: dask_hpc.install(bad), NOTHING, "client is .*; allowed: a connected Client"),
    "find": (lambda rt, bad: rt.find(bad), NOTHING, "job is .*; needed: the id or name of a job"),
    "cancel": (lambda rt, bad: rt.cancel(bad), NOTHING, "job is .*; needed: the id or name of a job"),
    "decisions": (lambda rt, bad: rt.decisions(bad), WRONG, "job is .*; needed: the id or name of a job"),
    "node": (lambda rt, bad: rt.set_role(bad, "staging"), NOTHING, "node is .*; needed: the id of a node"),
    "role": (lambda rt, bad: rt.set_role("n", bad), NOTHING, "role is .*; needed: 'compute', "),
    "names": (lambda rt, bad: rt.expect(bad), (None, "abc", 5, [5]), "names is .*; needed: a list of te"),
    "script": (lambda rt, bad: rt.batch_job(bad), NOTHING, "script is .*; needed: the path of a file"),
    "series": (lambda rt, bad: rt.corridor(series=bad), WRONG, "series is .*; needed: the path of a file"),
    "size": (lambda rt, bad: rt.job("a").program(bad, "x"), NOTHING[:2], "size is .*; allowed: a number of"),
    "dim": (lambda rt, bad: rt.job("a").program(8, bad), (*NOTHING, ""), "dim is .*; needed: the name"),
    "layout": (lambda rt, bad: rt.job("a").program(8, "x", layout=bad), WRONG, "layout is .*; needed: "),
    "plan": (lambda rt, bad: rt.job("a").program(8, "x", plan=bad), NOTHING, "plan is .*; needed: a fun"),
    "join": (lambda rt, bad: rt.job("a").producer(bad), WRONG, "join is .*; needed: a function"),
    "path": (lambda _, bad: dask_hpc.open_checkpoint(bad), (*NOTHING, ""), "path is .*; allowed: the fo"),
    "key": (lambda rt, bad: dask_hpc.restore("a", rt.client, key_file=bad), WRONG, "key_file is .*; allo"),
    "trust": (
        lambda rt, bad: dask_hpc.restore("a", rt.client, allow_pickle=bad),
        (None, "maybe", 1),
        "'allow_pickle' cannot be .*: it must be true or false",
    ),
    "scheduler": (lambda _, bad: dask_hpc.Source("a", bad), NOTHING, "scheduler is .*; needed: its address"),
    "security": (
        lambda _, bad: dask_hpc.Source("a", "tcp://127.0.0.1:1", security=bad),
        (True, "tls", {}),
        "security is .*; needed: a distributed.Security",
    ),
    "number": (lambda rt, bad: rt.decisions(limit=bad), (2**70,), "decisions: .*; allowed: no number of"),
    "reason": (lambda rt, bad: rt.cancel("a", bad), NOTHING, "reason is .*; needed: a text"),
    "data": (lambda _, bad: dask_hpc.provide(bad), ({},), "provide was called where no worker is"),
    "exchange": (
        lambda _, bad: dask_hpc.CheckpointSession("a", store="s", exchange=bad),
        WRONG,
        "exchange is .*; allowed: a function",
    ),
}


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with (
        LocalCluster(n_workers=1, processes=False, protocol="tcp", dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield dask_hpc.install(client)


@pytest.mark.parametrize("name", CALLS)
def test_what_cannot_be_is_refused_with_what_is_allowed(runtime: Any, name: str) -> None:
    call, given, says = CALLS[name]
    for bad in given:
        with pytest.raises((TypeError, ValueError), match=says):
            call(runtime, bad)
    assert runtime.jobs() == []


def test_names_that_are_awaited_come_from_anything_that_gives_them(runtime: Any) -> None:
    assert [future.key for future in runtime.expect(f"step-{number}" for number in range(2))] == [
        "step-0",
        "step-1",
    ]


@pytest.mark.parametrize("data", [None, [5], 5])
def test_what_provides_no_names_is_refused_on_the_worker(runtime: Any, data: Any) -> None:
    with pytest.raises(TypeError, match=r"data is .*; needed: a dict of data by the names"):
        runtime.client.submit(dask_hpc.provide, data).result(20)


def test_a_function_of_a_task_that_uses_a_handle_says_what_to_use_instead(runtime: Any) -> None:
    flow = runtime.couple("a", {"T": (("y",), (4,), "float64")})
    for handle in (runtime, runtime.job("a"), runtime.job("a").producer(), flow):
        with pytest.raises(TypeError, match=r"cannot be sent: in a task dask_hpc\.runtime\(distributed\."):
            dumps(lambda handle=handle: handle)
    flow.close()

    def pool() -> int:
        nodes: int = dask_hpc.runtime(get_client()).status()["pool_nodes"]
        return nodes

    assert runtime.client.submit(pool).result(20) == runtime.status()["pool_nodes"]


def test_a_client_that_has_lost_its_scheduler_for_good_says_that_it_is_closed() -> None:
    with dask.config.set({"distributed.comm.timeouts.connect": "200 ms"}):
        with LocalCluster(n_workers=0, dashboard_address=":0") as cluster:
            client = Client(cluster.scheduler_address, set_as_default=False)
            rt = dask_hpc.install(client)
            job = rt.job("a", nodes=1).activate()
        deadline_s = time.monotonic() + 20
        while client.status != "closed":
            assert time.monotonic() < deadline_s, client.status
            time.sleep(0.01)
        for ask in (rt.jobs, rt.uninstall, job.cancel, lambda: dask_hpc.install(client)):
            with pytest.raises(InstallError, match=r"client .* clos"):
                ask()
