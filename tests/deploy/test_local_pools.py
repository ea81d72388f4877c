"""`LocalCluster` with pools: sizes of their own, names, resources and roles; and what is refused."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from distributed import Client
from distributed.utils_test import inc
from outside import PATIENCE_S, until, workers

import dask_hpc
from dask_hpc.deploy.pooled import PoolAdaptive, Pooled
from dask_hpc.scheduler.internals import selfcheck

POOLS = {
    "staging": {"n_workers": 1, "role": "staging", "threads_per_worker": 2, "env": {"IN_POOL": "staging"}},
    "fat": {"resources": {"memory": 3}},
}


def _variable(name):
    import os

    return os.environ.get(name)


def _place(seconds):
    from distributed import get_worker

    time.sleep(seconds)
    return str(get_worker().name)


def test_pools_have_sizes_and_roles_of_their_own_and_only_the_default_one_follows_the_load():
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0", "memory_limit": "1 GiB"}
    with dask_hpc.LocalCluster(**options, pools=POOLS) as cluster, Client(cluster) as client:
        rt = dask_hpc.runtime(client)
        until(lambda: len(set(workers(client))) == 3, "all are there")
        assert set(workers(client)) == {"0", "1", "staging-0"}
        until(lambda: rt.status()["awake"], "it knows that stock does not know of roles")
        found = client.gather(client.map(_place, [0.02] * 40, pure=False))
        assert set(found) <= {"0", "1"}
        there = {"hpc-role-staging": 1}
        assert client.submit(_place, 0, pure=False, resources=there).result(PATIENCE_S) == "staging-0"
        assert client.submit(_variable, "IN_POOL", resources={"staging": 2}).result(PATIENCE_S) == "staging"
        nodes = {node["id"]: node.get("role", "compute") for node in rt.status()["nodes"]}
        assert nodes == {"0": "compute", "1": "compute", "staging-0": "staging"}
        assert cluster.scale(0, pool="staging", dry_run=True)["release"] == {"staging-0": ["staging-0"]}
        cluster.scale(1)
        until(lambda: len(set(workers(client))) == 2, "the default pool is smaller")
        assert "staging-0" in workers(client)
        cluster.scale(2, pool="staging")
        cluster.scale(1, pool="fat")
        until(lambda: len(set(workers(client))) == 4, "the others have grown")
        assert client.submit(_place, 0, pure=False, resources={"memory": 3}).result(PATIENCE_S) == "fat-2"
        assert {name for name in workers(client) if name.startswith("staging")} == {"staging-0", "staging-1"}
        adaptive = cluster.adapt(minimum=1, maximum=2, interval="100 ms")
        futures = client.map(inc, range(200), pure=False)
        assert client.gather(futures) == list(range(1, 201))
        until(lambda: adaptive.state == "running", "it follows the load")
        assert {"staging-0", "staging-1", "fat-2"} <= set(workers(client))
        cluster.scale(0, pool="staging")
        until(lambda: not any(name.startswith("staging") for name in workers(client)), "they have left")
        # of those that come and go no name is kept
        assert not any(str(name).startswith("staging") for name in adaptive._kept_until_s)


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        ({"staging": {"rôle": "staging"}}, "did you mean 'role'"),
        ({"staging": {"role": "cooking"}}, "'cooking'; allowed: compute, staging, reserve"),
        ({"staging": {"n_workers": -1}}, "is -1; allowed: a whole number"),
        ({"1st": {}}, "a letter first"),
        ({"staging": 3}, "is 3; allowed: options"),
        (5, "pools is 5; allowed: options by name"),
        ({"staging": {"resources": 3}}, "is 3; allowed: amounts by name"),
    ],
)
def test_pools_that_cannot_be_are_refused_before_anything_starts(pools, said):
    with pytest.raises(ValueError, match=said):
        dask_hpc.LocalCluster(n_workers=0, pools=pools)


def test_a_release_whose_clusters_have_not_what_is_used_of_them_is_refused(monkeypatch):
    monkeypatch.setattr(selfcheck, "_CLUSTER", [*selfcheck._CLUSTER, "_of_yesterday"])
    with pytest.raises(RuntimeError, match=r"LocalCluster\._of_yesterday is missing\."):
        dask_hpc.LocalCluster(n_workers=0, dashboard_address=":0")


def test_an_unknown_pool_is_named_and_so_are_those_there_are():
    with dask_hpc.LocalCluster(n_workers=0, dashboard_address=":0", pools={"staging": {}}) as cluster:
        with pytest.raises(ValueError, match="'stage'; allowed: 'staging'"):
            cluster.scale(1, pool="stage")
        with pytest.raises(ValueError, match="takes n, dry_run and force"):
            cluster.scale(1, pool="staging", cores=2)
    with (
        dask_hpc.LocalCluster(n_workers=0, dashboard_address=":0") as cluster,
        pytest.raises(ValueError, match="'stage'; allowed: none but the default one"),
    ):
        cluster.scale(1, pool="stage")


def test_a_worker_that_leaves_without_having_come_does_not_end_what_the_cluster_hears():
    with dask_hpc.LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster:
        watch = cluster.scheduler.plugins["worker-status"]
        cluster.loop.add_callback(watch.remove_worker, cluster.scheduler, "inproc://nobody")
        cluster.scale(2)
        until(lambda: len(cluster.scheduler_info["workers"]) == 2, "it hears of the other one")


class Changing(Pooled):
    """Workers a, b and c, the last of which leaves as somebody looks at the first one."""

    def __init__(self):
        self.worker_spec = {name: {} for name in "abc"}

    def _look(self, spec):
        self.worker_spec.pop("c", None)
        return spec

    def _pool_of(self, spec):
        return super()._pool_of(self._look(spec))

    def _workers_of(self, spec):
        return super()._workers_of(self._look(spec))


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda cluster: cluster._specs("")[:2], ["a", "b"]),
        (lambda cluster: cluster._spec_of("b"), "b"),
        (lambda cluster: cluster.workers_per_node, 1),
        (lambda cluster: cluster.elsewhere(), set()),
    ],
)
def test_workers_may_leave_while_another_thread_asks_for_a_size(ask, answer):
    assert ask(Changing()) == answer


class Following(PoolAdaptive):
    """Follows the load of one pool of a cluster that is not there."""

    def __init__(self, **cluster):
        vars(self).update(leaving=set(), _kept_until_s={}, _young=set(), _hold_s=0.0, _releases=set())
        self.interval, self.wait_count, self.close_counts = 1.0, 1, Counter()
        self._workers_to_close_kwargs, self.worker_key = {}, None
        self.minimum, self.maximum, self.target_duration = 0, 10, 5.0
        self.cluster = SimpleNamespace(expiring=set(), **cluster)

    def __del__(self):
        """It never ran."""


def test_a_cluster_that_follows_the_load_by_one_pool_lets_none_of_the_others_go():
    async def all_of_them(**how):
        # whose workers they are the scheduler does not know
        return ["gpu-0", "a", "b"]

    adaptive = Following(
        observed={"a", "b", "gpu-0"},
        elsewhere=lambda: {"gpu-0"},
        scheduler_comm=SimpleNamespace(workers_to_close=all_of_them),
    )
    assert asyncio.run(adaptive.workers_to_close(1)) == ["a"]


def test_a_cluster_that_follows_the_load_by_one_pool_counts_none_of_the_others():
    told = {}

    async def ask(method, **view):
        told.update(view, method=method)
        return {"stay": ["a"], "hold_s": 0.0, "reason": "two are needed", "nodes": 2}

    adaptive = Following(
        plan={"a", "b", "c", "gpu-0", "gpu-1"},
        requested={"a", "b", "gpu-0", "gpu-1"},
        observed={"a", "gpu-0"},
        queued={"c", "gpu-1"},
        elsewhere=lambda: {"gpu-0", "gpu-1"},
        resources_elsewhere=lambda: ["GPU"],
        forget_ended=lambda: None,
        has_runtime=True,
        workers_per_node=1,
        ask=ask,
    )
    assert asyncio.run(adaptive.safe_target()) == 2
    assert (adaptive.plan, adaptive.requested, adaptive.observed) == ({"a", "b", "c"}, {"a", "b"}, {"a"})
    assert (told["method"], told["there"], sorted(told["pending"]), told["queued"]) == (
        "pool", ["a"], ["b", "c"], ["c"]
    )  # fmt: skip
    # they do a part of the work, and what only they have is asked of them alone
    assert (told["elsewhere"], told["resources"]) == (["gpu-0", "gpu-1"], ["GPU"])


def test_an_asynchronous_cluster_with_pools_may_be_awaited_and_closed_later():
    async def run():
        cluster = dask_hpc.LocalCluster(
            n_workers=1,
            processes=False,
            asynchronous=True,
            dashboard_address=":0",
            pools={"staging": {"n_workers": 1}},
        )
        cluster.scale(2)
        # whatever it has put on the loop runs now
        await asyncio.sleep(0.1)
        await asyncio.wait_for(cluster, PATIENCE_S)
        try:
            names = {str(ws.name) for ws in cluster.scheduler.workers.values()}
            assert names == {"0", "1", "staging-0"}
        finally:
            await asyncio.wait_for(cluster.close(), PATIENCE_S)

    asyncio.run(run())


def test_a_smaller_size_that_is_asked_for_before_the_start_is_had_whoever_starts_it():
    async def run():
        async def start():
            await cluster

        options = {"processes": False, "asynchronous": True, "dashboard_address": ":0"}
        cluster = dask_hpc.LocalCluster(n_workers=3, **options)
        # it has not asked for a size itself
        starting = asyncio.ensure_future(start())
        cluster.scale(1)
        await asyncio.wait_for(starting, PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            while len(cluster.scheduler.workers) != 1:
                await asyncio.sleep(0.02)
        await asyncio.wait_for(cluster.close(), PATIENCE_S)

    asyncio.run(run())


def test_workers_that_are_being_closed_already_are_not_asked_for_besides():
    asked = []

    async def run():
        closed = asyncio.Event()

        async def close(names, **how):
            adaptive.cluster.plan.difference_update(names)
            await closed.wait()

        adaptive.cluster.let_go = close
        await adaptive.scale_down({"b", "c"})
        while adaptive.cluster.plan != {"a"}:
            await asyncio.sleep(0)
        assert adaptive.leaving == {"b", "c"}
        await adaptive.scale_up(3)
        # their names are given anew
        adaptive.cluster.plan.update({"b", "c"})
        await adaptive.scale_up(3)
        closed.set()
        await asyncio.gather(*adaptive._releases)

    adaptive = Following(
        plan={"a", "b", "c"},
        elsewhere=set,
        together=lambda names: [{name} for name in sorted(names)],
        busy=lambda: {"a", "b", "c"},
        has_runtime=False,
        scale=asked.append,
    )
    adaptive.state = "running"
    asyncio.run(asyncio.wait_for(run(), 20))
    assert asked == [3, 3]


def test_those_on_their_way_out_are_asked_for_besides_and_those_that_stayed_are_left_alone():
    asked = []

    async def stays(names, **how):
        """Whoever is asked to go stays, but for one that goes by itself."""
        adaptive.cluster.plan.discard("c")

    async def run():
        await adaptive.scale_down({"b", "c"})
        # one of the three is to stay, and two on their way out are there until they have gone
        await adaptive.scale_up(1)
        await asyncio.gather(*adaptive._releases)
        adaptive.state = "stopped"
        await adaptive.scale_up(1)
        await adaptive.scale_down({"a"})

    adaptive = Following(
        plan={"a", "b", "c"},
        elsewhere=set,
        together=lambda names: [{name} for name in sorted(names)],
        busy=lambda: {"a", "b", "c"},
        let_go=stays,
        has_runtime=False,
        scale=asked.append,
    )
    adaptive.state = "running"
    asyncio.run(run())
    assert asked == [3]  # who has stopped asks for nothing any more
    assert (adaptive.leaving, set(adaptive._kept_until_s)) == (set(), {"b"})
