"""What is noted of the steps of a flow costs nothing until somebody looks, and little then."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from distributed.utils_test import gen_test
from helpers import until
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.scheduler.coupling import helpers as of_helpers
from dask_hpc.scheduler.coupling.flow import Flow
from dask_hpc.scheduler.coupling.helpers import Helpers, shared
from dask_hpc.scheduler.coupling.inside import Inside
from dask_hpc.scheduler.coupling.measured import Measured
from dask_hpc.scheduler.coupling.splits import Splits
from dask_hpc.scheduler.coupling.staging import Staging
from dask_hpc.scheduler.coupling.steps import Steps
from dask_hpc.scheduler.coupling.workers import APART_S, STAGING, Workers
from dask_hpc.wire import HELPER_RESOURCE, TAKEN
from dask_hpc.worker.coupling import taking as of_taking
from dask_hpc_policies.coupling.contract import Field
from dask_hpc_policies.coupling.turns import Turns
from dask_hpc_policies.model import COMPUTE
from dask_hpc_policies.placement.learner import Learner


def test_it_is_learned_from_values_and_steps_when_somebody_looks():
    measured = Measured()
    for turn in range(1000):
        measured.value("mean", turn, "in-transit", (turn, turn + 0.5, 0.5, 1e6, 0.01, 2e6))
        measured.whole(float(turn), room=True)
    assert (measured.analyses, measured.simulation.one_core_s.samples, measured.view()) == ({}, 0, None)
    measured.learn(cores=2)
    known = measured.analyses["mean"].one_core_s
    # the latest ones, however many there were
    assert (known.mean, known.samples, measured.simulation.one_core_s.samples) == (0.5, 5, 5)
    assert measured.simulation.one_core_s.mean == pytest.approx(2.0)
    assert measured.bandwidth.mean == pytest.approx(1e8)
    view = measured.view()
    assert (view.step_s, view.simulation_s, view.in_transit_s, view.steps) == (1.0, 1.0, 0.5, 5)


def test_phases_are_those_of_the_latest_steps_in_whatever_order_their_values_come():
    measured = Measured()
    for analysis, first, seconds in (("quick", 5, 1.0), ("slow", 0, 9.0)):
        for turn in range(first, first + 5):
            measured.value(analysis, turn, "in-situ", (turn, turn + seconds, seconds, 0, 0, 0))
    for turn in range(3):
        measured.whole(float(turn), room=True)
    measured.learn(cores=1)
    assert measured.view().in_situ_s == 1.0


def test_a_step_that_may_have_waited_is_no_measure_of_the_simulation():
    measured = Measured()
    for now_s, room in ((0.0, True), (1.0, False), (50.0, True), (52.0, True)):
        measured.whole(now_s, room)
    measured.learn(cores=2)
    known = measured.simulation.one_core_s
    assert (known.samples, measured.view().simulation_s) == (2, 1.5)


def test_what_is_said_beforehand_is_known_until_it_is_measured():
    measured = Measured()
    measured.said("mean", {"window": 1, "one_core_s": 3.0, "memory_bytes": 1e9})
    known = measured.analyses["mean"]
    assert (known.one_core_s.mean, known.one_core_s.samples, known.memory_bytes) == (3.0, 0, 1e9)
    for turn in range(3):
        measured.value("mean", turn, "in-situ", (turn, turn + 0.5, 0.5, 0.0, 0.0, 0.0), nbytes=turn)
        measured.learn(cores=1)
    known = measured.analyses["mean"]
    assert (known.one_core_s.mean, known.memory_bytes, measured.value_bytes) == (0.5, 1e9, {"mean": 2})
    measured.said("other", {"window": 1})
    assert measured.analyses["other"] == Learner()


def test_steps_that_were_not_looked_at_are_no_long_step():
    measured = Measured()
    for turn in range(3):
        measured.whole(float(turn), room=True)
    measured.learn(cores=1)
    for turn in range(3, 100):
        measured.whole(float(turn), room=True)
    measured.learn(cores=1)
    assert measured.simulation.one_core_s.mean == 1.0
    assert measured.view().step_s == 1.0


def test_steps_are_learned_from_once_the_flow_has_workers_again():
    workers = SimpleNamespace(
        staging=list, may_stage=list, job=lambda flow: None, node_bytes=lambda addresses: None,
        bandwidth_bytes_s=1e9,
        # nobody is there
        node_threads=lambda addresses: (0, 0),
    )  # fmt: skip
    splits = Splits(SimpleNamespace(scheduler=None, tracing=SimpleNamespace(last_words=[])), workers, None)
    flow = Flow("heat", "hpc-flow-heat-1", (), queue=2, when_full="wait", client="c", places=["a", "b"])
    for turn in range(4):
        flow.measured.whole(2.0 * turn, room=True)
    view = splits.view(flow)
    assert (view.nodes, view.simulation.one_core_s) == (0, None)
    workers.node_threads = lambda addresses: (len(addresses), 3 if addresses else 0)
    view = splits.view(flow)
    # two nodes, of which one core each is the simulation's
    assert (view.nodes, view.simulation.one_core_s, view.simulation.samples) == (2, 4.0, 3)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 60))
def test_workers_of_a_node_share_all_threads_but_those_of_its_program(threads, own):
    workers = {str(number): count for number, count in enumerate(threads)}
    found = shared({"node": workers}, own)
    assert sum(found.values()) == max(0, sum(threads) - own)
    assert all(0 <= found[address] <= count for address, count in workers.items())
    alike = [count for address, count in found.items() if count < workers[address]]
    assert max(alike, default=0) - min(alike, default=0) <= 1


def test_workers_of_a_role_are_looked_up_now_and_then_and_those_that_go_are_out_at_once():
    looked = []

    class Engine:
        """A clock and two workers."""

        now_s = 0.0
        scheduler = SimpleNamespace(running=[SimpleNamespace(address=name) for name in "ab"])

        @property
        def state(self):
            return SimpleNamespace(now_s=lambda: self.now_s, role_of=self.role_of)

        def role_of(self, ws):
            looked.append(ws.address)
            return STAGING

    engine = Engine()
    workers = Workers(engine)
    for _ in range(1000):
        assert workers.staging() == ["a", "b"]
    assert looked == ["a", "b"]
    workers.left("a")
    assert workers.staging() == ["b"]
    engine.now_s += APART_S
    workers.staging()
    assert looked == ["a", "b"] * 2


def test_of_each_of_the_latest_steps_it_is_told_what_its_phases_took_and_what_helpers_left():
    steps = Steps()
    for turn in range(100):
        steps.begun(turn, 10 * turn, 2)
        if turn == 98:
            steps.simulated(turn, 1.5)
        steps.whole(turn, 2.0 * turn, room=turn != 98, helper_cores=3)
        steps.value("mean", turn, "in-situ", (0.0, 9.0, 9.0, 0, 0, 9e9), 0)
        # made again after a loss, it counts once
        steps.value("mean", turn, "in-situ", (turn, turn + 1.0, 0.75, 0, 0, 3e6), 1e6)
        steps.value("max", turn, "in-situ", (turn + 0.5, turn + 1.5, 0.25, 0, 0, 4e6), 0)
        steps.value("fit", turn, "in-transit", (turn, turn + 4.0, 3.0, 4e6, 0.1, 4e6), 4e6)
    *_, before, last = rows = steps.rows(lambda turn: 3)
    assert [row["step"] for row in rows] == [950, 960, 970, 980, 990]
    phases = {"step_s": 2.0, "simulation_s": None, "in_situ_s": 1.5, "in_transit_s": 4.0}
    shares = {"in_situ_bytes": 8e6, "in_situ_memory_share": 0.5, "in_situ_work_share": 0.25}
    # of three helper cores for two seconds one core second was used
    assert last == {"turn": 99, "step": 990, **phases, **shares, "helper_cores": 3, "idle_helper_core_s": 5.0}
    assert (before["simulation_s"], rows[0]["simulation_s"]) == (1.5, 2.0)
    unknown = dict.fromkeys([*("in_situ_s", "in_transit_s", "idle_helper_core_s"), *shares])
    assert steps.rows(lambda turn: 4)[-1] == last | unknown, "one of the analyses is still to come"
    assert len(steps._steps) == 16


def test_a_step_of_a_program_takes_as_long_as_its_blocks_on_the_threads_that_are_left_to_it():
    def nothing(*_):
        pass

    tasks = {}
    watched = SimpleNamespace(watch=nothing, unwatch=nothing)
    workers = SimpleNamespace(node_threads=lambda addresses: (2, 4), of_nodes=sorted)
    splits = SimpleNamespace(share=nothing, aim=nothing, whole=nothing)
    engine = SimpleNamespace(scheduler=SimpleNamespace(tasks=tasks))
    inside = Inside(engine, watched, None, workers, splits)
    flow = Flow("heat", "hpc-flow-heat-1", (), queue=2, when_full="wait", client="c", helper_cores=1)
    inside.begin(flow, 0, 0, ["a", "b"] * 4, [])
    for place in range(8):
        tasks[key := flow.key(0, place)] = SimpleNamespace(nbytes=0, metadata={TAKEN: 1.5})
        inside._moved(key, "processing", "memory")
    # twelve seconds on three threads of each of two nodes: one of the four is for analyses
    (row,) = flow.steps.rows(lambda turn: 0)
    assert row["simulation_s"] == 2.0


def test_the_trace_gets_each_step_once_when_it_is_known_or_not_waited_for_any_more():
    steps, taken = Steps(), []
    for turn in range(40):
        steps.begun(turn, turn, 2)
        steps.whole(turn, 2.0 * turn, room=True, helper_cores=1)
        if turn != 10:  # its value is given up
            steps.value("mean", turn, "in-situ", (turn, turn + 1.0, 1.0, 0, 0, 8.0), 0)
        taken += steps.take(lambda turn: 1)
    steps.begun(40, 40, 2)
    steps.whole(40, 80.0, room=True, helper_cores=1)
    assert [row["turn"] for row in taken] == [*range(10), *range(11, 26), 10, *range(26, 40)]
    assert all(row["t_s"] == 2.0 * row["turn"] for row in taken)
    assert all(row["in_situ_s"] == (None if row["turn"] == 10 else 1.0) for row in taken)
    assert [steps.take(lambda turn: 1, final) for final in (False, False)] == [[], []]
    assert [row["turn"] for row in steps.take(lambda turn: 1, final=True)] == [40]
    assert steps.take(lambda turn: 1, final=True) == []
    # and what nobody takes is forgotten
    for turn in range(41, 1000):
        steps.begun(turn, turn, 2)
    assert len(steps._steps) + len(steps._gone) <= 32


def test_a_step_that_never_becomes_whole_is_not_in_the_trace():
    steps = Steps()
    for turn in range(40):
        steps.begun(turn, turn, 2)
        if turn not in (10, 38):  # the first is remembered no more
            steps.whole(turn, 2.0 * turn, room=True, helper_cores=1)
    rows = steps.take(lambda turn: 1, final=True)
    whole = [turn for turn in range(8, 40) if turn not in (10, 38)]
    assert [(row["turn"], row["t_s"]) for row in rows] == [(turn, 2.0 * turn) for turn in whole]


def test_the_trace_gets_all_steps_of_a_long_flow():
    told = []
    state = SimpleNamespace(now_s=lambda: 0.0, listeners=[told.append])
    engine = SimpleNamespace(scheduler=None, tracing=SimpleNamespace(last_words=[]), state=state)
    workers = SimpleNamespace(node_threads=lambda addresses: (1, 1))
    splits = Splits(engine, workers, None)
    flow = Flow("heat", "hpc-flow-heat-1", (), queue=2, when_full="wait", client="c", places=["a"])
    for turn in range(100):
        flow.steps.begun(turn, 10 * turn, 2)
        splits.whole(flow, turn)
    assert [one.data["step"] for one in told] == list(range(0, 1000, 10))


def test_the_trace_waits_for_values_that_come_late_of_as_many_steps_as_are_in_flight():
    steps, taken = Steps(), []
    for turn in range(60):
        steps.begun(turn, turn, 40)
        steps.whole(turn, float(turn), room=True, helper_cores=1)
        if turn >= 39:
            steps.value("mean", turn - 39, "in-situ", (0.0, 1.0, 1.0, 0, 0, 8.0), 0)
        taken += steps.take(lambda turn: 1)
    assert [(row["turn"], row["in_situ_s"]) for row in taken] == [(turn, 1.0) for turn in range(21)]


def test_where_blocks_lie_is_looked_at_step_by_step_though_a_place_is_ahead():
    flow = Flow("heat", "hpc-flow-heat-1", (Field("T", ("y",), (4,), "float64"),), 2, "wait", "c")
    flow.places, flow.turns = ["a", "b"], Turns(2, "wait", 2)

    def there(place, turn, *rows):
        flow.turns.ask(place, turn)
        why = flow.laid_out(place, turn, [("T", (rows[0],), (len(rows),))] if rows else None)
        return why or flow.turns.whole(place, turn)

    assert (there(0, 0, 0, 1), there(0, 1, 0, 1, 2)) == (False, False)
    assert (there(1, 0, 2, 3), flow.covered) == (True, False)
    assert there(1, 1) == "'T' has two blocks at y=2"
    assert (there(1, 1, 3), flow.covered) == (True, True)
    told = [event["layout"] for _, event in flow.events]
    assert told == [[[["T", (0,), (2,)]], [["T", (2,), (2,)]]], [[["T", (0,), (3,)]], [["T", (3,), (1,)]]]]
    flow.done(0), flow.done(1)
    # where the other's lie from then on is not known yet
    assert (there(0, 2, 0, 1), there(1, 2, 2, 3)) == (False, True)
    # nothing is kept of what was
    assert [len(its) for its in flow.layouts.values()] == [1, 1]


def test_who_waits_for_a_core_does_not_work(monkeypatch):
    clock_s, ready_s, note = iter((10.0, 12.0)), iter((100.0, 100.5)), {}
    monkeypatch.setattr(of_taking, "epoch_s", lambda: next(clock_s))
    monkeypatch.setattr(of_taking, "_ready_s", lambda: next(ready_s))
    transfers = [{"keys": {key: 8}, "total": 8, "duration": 0.5} for key in "xyz"]
    with of_taking.taken(SimpleNamespace(transfer_incoming_log=transfers), {"x": 8, "z": 6}, note, "took"):
        assert note == {}
    assert note == {"took": [10.0, 12.0, 1.5, 16.0, 1.0, 14.0]}


def test_blocks_go_to_nodes_that_stage_or_are_anothers_only_where_no_other_computes():
    there = {name: SimpleNamespace(address=name, host=f"host of {name}") for name in "ab"}
    at = {name: SimpleNamespace(workers=[name], reserved=0) for name in "ab"}
    table = SimpleNamespace(nodes={f"node {name}": its for name, its in at.items()}, at=at)
    jobs = SimpleNamespace(named=[])
    state = SimpleNamespace(now_s=lambda: 0.0, role_of=lambda ws: COMPUTE, nodes=table, jobs=jobs)
    scheduler = SimpleNamespace(running=list(there.values()), workers=there)
    workers = Workers(SimpleNamespace(scheduler=scheduler, state=state))
    for lent, takes in ((set(), "ab"), ({"node a"}, "b"), ({"node a", "node b"}, "ab")):
        workers.lent = lent
        assert workers.hosts("mine") == {name: [f"host of {name}"] for name in takes}
    for held, lent, exclusive, client, takes in (
        (["node a", "node gone"], set(), True, "another", "b"),
        # what stages again goes on all the same, and what is held exclusively does not
        (["node a"], {"node b"}, True, "another", "b"),
        (["node a", "node b"], set(), True, "another", "ab"),
        (["node a"], set(), False, "another", "ab"),
        (["node a"], set(), True, "mine", "ab"),
    ):
        job = SimpleNamespace(request=SimpleNamespace(exclusive=exclusive))
        job.nodes, job.clients, jobs.named = dict.fromkeys(held), {client}, [job]
        workers.lent = lent
        assert list(workers.hosts("mine")) == list(takes)
    workers.lent, at["a"].reserved = set(), 1
    assert list(workers.hosts("mine")) == ["b"]


def test_a_node_that_was_lent_may_stage_while_it_is_there_and_no_job_holds_it():
    there = {name: SimpleNamespace(address=name) for name in "ab"}
    nodes = {f"node {name}": SimpleNamespace(workers=[name], job=None) for name in "ab"}
    nodes["node b"].job = "job"
    state = SimpleNamespace(role_of=lambda ws: COMPUTE, nodes=SimpleNamespace(nodes=nodes))
    scheduler = SimpleNamespace(running=list(there.values()), workers=there)
    workers = Workers(SimpleNamespace(scheduler=scheduler, state=state))
    workers.lent = {"node a", "node b", "one that has gone"}
    assert workers.may_stage() == ["a"]


@pytest.mark.parametrize(
    ("kind", "most", "asked"), [("malleable", 3, True), ("malleable", 2, False), ("rigid", 3, False)]
)
def test_a_program_that_has_one_size_alone_is_not_asked_for_another(kind, most, asked):
    request = SimpleNamespace(kind=kind, min_nodes=2, max_nodes=most)
    job = SimpleNamespace(request=request)
    state = SimpleNamespace(
        nodes=SimpleNamespace(nodes={"node": SimpleNamespace(job="job")}),
        jobs=SimpleNamespace(active={"job": job}),
    )
    workers = Workers(SimpleNamespace(state=state))
    workers.by_node = lambda addresses: {"node": {}}
    assert workers.job(SimpleNamespace(inside=True, places=["a"])) is (job if asked else None)


def test_a_node_that_was_lent_comes_back_unless_somebody_holds_it():
    asked = []

    def act(actions, trigger):
        asked.extend(one.node for one in actions)

    nodes = {
        name: SimpleNamespace(role=COMPUTE, up=up, job=job, reserved=reserved)
        for name, up, job, reserved in (
            ("a", True, "job", False),
            ("b", True, None, True),
            ("c", False, None, False),
            ("d", True, None, False),
        )
    }
    state = SimpleNamespace(nodes=SimpleNamespace(nodes=nodes), roles={})
    engine = SimpleNamespace(state=state, controller=SimpleNamespace(act=act))
    staging = Staging(engine, SimpleNamespace(lent=set(nodes), leaving=set(), look=lambda: None))
    staging.settle([SimpleNamespace(staging=4)])
    assert (asked, staging.settled) == (["d"], False)


def test_a_node_is_lent_once_it_has_ended_what_it_runs():
    def act(actions, trigger):
        for one in actions:
            nodes[one.node].role = one.role

    nodes = {name: SimpleNamespace(role=STAGING, up=True, job=None, reserved=False) for name in "ab"}
    ws = SimpleNamespace(processing={"value": 1.0})
    engine = SimpleNamespace(
        state=SimpleNamespace(nodes=SimpleNamespace(nodes=nodes), roles={}),
        controller=SimpleNamespace(act=act),
        scheduler=SimpleNamespace(workers={"of b": ws}),
    )
    workers = SimpleNamespace(
        lent=set(), leaving=set(), look=lambda: None, of_nodes=lambda ids: [f"of {id}" for id in ids]
    )
    staging, flow = Staging(engine, workers), SimpleNamespace(staging=1)
    staging.settle([flow])
    assert (nodes["b"].role, workers.leaving, staging.settled) == (STAGING, {"b"}, False)
    ws.processing = {}
    staging.settle([flow])
    assert (nodes["b"].role, workers.lent, workers.leaving) == (COMPUTE, {"b"}, set())
    assert (nodes["a"].role, staging.settled) == (STAGING, True)


@gen_test(timeout=10)
async def test_a_worker_keeps_a_helper_core_where_values_may_wait_for_one():
    told = []

    async def tell(scheduler, addresses, name, count):
        told.append((*addresses, count))

    scheduler = SimpleNamespace(
        resources={HELPER_RESOURCE: {"a": 1, "b": 3}},
        workers={name: SimpleNamespace(resources={}) for name in "abc"},
    )
    workers = SimpleNamespace(by_node=lambda addresses: {name: {name: 2} for name in addresses})
    helpers = Helpers(SimpleNamespace(scheduler=scheduler), workers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_helpers.remote, "tell", tell)
        # the program has all threads of the nodes
        helpers.leave(["a", "b", "c"], own_threads=2)
        await until(lambda: not helpers._telling, "all have heard")
    assert sorted(told) == [("b", 1), ("c", 0)]
