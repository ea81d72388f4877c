"""More jobs than nodes: who asked for no nodes takes turns, whoever came first."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from types import SimpleNamespace

import dask
import pytest
from dask.utils import key_split
from helpers import (
    Gate,
    Starts,
    engine,
    live,
    record,
    started,
    state_of,
    through,
    until,
    within,
    without_validation,
)

import dask_hpc
from dask_hpc.scheduler.internals import reads
from dask_hpc.scheduler.placing.admission import Admission
from dask_hpc.scheduler.placing.sharing import Sharing
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc_policies.jobs.jobspec import job_spec
from dask_hpc_policies.model import JobRequest

POLICIES = ("pwma-fpsma", "fair")


def a_while(i):
    """A task of some milliseconds."""
    time.sleep(0.01)
    return i


def longer(i):
    """A task that takes more than what is done for it, on a busy machine, too."""
    time.sleep(0.05)
    return i


def begun(gate):
    """A task that tells how many have come to the gate."""
    return gate.arrived


@pytest.mark.parametrize(("policy", "pinned"), [*((policy, False) for policy in POLICIES), ("fair", True)])
@live(1, lend="5 s")
async def test_a_question_is_answered_beside_a_job_that_has_the_only_node(c, s, a, policy, pinned):
    rt = await dask_hpc.install(c, policy=policy)
    of(s).releases.pin(
        [str(a.name)], pinned
    )  # a node that stays is one like others where there are no others
    async with rt.job("large") as large:
        await started(s, large)
        backlog = c.map(a_while, range(150), key="large", pure=False)
        await until(lambda: record(s, large).queue, "it is under way")
        async with rt.job("question") as question:
            inputs = c.map(a_while, range(6), key="question", pure=False)
            total = c.submit(sum, inputs, key="total")
            assert await within(total.result()) == 15
            assert (state_of(s, question), record(s, large).unfinished > 30) == ("pending", True)
        row = await question.wait(20)
        # what depends on others borrows nothing where jobs hold their nodes together
        lent = 6 if policy == "fair" else 7
        assert (row["state"], row["borrowed_tasks"]) == ("completed", lent)
        assert record(s, large).lent_tasks == lent
        # and nobody starves
        assert await within(c.gather(backlog[:100])) == list(range(100))
        assert large.id in engine(s).turns.ahead_s()
        await large.cancel()
        # what it has not done is to be served nowhere
        assert large.id not in engine(s).turns.ahead_s()


@live(1, lend="5 s")
async def test_plain_work_takes_turns_when_jobs_have_all_nodes(c, s, a):
    rt = await dask_hpc.install(c, policy="pwma-fpsma")
    async with rt.job("large") as large:
        await started(s, large)
        backlog = c.map(a_while, range(150), key="large", pure=False)
        await until(lambda: record(s, large).queue, "it is under way")
        with dask.annotate(hpc_job=None):
            assert await within(c.gather(c.map(a_while, range(6), key="plain", pure=False))) == [*range(6)]
        assert record(s, large).unfinished > 30
        del backlog
        await large.cancel()


@live(2, lend="5 s")
async def test_dependents_of_plain_work_are_all_sent_once_it_has_a_node(c, s, a, b):
    gate = Gate()
    rt = await dask_hpc.install(c, policy="fair")
    async with rt.job("large") as large:
        await started(s, large, nodes=2)
        backlog = c.map(a_while, range(400), key="large", pure=False)
        await until(lambda: record(s, large).queue, "it is under way")
        data = await c.scatter(list(range(20)))
        with dask.annotate(hpc_job=None):
            plain = c.map(through, data, gate=gate, key="plain", pure=False)
        # one by one they would take as long as as many messages
        keys = {future.key for future in plain}
        await until(
            lambda: sum(ts.key in keys for ws in s.workers.values() for ts in ws.processing) == 20, "sent"
        )
        gate.open()
        assert await within(c.gather(plain)) == list(range(20))
        del backlog
        await large.cancel()


@live(4, lend="5 s")
async def test_plain_work_has_its_share_of_all_nodes_beside_a_busy_job_and_no_more(c, s, *workers):
    without_validation(s, workers)
    starts = Starts()
    await starts.watch(workers)

    def plain(count):
        with dask.annotate(hpc_job=None):
            return c.map(a_while, range(count), key="plain", pure=False)

    def begun():
        return [key_split(key) for key in starts.count]

    rt = await dask_hpc.install(c, policy="fair")
    async with rt.job("busy") as job:
        await started(s, job)
        backlog = c.map(a_while, range(240), key="busy", pure=False)
        await until(lambda: record(s, job).queue, "it is under way")
        assert await within(c.gather(plain(60))) == list(range(60))
        order = begun()
        # with one node of four it would have a quarter
        last = len(order) - order[::-1].index("plain")
        assert order[order.index("plain") : last].count("busy") < 60 * 1.5
        # with less to do than the job it comes first; but who goes on submitting has its share and no more
        batches = [plain(20) for _ in range(3)]
        while record(s, job).unfinished and begun().count("plain") < 500:
            batches.append(plain(20))
            await within(c.gather(batches.pop(0)))
        order = begun()
        assert order.count("busy") == 240
        assert order[: len(order) - order[::-1].index("busy")].count("plain") < 240 * 1.5
        del backlog
        await job.cancel()


@pytest.mark.parametrize("how", ["nodes", "exclusive", "producer", "setting", "asks"])
@live(1, lend="5 s")
async def test_who_asked_for_nodes_keeps_them(c, s, a, how):
    first, others = Gate(), Gate()
    with dask.config.set({"hpc.lend": "0 s"} if how == "setting" else {}):
        rt = await dask_hpc.install(c, policy="fcfs")
    options = {"nodes": {"nodes": 1}, "exclusive": {"exclusive": True}}.get(how, {})
    async with rt.job("large", **options) as large:
        await started(s, large)
        if how == "producer":
            await large.producer().start()
        futures = [c.submit(through, 0, first, key="large-first")]
        await until(lambda: first.arrived, "its node is busy")
        futures += c.map(through, range(1, 5), gate=others, key="large", pure=False)
        # it would be first in turn
        async with rt.job("waits", priority=1, **({"nodes": 1} if how == "asks" else {})) as waits:
            later = c.submit(begun, others, key="later")
            await until(lambda: record(s, waits).held, "it is held")
            first.open()
            await until(lambda: others.arrived, "a slot has become free")
            passes = engine(s).admission._counter
            await until(lambda: engine(s).admission._counter > passes + 2, "admission has looked again")
            assert s.tasks[later.key].state == "no-worker"
            others.open()
            assert await c.gather(futures) == list(range(5))
            await large.__aexit__(None, None, None)
            assert await within(later.result()) == 4  # it has run behind all of them


@pytest.mark.parametrize(("policy", "takes_turns"), [("fair", True), ("equipartition", False)])
@live(2, lend="5 s")
async def test_jobs_with_nodes_take_turns_where_the_policy_says_so(c, s, a, b, policy, takes_turns):
    rt = await dask_hpc.install(c, policy=policy)
    async with rt.job("large") as large, rt.job("small") as small:
        await started(s, large)
        await started(s, small)
        with dask.annotate(hpc_job=large.id):
            backlog = c.map(longer, range(60), key="large", pure=False)
        await until(lambda: record(s, large).queue and len(record(s, large).nodes) == 1, "each has a node")
        with dask.annotate(hpc_job=small.id):
            answers = c.map(longer, range(40), key="small", pure=False)
        if takes_turns:
            await until(lambda: engine(s).turns.ahead_s().get(small.id, 0.0) > 0.03, "it is served first")
        assert await within(c.gather(answers)) == list(range(40))
        # both nodes served it, as if its user had a priority
        assert (record(s, small).borrowed_tasks > 10) is takes_turns
        # a simulation that goes on from here is told who takes turns
        told = (await rt.snapshot()).sections["lending"]
        assert set(told["turns"]) == {large.id, small.id}
        assert not takes_turns or told["ends"][small.id] < told["ends"][large.id], "as it is served"
        assert await within(c.gather(backlog)) == list(range(60))


@live(2, lend="5 s")
async def test_long_tasks_take_no_turns_on_nodes_of_others(c, s, a, b):
    gate = Gate()
    gate.open()
    await c.submit(through, 0, gate, key="long-0")
    s.task_prefixes["long"].duration_average = 60.0
    gate = Gate()
    rt = await dask_hpc.install(c, policy="fair")
    async with rt.job("large") as large, rt.job("small") as small:
        await started(s, large)
        await started(s, small)
        with dask.annotate(hpc_job=large.id):
            backlog = c.map(a_while, range(60), key="large", pure=False)
        await until(lambda: record(s, large).queue and len(record(s, large).nodes) == 1, "each has a node")
        with dask.annotate(hpc_job=small.id):
            futures = c.map(through, range(4), gate=gate, key="long", pure=False)
        # its turn comes each time when one of these is done
        assert await within(c.gather(backlog)) == list(range(60))
        assert (gate.arrived, record(s, small).borrowed_tasks) == (1, 0)
        gate.open()
        assert await within(c.gather(futures)) == list(range(4))


def test_who_takes_turns_on_nodes_of_plain_work_and_which_tasks_are_sent_ahead():
    plain = SimpleNamespace(is_default=True, allotment={"a"}, undeclared=True, unfinished=1)
    with_node = SimpleNamespace(is_default=False, allotment={"b"}, undeclared=True, reach={"b"})
    without = SimpleNamespace(is_default=False, allotment=set(), undeclared=True)
    node, holders = SimpleNamespace(serves=True), [plain]
    state = SimpleNamespace(
        nodes=SimpleNamespace(at=dict.fromkeys("ab", node)),
        serving={"b": with_node},
        common={"b"},
        served_by=lambda address: holders if address == "a" else [with_node],
    )
    turns = SimpleNamespace(place=[without, plain, with_node].index)
    sharing = Sharing(state, SimpleNamespace(lends=lambda node: True), turns, None)
    sharing.waiting = [with_node, without]
    assert sharing.on("a") == [without, plain], "who has a node leaves that of plain work to it"
    plain.unfinished = 0
    assert sharing.on("a") == [without, plain, with_node]
    assert sharing.on("b") == [with_node, without], "those that wait are in turn already"
    sharing.waiting = [without]
    assert sharing.on("b") == [without, with_node], "a holder that does not wait has its turn there"
    sharing.waiting = [with_node, plain]
    assert sharing.on("a") == [with_node, plain]
    node.serves = False
    assert sharing.on("a") == sharing.on("b") == []
    sharing.waiting = [with_node, without]
    # stock's queue is closed only while others take turns there
    assert sharing.on_plain()
    plain.allotment = set()
    sharing.waiting = [plain, with_node]
    assert not sharing.on_plain()

    def took(seconds):
        return SimpleNamespace(prefix=SimpleNamespace(name="kind", duration_average=seconds))

    assert [sharing.ahead(took(seconds)) for seconds in (-1, 0.5, 1.5)] == [False, True, False]


def test_who_takes_turns_on_common_nodes_is_seen_once_a_look_and_node_by_node_for_who_has_left_them():
    common, asked = {"a", "b"}, []
    first, second = (JobRecord(name, job_spec(name), JobRequest(name=name), client=None) for name in "12")
    for job in (first, second):
        job.lanes["rest"].restriction = common
    state = SimpleNamespace(
        nodes=SimpleNamespace(at=dict.fromkeys("ab", SimpleNamespace(serves=True))),
        serving={"a": first, "b": second},
        common=common,
        served_by=lambda address: [state.serving[address]],
    )
    order = [first, second]
    turns = SimpleNamespace(advance=int, place=lambda job: order.index(job))
    sharing = Sharing(state, SimpleNamespace(lends=lambda node: asked.append(node)), turns, None)
    sharing.waiting = [second]
    for _ in range(2):
        assert (sharing.on("a"), sharing.on("b")) == ([first, second], [second])
    order.reverse()
    assert sharing.on("a") == [first, second], "as it was at the last look"
    sharing.waiting = [first, second]
    sharing.pass_time()
    assert sharing.on("a") == sharing.on("b") == [second, first]
    assert not asked
    # one of its nodes is not lent
    first.lanes["rest"].restriction = {"a"}
    assert (sharing.on("a"), len(asked)) == ([], 1)


@pytest.mark.parametrize(
    ("tasks", "more", "left"), [(9, {"a": 1, "b": 2}, []), (1, {"b": 1}, []), (0, {}, ["b"])]
)
def test_shared_workers_get_what_stock_would_queue_there_with_what_is_about_to_be_sent(tasks, more, left):
    held = deque(SimpleNamespace(key=f"held-{i}") for i in range(tasks))
    job = SimpleNamespace(
        is_default=False, allotment=(), first=lambda: held[0] if held else None, take=held.popleft
    )
    a, b = workers = [
        SimpleNamespace(address=address, nthreads=1, processing={}, long_running=(), resources={})
        for address in "ab"
    ]
    # one task is on its way to `a`, which has one thread
    batch = [(SimpleNamespace(key="sent"), a, None)]
    admission = SimpleNamespace(
        state=SimpleNamespace(
            scheduler=SimpleNamespace(running=[a, b], WORKER_SATURATION=1.1, queued=()),
            owner={ts.key: None for ts in held},
            served_by=lambda address: [job],
        ),
        queue=SimpleNamespace(waits=lambda: False),
        sharing=SimpleNamespace(
            turn=lambda jobs, address: (job, held[0]) if held else None,
            before=lambda worker, jobs: 0,
            ahead=lambda ts: True,
        ),
        _limits=(),
        _serving={"b": job},
    )
    admission._deal = lambda *given: Admission._deal(admission, *given)
    over = []
    shared = [(ws, [job], *reads.room(admission.state.scheduler, ws)) for ws in workers]
    assert Admission._deal_all(admission, shared, batch, over, "") == []
    sent = [ws.address for _, ws, _ in batch[1:]]
    assert ({address: sent.count(address) for address in sent}, over) == (more, left)


@pytest.mark.parametrize("saturation", [0.5, 1.0, 1.1, 1.5, math.inf])
def test_the_room_of_a_worker_is_what_stock_would_send_it_and_its_idle_threads(saturation):
    for threads, tasks, seceded in itertools.product((1, 3, 8, 40), range(12), range(2)):
        away = min(seceded, tasks)
        ws = SimpleNamespace(
            nthreads=threads, processing=range(tasks), long_running=range(away), resources={}
        )
        scheduler = SimpleNamespace(running=[ws], WORKER_SATURATION=saturation)
        slots = reads.stock_slots(scheduler, ws)
        # what stock would not send does not count as idle: less than one task to a thread
        assert reads.room(scheduler, ws) == (slots, min(threads - tasks + away, slots))
        found = (reads.free_slots(scheduler, ws), reads.idle_threads(scheduler, ws))
        assert reads.room(scheduler, ws) == found
        scheduler.running.clear()
        assert reads.room(scheduler, ws) == (0, 0)


def test_a_task_whose_job_has_its_turn_before_by_now_is_not_overtaken_for_what_it_was_sent_with():
    """Else what was once guessed of its job would have it wait for ever."""
    turns = {"mine": (0, 0, 5.0), "earlier by now": (0, 0, 4.0), "later": (0, 0, 9.0), "in no order": None}
    sent = {name: SimpleNamespace(key=name, priority=(0, 0, 0, 20.0, 1, 1)) for name in (*turns, "of no job")}
    owner = {name: SimpleNamespace(job=name) for name in turns}
    worker = SimpleNamespace(nthreads=1, processing=[*sent.values()], long_running=set())
    state = SimpleNamespace(scheduler=SimpleNamespace(running=[worker]), owner=owner)
    sharing = Sharing(state, None, SimpleNamespace(turn=turns.get), None)
    next_one = SimpleNamespace(priority=(0, 1, 1))
    for name, passed in (("mine", 4), ("earlier by now", 5), ("later", 3), ("in no order", 0)):
        assert sharing.overtaken(worker, name, next_one) == passed, name


def test_time_passes_for_who_takes_turns_at_each_sweep_once_also_while_nobody_waits():
    passed = []
    state = SimpleNamespace(
        jobs=SimpleNamespace(named=[], active={}),
        settings=SimpleNamespace(lend_s=5.0),
        common=None,
        in_turn=True,
    )
    turns = SimpleNamespace(advance=lambda: passed.append(1), place=len)
    sharing = Sharing(state, None, turns, None)
    sharing.look(lambda job: False)
    assert passed == []
    sharing.sweep()
    for _ in range(2):
        sharing.look(lambda job: False)
    assert passed == [1]
    for held in ([], ["held"]):
        job, offered = SimpleNamespace(queue=held, stranded={}), []
        state.jobs.active, state.plain = {"job": job}, []
        Admission.sweep(
            SimpleNamespace(
                lending=SimpleNamespace(settle_all=int), sharing=sharing,
                queue=SimpleNamespace(first=lambda: None), _aside={}, state=state,
                gate=SimpleNamespace(ended=int), offer=offered.append,
            )
        )  # fmt: skip
        # who holds something is looked at in the next pass
        assert (len(passed), offered) == (2, [job] if held else [])
    sharing.waiting = ["later", "next"]
    sharing.pass_time()
    assert sharing.waiting == ["next", "later"], "in turn by now"
