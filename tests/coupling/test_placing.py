"""Analyses of flows go where the policy places them, as measured; what cannot be is refused with a reason."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from beside_programs import FIELDS, STEP_S, on_the_cluster, sleeps
from distributed import Worker, get_worker
from helpers import engine, live, until
from sources import asked, producers, told

import dask_hpc
from dask_hpc import sim
from dask_hpc.errors import CouplingError
from dask_hpc.scheduler.coupling.staging import Staging
from dask_hpc.scheduler.install import service_of
from dask_hpc.sim.model.coupled import Coupled
from dask_hpc.sim.model.job import Job, Program
from dask_hpc.sim.model.machine import Machine
from dask_hpc.sim.model.workload import Workload
from dask_hpc.trace.files import parse_trace
from dask_hpc.trace.replay import replay
from dask_hpc.wire import ROLE_RESOURCE
from dask_hpc_policies import registry
from dask_hpc_policies.codec import decode
from dask_hpc_policies.decision import Place, Reason, ReasonCode
from dask_hpc_policies.placement.replan import application_of
from dask_hpc_policies.placement.view import FlowView, Split

#: Seconds of a value. One helper core and two cores for staging: the best is each on a side of its own.
SLOW_S, FAST_S = 0.4, 0.1
BEST = Split(in_situ=("fast",), in_transit=("slow",), nodes=1, helper_cores=1, staging_nodes=1)


def held(ds):
    """Waits until the test lets it go; it finds the event on its worker, which is of this process."""
    worker = get_worker()
    worker.go.wait(30)
    return worker.address


@asynccontextmanager
async def running(c, s, policy, where="auto", slow=None, **how):
    """A flow with two analyses, one node for staging, and a producer that waits for nothing."""
    rt = await dask_hpc.install(c, policy)
    async with Worker(
        s.address, name="staging", nthreads=2, resources={f"{ROLE_RESOURCE}staging": 1}
    ) as staging:
        flow = await rt.couple("heat", FIELDS, queue=2, **how)
        await flow.analyse(slow or sleeps(SLOW_S), name="slow", where=where)
        await flow.analyse(sleeps(FAST_S), name="fast", where=where)
        async with producers(s, (0, 8)) as made:
            assert await told(made[0]) == "open"
            yield rt, flow, made[0], staging
        await flow.close()


def places(where, *names, nodes=1, cores=None):
    """What a policy may say."""
    cores = (1 if where == "in-situ" else 2) if cores is None else cores
    reason = Reason(ReasonCode.SHORTER_STEP, "so")
    return [
        Place(flow="heat", analysis=name, where=where, nodes=nodes, cores=cores, reason=reason)
        for name in names
    ]


def enacted(s, actions):
    """What becomes of actions that come in one decision, at once: results and reasons."""
    _, ended = service_of(s).engine.controller.act(actions, "request")
    return [(one.result, one.reason.code) for one in ended]


def simulated(view):
    """The split that the simulator comes to, by the same policy, from what was measured here."""
    begin = Split(in_situ=("slow", "fast"), nodes=view.nodes, helper_cores=view.helper_cores)
    application = application_of(view)
    run = Coupled(flow="heat", steps=10, application=application, split=begin, mode=view.mode)
    job = Job(id="j", submit_s=0.0, start_nodes=2, min_nodes=2, max_nodes=2, program=Program(stages=(run,)))
    work = Workload(name="w", jobs=(job,), machine=Machine(nodes=2))
    last = sim.simulate(work, "placement").flows[0]["splits"][-1]
    names = ("in_situ", "in_transit", "nodes", "helper_cores", "staging_nodes")
    return Split(**{name: tuple(last[name]) if "in_" in name else last[name] for name in names})


@live(workers=1, timeout=60)
async def test_a_flow_is_split_by_what_its_workers_have_measured(c, s, a):
    # it stands beside what starts jobs
    policy = registry.create({"policy": "chain", "policies": ["fair", "placement"]})
    async with running(c, s, policy) as (rt, flow, producer, staging):
        plan = await flow.plan()
        assert (plan["best"], plan["reason"]) == (None, "nothing was measured yet of 'slow', 'fast'")
        values = {name: flow.results(name, timeout=30) for name in ("slow", "fast")}
        producer.tell("many", first=0, last=40)
        seen = []
        while not seen or seen[-1] != (staging.address, a.address):
            # it began where its blocks are
            assert len(seen) < 20, seen
            seen.append(tuple([(await anext(one))[1] for one in values.values()]))
        assert seen[0] == (a.address, a.address)
        plan, status = await flow.plan(), await flow.status()
        assert decode(Split, plan["best"]) == decode(Split, plan["present"]) == BEST
        assert status["split"] == {"slow": "in-transit", "fast": "in-situ"}
        view = decode(FlowView, plan["view"])
        works = {one.name: one.one_core_s for one in view.analyses}
        assert works == {"slow": pytest.approx(SLOW_S, rel=0.5), "fast": pytest.approx(FAST_S, rel=0.5)}
        # two of them at once on the two cores, and what it takes to send; else one after the other on one
        assert max(works["slow"] / 2, works["fast"]) <= plan["step_s"] < works["slow"] + works["fast"]
        # it stays so
        for _ in range(10):
            assert [(await anext(one))[1] for one in values.values()] == [staging.address, a.address]
        rows = [row for row in await rt.decisions() if row["action"] == "place"]
        assert "first-place" in {row["reason_code"] for row in rows if row["result"] == "done"}
        # on the pictures that it saw, the same policy decides the same elsewhere
        replayed = replay(parse_trace(await rt.trace()))
        assert (replayed.ok, replayed.recorded_actions["place"] >= 2) == (True, True)
        assert simulated(view) == BEST


@live(workers=1, timeout=60)
async def test_places_are_taken_whole_or_not_at_all_and_say_why(c, s, a):
    async with running(c, s, "fcfs") as (_rt, flow, producer, staging):
        values = {name: flow.results(name, timeout=30) for name in ("slow", "fast")}
        producer.tell("many", first=0, last=12)
        await asyncio.gather(*map(anext, values.values()))
        assert enacted(s, places("in-transit", "other")) == [("refused", ReasonCode.UNKNOWN_FLOW)]
        for wrong in (
            places("in-transit", "slow", nodes=2),
            places("in-transit", "slow", cores=1),
            places("in-situ", "slow", cores=2),
        ):
            assert enacted(s, wrong) == [("refused", ReasonCode.OUT_OF_BOUNDS)]
        # nothing is said of the other one: none of it is done
        assert enacted(s, places("in-transit", "slow")) == [("under way", ReasonCode.SHORTER_STEP)]
        await until(lambda: service_of(s).engine.controller.decisions[-1]["result"] == "aborted", "it ends")
        assert service_of(s).engine.controller.decisions[-1]["reason_code"] == "incomplete"
        assert (await flow.status())["split"] == {"slow": "auto", "fast": "auto"}
        done = enacted(s, places("in-transit", "slow", "fast"))
        assert done == [("under way", ReasonCode.SHORTER_STEP)] * 2
        assert (await flow.status())["split"] == {"slow": "in-transit", "fast": "in-transit"}
        # two steps may have begun before
        where = [[(await anext(one))[1] for one in values.values()] for _ in range(5)][-2:]
        assert where == [[staging.address] * 2] * 2
        plan = await flow.plan()
        assert decode(Split, plan["present"]).in_transit == ("slow", "fast")
        assert (decode(Split, plan["best"]), plan["step_s"] < plan["present_step_s"]) == (BEST, True)


@live(workers=1, timeout=60)
async def test_staging_nodes_that_no_plan_needs_compute_until_one_does_or_no_flow_is_left(c, s, a):
    also = Worker(s.address, name="also", nthreads=2, resources={f"{ROLE_RESOURCE}staging": 1})
    async with running(c, s, "fcfs", slow=sleeps(0.05)) as (_rt, flow, producer, staging), also:

        def roles():
            nodes = engine(s).state.nodes.nodes
            return [nodes[worker.name].role for worker in (also, staging)]

        values = flow.results("slow", timeout=30)
        producer.tell("many", first=0, last=100)
        await anext(values)
        assert enacted(s, places("in-transit", "slow", "fast", nodes=2))[0][0] == "under way"
        await anext(values)
        assert enacted(s, places("in-transit", "slow", "fast", nodes=1))[0][0] == "under way"
        while roles() != ["staging", "compute"]:
            await anext(values)
        # two steps may have begun before
        assert [(await anext(values))[1] for _ in range(5)][-2:] == [also.address] * 2
        plan = await flow.plan()
        assert (plan["present"]["staging_nodes"], decode(FlowView, plan["view"]).platform.nodes) == (1, 3)
        assert enacted(s, places("in-transit", "slow", "fast", nodes=2))[0][0] == "under way"
        await until(lambda: roles() == ["staging"] * 2, "it has come back")
        assert enacted(s, places("in-situ", "slow", "fast", nodes=1, cores=1))[0][0] == "under way"
        while roles() != ["compute"] * 2:
            await anext(values)
        await flow.close()
        await until(lambda: roles() == ["staging"] * 2, "no flow is left")


def test_a_node_that_was_lent_stages_also_when_nobody_counts_nodes_any_more() -> None:
    state = SimpleNamespace(nodes=SimpleNamespace(nodes={}), roles={"a": "compute", "b": "compute"})
    workers = SimpleNamespace(lent={"a"}, leaving=set(), look=lambda: None)
    Staging(SimpleNamespace(state=state), workers).settle([])  # type: ignore[arg-type]
    assert (state.roles, workers.lent) == ({"a": "staging", "b": "compute"}, set())


@live(workers=1, timeout=60)
async def test_what_the_user_has_said_of_where_holds_against_a_policy(c, s, a):
    async with running(c, s, "fcfs", where="in-situ") as (rt, flow, producer, _staging):
        values = flow.results("fast", timeout=30)
        producer.tell("many", first=0, last=4)
        await anext(values)
        assert enacted(s, places("in-transit", "slow")) == [("refused", ReasonCode.OUT_OF_BOUNDS)]
        plan = await flow.plan()
        assert plan["best"] == {**plan["present"], "staging_nodes": 0}
        assert plan["reason"] == (
            "the present split is the best by what is known, and 0 of 1 staging nodes are enough"
        )
        with pytest.raises(CouplingError, match="its producers have not come"):
            await (await rt.couple("other", FIELDS)).plan()


@live(workers=1, timeout=60)
async def test_values_run_where_they_are_placed_and_elsewhere_only_when_that_is_lost(c, s, a):
    async with running(c, s, "fcfs", slow=held) as (_rt, flow, producer, staging):
        go = a.go = staging.go = threading.Event()
        go.set()
        values = flow.results("slow", timeout=30)
        producer.tell("many", first=0, last=1)
        assert (await anext(values))[1] == a.address
        assert enacted(s, places("in-transit", "slow", "fast"))[0][0] == "under way"
        await until(lambda: service_of(s).engine.controller.decisions[-1]["result"] == "done", "it is done")
        go.clear()
        producer.tell("many", first=1, last=5)
        tasks = await until(lambda: _processing(s)[2:], "there is more than there are threads")
        assert {ts.processing_on.address for ts in tasks} == {staging.address}
        # the other worker has nothing to do, and would be given one
        thief, occupancies = {s.workers[a.address]}, dict.fromkeys(s.workers.values(), 0.0)
        steal = s.extensions["stealing"]._get_thief
        assert [steal(s, ts, thief, occupancies=occupancies) for ts in tasks] == [None] * len(tasks)
        await staging.close(executor_wait=False)
        go.set()
        assert [(await anext(values))[1] for _ in range(4)] == [a.address] * 4
        assert (await flow.status())["split"] == {"slow": "auto", "fast": "auto"}


@live(workers=1, timeout=60)
async def test_readers_of_a_flow_whose_producers_have_left_do_not_wait_for_ever_for_a_node_that_died(c, s, a):
    async with running(c, s, "fcfs", where="in-transit", slow=held) as (_rt, flow, producer, staging):
        go = a.go = staging.go = threading.Event()
        values = flow.results("slow", timeout=30)
        producer.tell("many", first=0, last=2)
        await until(lambda: _processing(s)[1:], "both steps are being analysed")
        await told(producer)
        assert await asked(producer, "close") == "closed"
        # a policy is asked meanwhile
        service_of(s).engine.controller.picture("request")
        await staging.close(executor_wait=False)
        go.set()
        found, why = [], ""
        try:
            found = [one async for one in values]
        except CouplingError as error:
            why = str(error)
        # blocks that were there alone nobody sends again
        assert found == [(0, a.address), (1, a.address)] or "was lost with blocks of it" in why


@live(workers=1, timeout=60)
async def test_who_leaves_steps_out_is_measured_and_policies_are_asked_when_its_workers_are_gone(c, s, a):
    async with running(c, s, "fcfs", slow=sleeps(0.01), when_full="drop-oldest") as (_rt, flow, producer, _):
        values = flow.results("slow", timeout=30)
        for step in range(6):
            producer.tell("send", step=step)
            assert (await anext(values))[0] == step
            await told(producer)
        assert _view(s).simulation.one_core_s is not None
        for step in range(6, 9):
            producer.tell("send", step=step)
            await anext(values)
            await told(producer)
        await a.close(executor_wait=False)
        assert _view(s).nodes == 0


@live(workers=1, threads=2, timeout=60)
async def test_a_program_on_the_cluster_is_split_between_two_steps_and_goes_on_without_its_staging_node(
    c, s, a
):
    policy = registry.create({"policy": "chain", "policies": ["fair", "placement"]})
    async with on_the_cluster(c, s, policy, TWO) as (rt, flow, values, staging):
        seen = []
        while not seen or seen[-1] != (staging.address, a.address):
            assert len(seen) < 20, seen
            seen.append(tuple([(await anext(one))[1] for one in values]))
        assert seen[0] == (a.address, a.address)
        # what is placed in situ stays the job's own, which a node that leaves waits for
        kinds = await until(lambda: _lanes(s, "fast"), "one is being computed")
        assert set(kinds) == {"rest"}
        # and has its block there
        assert list(a.transfer_incoming_log) == []
        view = decode(FlowView, (plan := await flow.plan())["view"])
        assert decode(Split, plan["present"]) == decode(Split, plan["best"]) == BEST
        works = {one.name: one.one_core_s for one in view.analyses}
        assert works == {"slow": pytest.approx(SLOW_S, rel=0.5), "fast": pytest.approx(FAST_S, rel=0.5)}
        assert STEP_S <= view.simulation.one_core_s < SLOW_S
        # the same policy comes to the same in the simulator, and on the pictures that it saw
        assert simulated(view) == BEST
        assert replay(parse_trace(await rt.trace())).ok
        # each block is fetched once
        fetched = [key for one in staging.transfer_incoming_log for key in one["keys"]]
        assert (len(fetched) == len(set(fetched)), bool(fetched)) == (True, True)
        await staging.close(executor_wait=False)
        await until(lambda: not _view(s).present.in_transit, "nothing is in transit")
        # two steps may have been computed before
        where = [[(await anext(one))[1] for one in values] for _ in range(5)]
        assert where[-3:] == [[a.address] * 2] * 3


@live(workers=1, timeout=60)
async def test_a_program_that_leaves_no_thread_takes_turns_with_its_analyses(c, s, a):
    async with on_the_cluster(c, s, "placement", TWO, nthreads=1) as (_rt, flow, values, staging):
        seen = []
        while not seen or seen[-1] != (staging.address, a.address):
            assert len(seen) < 20, seen
            seen.append(tuple([(await anext(one))[1] for one in values]))
        view = decode(FlowView, (plan := await flow.plan())["view"])
        split = decode(Split, plan["present"])
        assert (view.mode, split) == ("synchronous", replace(BEST, helper_cores=0))
        # its own step is not longer for the analyses that it waits for
        assert STEP_S <= view.simulation.one_core_s < STEP_S + FAST_S
        assert simulated(view) == split


#: A place that changes is seen by two of them.
TWO = {"slow": sleeps(SLOW_S), "fast": sleeps(FAST_S)}


def _view(s):
    """What a policy sees of the flow now."""
    return decode(FlowView, service_of(s).engine.controller.picture("request").sections["coupling"]["heat"])


def _lanes(s, name):
    """How the values of an analysis are treated that are being computed."""
    owner = service_of(s).engine.state.owner
    return [owner[ts.key].kind for ts in _processing(s) if str(ts.key).startswith(f"{name}-")]


def _processing(s):
    return [ts for ts in s.tasks.values() if ts.state == "processing"]
