"""How many leave, and which: no more than asked, all of a batch job together, and nobody asks in a loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Status, Worker
from distributed.deploy.spec import ProcessInterface
from elastic_clusters import Shrinkable, shrinkable
from elastic_work import result_of
from waits import until

import dask_hpc
from dask_hpc.deploy.adaptive import PolicyAdaptive
from dask_hpc.deploy.scaling import SafeScaling
from dask_hpc.scheduler.leaving.releases import logger
from dask_hpc.scheduler.rpc.service import of


@pytest.mark.parametrize(
    ("asked", "workers"),
    [
        ({"memory": "2.5 GiB"}, 3),
        ({"memory": "2 GiB"}, 2),
        ({"memory": "1 B"}, 1),
        ({"cores": 5}, 3),
        ({"n": 4, "memory": "2 GiB", "cores": 3}, 4),
        ({"n": 1, "memory": "2.5 GiB", "cores": 3}, 3),
        ({"n": 1, "memory": "1 GiB", "cores": 8}, 4),
    ],
)
def test_a_size_in_memory_or_cores_is_that_of_the_workers_that_hold_it(
    asked: dict[str, Any], workers: int
) -> None:
    async def run() -> None:
        async with shrinkable(0, threads_per_worker=2, memory_limit="1 GiB") as made:
            assert (await made.cluster.scale(**asked, dry_run=True))["add"] == workers
            made.cluster.scale(**asked)
            await made.size(workers)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("constraint", "count", "held"), [("any", 1, 3), ("any", 2, 2), ("pof2", 2, 2), ("pof2", 1, 2)]
)
def test_a_release_lets_no_more_nodes_go_than_were_asked_for(constraint: str, count: int, held: int) -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            runtime = await dask_hpc.install(made.client, "fcfs")
            fields = {"nodes": 4, "min_nodes": 1, "max_nodes": 4, "constraint": constraint}
            async with runtime.job("fit", **fields) as job:
                await until(lambda: _held(made, job) == 4, "it runs on all nodes")
                plan = await made.cluster.scale(4 - count, dry_run=True)
                assert len(plan["release"]) == count
                answer = await made.cluster.ask("release", count=count)
                assert len(answer["released"]) == count
                assert answer["refused"] == {}
                assert len(made.scheduler.workers) == 4 - count
                # what a job gives up beyond that, for a size that it may have, is idle
                assert _held(made, job) == held
                if held < 4 - count:  # and may leave the next time
                    assert len((await made.cluster.ask("release", count=1))["released"]) == 1
                    assert _held(made, job) == held

    asyncio.run(run())


def test_of_all_nodes_the_one_with_most_data_is_not_even_asked_to_leave() -> None:
    async def run() -> None:
        async with shrinkable(3) as made:
            small = await made.results(3)
            large = await made.client.scatter(bytes(10**6), workers=[made.address(1)])
            plan = await made.cluster.scale(0, dry_run=True)
            assert {name for names in plan["release"].values() for name in names} == {0, 2}
            assert set(plan["refused"]) == {"1"}
            assert "no other worker has room" in plan["refused"]["1"]
            del small, large
            await until(lambda: not made.scheduler.tasks, "nobody wants anything")
            assert len((await made.cluster.scale(0, dry_run=True))["release"]) == 3

    asyncio.run(run())


def test_why_a_node_stays_is_told_once_and_not_after_it_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[Any] = []
    monkeypatch.setattr(logger, "warning", lambda _text, *values: warned.append(values))

    async def run() -> None:
        async with shrinkable(3) as made:
            await made.cluster.pin(1)
            answer = await made.cluster.ask("release", count=1)
            assert (len(answer["released"]), answer["refused"]) == (1, {}), "enough have left"
            answer = await made.cluster.ask("release", count=2)
            assert set(answer["refused"]) == set(made.cluster.refused) == {"1"}
            assert (await made.cluster.ask("release", count=1))["refused"] == answer["refused"]
            assert warned == [*answer["refused"].items()], "in the log once"
            await made.cluster.unpin(1)
            assert set((await made.cluster.ask("release", count=1))["released"]) == {"1"}
            assert made.cluster.refused == {}

    asyncio.run(run())


def test_what_was_let_go_by_name_is_not_asked_for_again_and_leaves_nothing() -> None:
    async def run() -> None:
        async with shrinkable(1) as made:
            made.cluster.scale(3)
            await made.size(3)
            await made.cluster.scale_down([0])
            assert made.names() == {"1", "2"}
            # whoever looks from now on replaces nothing
            assert made.cluster._excess("") == 0
            await made.cluster._correct_state()
            assert set(made.cluster._made) == {1, 2}

    asyncio.run(run())


def test_a_worker_that_somebody_has_started_by_hand_is_not_the_cluster_s_to_let_go() -> None:
    async def run() -> None:
        async with shrinkable(2) as made, Worker(made.cluster.scheduler_address, name="mine", nthreads=1):
            # the others would cost more
            futures = await made.results(workers=[made.address(0), made.address(1)])
            plan = await made.cluster.scale(1, dry_run=True)
            assert len(plan["release"]) == 1
            assert "mine" not in plan["release"]
            made.cluster.scale(1)
            await until(lambda: len(made.cluster.workers) == 1, "one has left")
            assert made.names() == {"mine", *map(str, made.cluster.workers)}
            del futures

    asyncio.run(run())


def test_a_worker_that_comes_while_another_is_about_to_be_closed_has_another_name() -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            cluster = made.cluster

            async def forget(specs: set[Any]) -> None:
                [spec] = specs
                del cluster.worker_spec[spec]
                # as somebody may in another thread
                cluster.scale(2)
                await cluster._open()

            cluster._forget = forget
            cluster.scale(1)
            await until(lambda: len(made.names() - {"0", "1"}) == 1, "another one has come")
            await made.size(2)

    asyncio.run(run())


class Pair(ProcessInterface):
    """Two workers that come and go together, as those of a batch job do."""

    def __init__(self, scheduler: str, name: str) -> None:
        super().__init__()
        self._workers = [Worker(scheduler, name=f"{name}-{number}", nthreads=1) for number in range(2)]

    async def start(self) -> None:
        await asyncio.gather(*self._workers)
        await super().start()

    async def close(self, **kwargs: Any) -> None:
        await asyncio.gather(*(worker.close(**kwargs) for worker in self._workers))
        await super().close()


def test_workers_of_a_batch_job_leave_together_whichever_of_them_is_named() -> None:
    async def run() -> None:
        async with shrinkable(0) as made:
            for name in ("a", "b", "c"):
                made.cluster.worker_spec[name] = {"cls": Pair, "options": {}, "group": ["-0", "-1"]}
            await made.cluster._correct_state()
            await until(lambda: len(made.names()) == 6, "all are there")
            futures = await made.results(12)
            await made.cluster.scale_down(["a-1"])
            assert made.names() == {"b-0", "b-1", "c-0", "c-1"}
            assert set(made.cluster.worker_spec) == {"b", "c"}
            # each is named once, and one of them twice
            await made.cluster.scale_down(["c-0", "c-1"])
            assert made.names() == {"b-0", "b-1"}
            assert await made.client.gather(futures) == [result_of(number) for number in range(12)]
            assert made.tally.twice() == []

    asyncio.run(run())


def test_what_was_refused_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    again_s = 1.0

    async def run() -> None:
        async with shrinkable(2, again_s=again_s) as made:
            asked = []
            ask = made.cluster.ask

            async def counted(method: str, **arguments: Any) -> Any:
                asked.append(method)
                return await ask(method, **arguments)

            monkeypatch.setattr(made.cluster, "ask", counted)
            await made.cluster.pin(0, 1)
            made.cluster.scale(0)
            await until(lambda: set(made.cluster.refused) == {"0", "1"}, "both say why they stay")
            before, began_s = asked.count("release"), time.monotonic()
            # so many answers of the same scheduler: whoever asked in a loop would have had about as many
            for _ in range(100):
                await made.cluster.scheduler_comm.identity()
            assert asked.count("release") - before <= 1 + (time.monotonic() - began_s) / again_s

    asyncio.run(run())


def test_adapt_closes_no_more_than_are_too_many_when_another_one_stays() -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            adaptive = made.cluster.adapt(minimum=1, maximum=4, interval="1 h")
            (last,) = set(made.cluster.workers) - set(await adaptive.workers_to_close(1))
            await made.cluster.pin(last)
            await adaptive.scale_down({last})
            await until(lambda: not adaptive.leaving, "it was asked and stays")
            assert set(made.cluster.refused) == {str(last)}
            # Dask names one more for the one that stays, which is not among those that it would close first
            assert [len(await adaptive.workers_to_close(left)) for left in (3, 2, 1)] == [1, 2, 3]
            assert (await adaptive.recommendations(1))["status"] == "same"
            # two looks' worth of waiting has been done there already
            adaptive._hold_s = 2 * adaptive.interval
            assert (await adaptive.recommendations(1))["status"] == "down"

    asyncio.run(run())


def test_adapt_has_whole_nodes_and_no_more_than_fit_into_its_maximum() -> None:
    adaptive: Any = SimpleNamespace(cluster=SimpleNamespace(workers_per_node=4), maximum=10)
    asked = (0, 1, 4, 5, 9, 40)
    assert [PolicyAdaptive._whole_nodes(adaptive, workers) for workers in asked] == [0, 4, 4, 8, 8, 8]
    adaptive.maximum = math.inf
    assert PolicyAdaptive._whole_nodes(adaptive, 41) == 44


def test_what_is_on_its_way_out_by_force_or_has_gone_is_neither_too_much_nor_asked_for_again() -> None:
    pools = {"": ["a", "b", "c", "d", "e"], "staging": ["s"]}
    cluster: Any = SimpleNamespace(
        _specs=pools.__getitem__,
        _going={"": 2},
        _wanted={"": 2},
        _followed=lambda pool: [],
        _outgoing=set(),
        _staying=lambda pool: [spec for spec in pools[pool] if spec not in cluster._outgoing],
        _workers_of=lambda spec: [f"{spec}-0", f"{spec}-1"],
        worker_spec=dict.fromkeys([*pools[""], *pools["staging"]]),
        _there=lambda: {"a-1"},
    )
    assert SafeScaling._excess(cluster, "") == 1
    assert SafeScaling._excess(cluster, "staging") == 0, "nobody has asked for another size of it"
    cluster._outgoing = {"a", "s"}
    assert SafeScaling._excess(cluster, "") == 0, "that one was taken out by hand"
    cluster._outgoing = {"gone"}
    assert SafeScaling._excess(cluster, "") == 1, "that one is not there any more"
    cluster._outgoing = {"a", "s"}
    cluster._wanted[""] = 4
    assert SafeScaling._excess(cluster, "") == -1, "and is no reason to have more of others"
    cluster._outgoing.clear()
    cluster._wanted[""] = 5
    SafeScaling._want_no_more(cluster, ["", "staging"], gone=["a", "b"])
    assert cluster._wanted == {"": 3}
    SafeScaling._want_no_more(cluster, [""])
    assert cluster._wanted == {"": 3}, "it had asked for fewer than there are"
    cluster._followed = lambda pool: ["c", "d"]
    SafeScaling._want_no_more(cluster, ["", "staging"], gone=["a"])
    assert cluster._wanted == {"": 2}, "two of those that are left end soon, and others have come for them"
    # a release is limited to a pool only where there is another one, or workers that are of none
    assert SafeScaling._limits(cluster, "staging") == {"among": ["s-0", "s-1"]}
    cluster.worker_spec = dict.fromkeys(pools[""])
    assert SafeScaling._limits(cluster, "") == {}
    cluster._there = lambda: {"a-1", "mine"}
    assert len(SafeScaling._limits(cluster, "")["among"]) == 10


class Bare:
    """A cluster of which only what a test gives is there."""

    def __init__(self, **parts: Any) -> None:
        vars(self).update({"_adaptive": None, "_asked": Counter()} | parts)


def test_why_nodes_have_stayed_is_told_no_more_once_nobody_has_to_go() -> None:
    for excess, told in ((1, {"node": "pinned"}), (0, {}), (-1, {})):
        releases = SimpleNamespace(refused={"node": "pinned"})
        stuck = {"": asyncio.Event()}
        cluster: Any = Bare(_stuck=stuck, _wanted={}, _force={}, _releases=releases, asynchronous=False)
        cluster._excess = lambda pool, excess=excess: excess
        cluster.forget_ended = cluster._warn_if_adaptive = cluster._adjust = lambda: None
        grown: dict[str, float] = {}
        cluster._at_once, cluster._grow = lambda pool: 2, grown.__setitem__
        cluster.loop = SimpleNamespace(add_callback=lambda *args, **options: None)
        SafeScaling._scale_pool(cluster, "", 3, False, True)
        assert releases.refused == told
        assert (grown, cluster._wanted, cluster._force) == ({"": 2}, {"": 3}, {"": True})


@pytest.mark.parametrize("starting", [False, True])
def test_workers_that_are_named_leave_safely_after_an_uninstall_and_while_they_start(starting: bool) -> None:
    async def run() -> None:
        steps: list[Any] = []

        async def opened() -> None:
            steps.append("started")

        async def retired(names: list[str], **how: Any) -> None:
            steps.append((sorted(names), how))

        async def forgotten(specs: list[str]) -> None:
            steps.append(("forgotten", specs))

        cluster: Any = Bare(status=Status.running, has_runtime=True, _open=opened)
        cluster._there = lambda: {"b-0", "c-0"}
        cluster._install = lambda: steps.append("installed")
        cluster._starting = lambda specs: starting
        cluster._spec_of = lambda name: name.partition("-")[0]
        cluster._pool_of = lambda spec: f"pool of {spec}"
        cluster._workers_of = lambda spec: [f"{spec}-0", f"{spec}-1"]
        cluster._want_no_more = lambda pools, gone: steps.append(("no more", sorted(pools), gone))
        cluster._forget = forgotten
        cluster.scheduler_comm = SimpleNamespace(retire_workers=retired)
        cluster.let_go = partial(SafeScaling.let_go, cluster)
        await SafeScaling.scale_down(cluster, ["a-1", "b-0"])
        assert steps == [
            "installed",
            *(["started"] if starting else []),
            "installed",
            (["a-0", "a-1", "b-0", "b-1"], {"close_workers": False, "remove": True}),
            # one worker of the other is still there
            ("no more", ["pool of a", "pool of b"], ["a"]),
            ("forgotten", ["a"]),
        ]

    asyncio.run(run())


def test_a_cluster_whose_runtime_went_meanwhile_stays_as_it_is_and_nobody_waits_for_less() -> None:
    stuck = asyncio.Event()
    cluster: Any = Bare(has_runtime=False, _wanted={"": 1}, _stuck={"": stuck}, _excess=lambda pool: 2)
    asyncio.run(SafeScaling._release(cluster, ""))
    assert (cluster._wanted, stuck.is_set()) == ({"": 3}, True)


@pytest.mark.parametrize("first", ["new", "old"])
@pytest.mark.parametrize(("old", "new", "wanted"), [(10, 10, 2), (2, 2, 1), (1, 1, 0), (3, 1, 1), (2, 5, 1)])
def test_as_many_successors_stay_as_are_wanted_and_no_more_whom_they_follow(
    first: str, old: int, new: int, wanted: int
) -> None:
    specs = [*(f"old-{n}" for n in range(old)), *(f"new-{n}" for n in range(new))]
    cluster: Any = Bare(_specs=lambda pool: specs, _staying=lambda pool: specs, _wanted={"": wanted})
    vars(cluster).update(_going={}, _outgoing=set())
    cluster._followed = lambda pool: [spec for spec in specs if spec.startswith("old")]
    cluster._excess = partial(SafeScaling._excess, cluster)
    while (left := SafeScaling._surplus(cluster, ""))[0]:
        count, may_go = left
        # whichever of them cost least
        for spec in sorted(may_go, key=lambda spec: not spec.startswith(first))[:count]:
            specs.remove(spec)
    assert cluster._excess("") == 0
    kinds = [spec.partition("-")[0] for spec in specs]
    assert kinds.count("new") == wanted
    assert kinds.count("old") <= wanted


def test_of_workers_that_have_not_come_yet_no_more_are_given_up_than_are_too_many() -> None:
    given_up: list[str] = []

    async def forget(specs: list[str]) -> None:
        given_up.extend(specs)

    cluster: Any = Bare(has_runtime=True, _coming=lambda pool: ["x", "y", "z"], _forget=forget)
    cluster._surplus = lambda pool: (2, ["a", "x", "y", "z"])
    asyncio.run(SafeScaling._release(cluster, ""))
    assert given_up == ["x", "y"]
    cluster._surplus = lambda pool: (2, ["a", "z"])
    asyncio.run(SafeScaling._release(cluster, ""))
    assert given_up == ["x", "y", "z"], "the others are wanted"


def _held(made: Shrinkable, job: Any) -> int:
    state = of(made.scheduler).engine.state
    return int(state.nodes_up(state.jobs.find(job.id)))
