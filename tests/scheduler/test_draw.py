"""The draw of the nodes, worker by worker: what was said is read once, holds for a while, and adds up."""

from __future__ import annotations

from math import nan
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.scheduler.power.account import ENOUGH, Account
from dask_hpc.scheduler.power.books import Books
from dask_hpc.scheduler.power.draw import Draw, Sample
from dask_hpc.scheduler.tables.nodes import Away, Node
from dask_hpc_policies.model import JobRequest
from dask_hpc_policies.power.load_curve import LoadCurve

CURVE = LoadCurve(((0.0, 70.0), (1.0, 200.0)))


class Place(SimpleNamespace):
    """What a scheduler knows of a worker: two are never the same, whatever they have in common."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class World:
    """Workers ``0``, ``1``, ..., each a node; the first ones are those of a job."""

    def __init__(self, count: int, held: int = 0) -> None:
        self.workers: dict[str, Any] = {}
        self.nodes = nodes = {}
        for number in range(count):
            name = str(number)
            self.workers[name] = Place(
                name=name, address=name, host=name, nthreads=2, processing={}, metrics={}, memory_limit=0
            )
            nodes[name] = Node(name)
            nodes[name].workers[name] = (2, 0)
            nodes[name].job = "a" if number < held else None
        request = JobRequest(name="heat", min_power_w=300.0, max_power_w=300.0)
        self.job = job = SimpleNamespace(id="a", state="running", request=request)
        self.draw = Draw(
            SimpleNamespace(
                scheduler=SimpleNamespace(workers=self.workers),
                nodes=SimpleNamespace(nodes=nodes, version=1, absent=Away),
                settings=SimpleNamespace(power_model_powered_off_w=None, power_model_boot_w=None),
                jobs=SimpleNamespace(active={"a": job} if held else {}),
                missing=set(),
                read_back=set(),
            )  # type: ignore[arg-type]
        )

    def says(self, name: str, watts: Any, at_s: float, **more: Any) -> None:
        section = {"watts": watts, "label": "measured", "at_s": at_s, **more}
        self.workers[name].metrics = {"hpc": {"power": section}}


def test_what_is_measured_holds_for_a_while_after_it_was_measured_not_after_it_was_said_again() -> None:
    world = World(1)
    assert world.draw.sample(0.0, None).label == "unavailable"
    assert world.draw.silent() == ["0"]
    world.says("0", 90.0, 5.0, fresh_s=10.0)
    for now_s in (1.0, 11.0):
        assert world.draw.sample(now_s, None).total_w == 90
    assert world.draw.silent() == []
    world.says("0", 90.0, 5.0, fresh_s=10.0)
    assert world.draw.sample(11.1, None).label == "unavailable"
    world.says("0", 95.0, 16.0, fresh_s=10.0)
    assert world.draw.sample(11.2, None).total_w == 95
    # what cannot be is not known, and what says nothing is asked again
    world.says("0", float("nan"), 17.0)
    assert world.draw.sample(11.3, None).label == "unavailable"
    assert world.draw.silent() == []
    world.workers["0"].metrics = {}
    assert world.draw.sample(11.4, None).label == "unavailable"
    assert world.draw.silent() == ["0"]


def test_what_is_drawn_between_heartbeats_counts_and_a_counter_may_begin_anew() -> None:
    world, account = World(1), Account(0.0)
    # 400 W in every fifth second, which is the one that a heartbeat tells of, else 100 W
    energy_j = 0.0
    for second in range(1, 301):
        watts = 400.0 if second % 5 == 0 else 100.0
        energy_j += watts
        if second == 150:
            energy_j = watts
        if second % 5 == 0:
            world.says("0", watts, float(second), counted_s=1e6 + second, energy_j=energy_j)
        if second >= 5:
            account.add(world.draw.sample(float(second), None), None)
    # the first heartbeat, and that of the new counter, tell of one second alone
    true_j = 295 * 160.0
    assert account.uses.total.energy_j == pytest.approx(true_j + 2 * 5 * 240.0)
    # nobody is taken to have drawn what a clock or a counter makes up
    for key, value in (("counted_s", 2e6), ("counted_s", 5.0), ("energy_j", nan), ("energy_j", 1e15)):
        world.says("0", 90.0, 301.0, **{"counted_s": 1e6 + 301, "energy_j": energy_j + 50.0, key: value})
        assert world.draw.sample(301.0, None).total_w == 90
        world.says("0", 100.0, 300.0, counted_s=1e6 + 300, energy_j=energy_j)
        world.draw.sample(301.0, None)
    world.says("0", 90.0, 301.0, counted_s=1e6 + 301, energy_j=energy_j + 50.0)
    assert world.draw.sample(301.0, None).total_w == 50


def test_of_many_workers_those_are_read_that_speak_and_some_of_the_others_in_turn() -> None:
    world = World(200)
    draw, state = world.draw, world.draw._state
    state.now_s = lambda: 1.0  # type: ignore[method-assign]
    draw.told_by_beats = True
    for name in world.workers:
        world.says(name, 90.0, 5.0)
    assert draw.sample(0.0, None).total_w == 200 * 90
    world.says("150", 50.0, 6.0)
    draw.hear(world.workers["150"])
    assert draw.sample(1.0, None).total_w == 199 * 90 + 50
    # nobody tells of this one
    world.says("7", 30.0, 6.0)
    told = [draw.sample(2.0 + number, None).total_w for number in range(10)]
    assert told[-1] == 198 * 90 + 80
    # a worker that has gone is heard no more, nor is one that nobody knows yet
    draw.hear(Place(**vars(world.workers["150"])))
    draw.hear(Place(address="new"))
    assert draw.sample(12.0, None).total_w == 198 * 90 + 80


def test_a_worker_that_comes_back_at_an_address_is_heard_anew() -> None:
    world = World(1)
    world.says("0", 90.0, 5.0)
    world.draw.sample(0.0, None)
    assert world.draw.sample(1000.0, None).label == "unavailable"
    world.workers["0"] = Place(**vars(world.workers["0"]))
    assert world.draw.sample(1001.0, None).total_w == 90
    del world.workers["0"]
    assert world.draw.sample(1002.0, None).nodes == 0


def test_what_a_node_drew_before_the_job_had_it_is_not_the_jobs() -> None:
    world = World(2, held=2)
    table = world.nodes
    state: Any = world.draw._state
    table["1"].job = None
    for name in table:
        world.workers[name].processing = {"x": 1}

    def seen(t_s: float, *news: str) -> tuple[Any, Any]:
        for name in news:
            joules = 70.0 * min(t_s, 12.0) + 170.0 * max(0.0, t_s - 12.0)
            world.says(name, 170.0, t_s, counted_s=t_s, energy_j=joules)
        found = world.draw.sample(t_s, CURVE)
        return found.seen_w.get("a"), found.seen_s.get("a")

    assert seen(0.0) == (None, None)
    seen(1.0, "0", "1")
    table["0"].job, state.nodes.version = None, 2
    seen(10.0, "0", "1")
    for name in table:
        table[name].job = "a"
    state.nodes.version = 3
    # what is told after the start is of the time before it, in part; and what is told next is not
    assert seen(12.0) == (None, None)
    assert seen(14.0, "0", "1") == (None, None)
    assert seen(18.0, "0") == ((2, 170.0), 18.0)
    assert seen(19.0) == ((2, 170.0), 18.0)
    assert seen(20.0, "1") == ((2, 170.0), 20.0)


def test_what_was_heard_once_of_a_job_counts_once_however_often_it_is_sampled() -> None:
    told: list[Any] = []
    request = JobRequest(name="heat", min_power_w=160.0, max_power_w=180.0)
    job: Any = SimpleNamespace(id="a", name="heat", state="running", is_default=False, request=request)
    job.measured = lambda power_by_nodes: told.append(power_by_nodes)
    state: Any = SimpleNamespace(jobs=SimpleNamespace(active={"a": job}, named=[job]))
    books = Books(state, lambda: None, tuple)
    for t_s in range(3 * ENOUGH):
        books._measure(Sample(float(t_s), seen_w={"a": (8, 100.0)}, seen_s={"a": float(t_s // 3)}))
        assert bool(told) is (t_s // 3 >= ENOUGH - 1)


def test_measured_and_modelled_nodes_add_up() -> None:
    world = World(6, held=3)
    for name, watts in {"0": 250.0, "3": 75.0, "4": 180.0}.items():
        world.says(name, watts, 1.0)
    world.workers["1"].processing = {"x": 1, "y": 1, "z": 1}
    world.workers["2"].processing = {"x": 1}
    world.workers["4"].processing = {"x": 1}
    # a node that executes nothing says nothing of what its job draws
    assert world.draw.sample(0.0, CURVE).seen_w == {}
    world.workers["0"].processing = {"x": 1}
    found = world.draw.sample(0.0, CURVE)
    # a job's node at half of its threads is half of the way from 70 to 300 W
    assert found.jobs_w == {"a": pytest.approx(250 + 300 + 185)}
    assert (found.plain_w, found.idle_w) == (180, 75 + 70)
    assert found.total_w == pytest.approx(735 + 180 + 145)
    assert (found.nodes, found.measured_nodes, found.label) == (6, 3, "modelled")
    assert found.sized_w == 3 * 300 + 3 * 70
    assert found.beside_w == (75 - 70) + (180 - 70)
    # what is known of a job changes while it runs
    world.job.request = JobRequest(name="heat", power_by_nodes=((3, 400.0),))
    again = world.draw.sample(0.0, CURVE)
    assert (again.sized_w, again.jobs_w) == (3 * 400 + 3 * 70, {"a": pytest.approx(250 + 400 + 235)})
    # the node that is measured speaks for all three
    assert (found.seen_w, found.measured) == ({"a": (3, 250.0)}, set())
    for name in ("1", "2"):
        world.says(name, 260.0, 1.0)
    found = world.draw.sample(0.0, CURVE)
    assert (found.seen_w, found.measured) == ({"a": (3, pytest.approx(770 / 3))}, {"a"})
    world.workers["0"].processing = {}
    found = world.draw.sample(0.0, CURVE)
    assert (found.seen_w, found.measured) == ({"a": (3, 260.0)}, {"a"})
    assert world.draw.sample(0.0, None).label == "unavailable"


def test_cpu_time_is_the_load_where_a_worker_tells_it_and_busy_threads_where_not() -> None:
    world = World(6, held=1)
    world.workers["5"].host = "4"
    for name, load in {"0": 0.5, "1": 0.1, "2": 7.0, "4": 0.9, "5": 0.9}.items():
        metrics = {"label": "modelled", "watts": 1.0, "at_s": 1.0, "fresh_s": 10.0, "load": load}
        world.workers[name].metrics = {"hpc": {"power": metrics}}
    for name in ("0", "2"):
        world.workers[name].processing = {"x": 1, "y": 1}
    found = world.draw.sample(0.0, CURVE)
    # what the third one says cannot be, the fourth says nothing, and the last two share a host
    assert list(found.nodes_w) == pytest.approx([185, 83, 200, 70, 70, 70])
    assert found.label == "modelled"
    # a node does what its tasks do, whatever else uses its processors
    assert (found.plain_nodes, found.idle_w) == (1, pytest.approx(293))
    assert world.draw.sample(10.1, CURVE).jobs_w == {"a": 300}, "what was told has grown old"


#: Of a worker: its node, watts (None: it does not measure), tasks, and whether data comes or goes.
WORKER = st.tuples(st.integers(0, 4), st.none() | st.floats(50, 300), st.integers(0, 3), st.booleans())


@given(st.lists(WORKER, min_size=1, max_size=12), st.integers(0, 5), st.sampled_from([None, CURVE]))
def test_nodes_of_several_workers_draw_what_they_would_one_by_one(workers, held, curve) -> None:
    world = World(len(workers), held)
    nodes: dict[str, Any] = world.nodes
    nodes.clear()
    for number, (at, watts, tasks, moves) in enumerate(workers):
        node = nodes.setdefault(f"n{at}", Node(f"n{at}"))
        node.workers[str(number)] = (2, 0)
        node.job = "a" if at < held else None
        if watts is not None:
            world.says(str(number), watts, 1.0)
        place = world.workers[str(number)]
        place.metrics = {**place.metrics, "transfer": {"incoming_count": int(moves), "outgoing_count": 0}}
        place.processing = dict.fromkeys(range(tasks))
    found = world.draw.sample(0.0, curve)
    drawn: dict[str, float] = {}
    by: dict[str, float] = {"a": 0.0, "plain": 0.0, "idle": 0.0}
    doing: dict[str, float] = {}
    for id, node in nodes.items():
        its = [workers[int(address)] for address in node.workers]
        busy = sum(min(2, tasks) for _, _, tasks, _ in its)
        said = [watts for _, watts, _, _ in its]
        if None not in said:
            drawn[id] = sum(said)
        elif curve is None:
            continue
        else:
            drawn[id] = curve.watts(busy / (2 * len(its)), 300.0 if node.job else None)
        state = "compute" if busy else "communicate" if any(moves for *_, moves in its) else "idle"
        who = node.job or ("plain" if busy else "idle")
        by[who] += drawn[id]
        doing[state] = doing.get(state, 0.0) + drawn[id]
    assert dict(zip(found.names, found.nodes_w, strict=True)) == pytest.approx(drawn)
    parts = {"a": found.jobs_w.get("a", 0.0), "plain": found.plain_w, "idle": found.idle_w}
    assert parts == pytest.approx(by)
    assert found.states_w == pytest.approx(doing)
    assert found.total_w == pytest.approx(sum(drawn.values()))
    assert found.nodes == len(nodes)


def test_nodes_that_are_off_count_also_where_none_is_there() -> None:
    for count in (0, 1):
        world = World(count)
        state = world.draw._state
        state.settings.power_model_powered_off_w = 5.0
        away = Away(off=3, up=count)
        state.nodes.absent = lambda away=away: away  # type: ignore[method-assign, misc]
        if count:
            world.says("0", 100.0, 1.0)
        found = world.draw.sample(1.0, CURVE)
        assert (found.label, found.total_w, found.away_w) == ("modelled", 15.0 + 100.0 * count, 15.0)


def test_what_is_drawn_now_is_told_also_where_nobody_keeps_an_account() -> None:
    world = World(1)
    world.says("0", 100.0, 1.0)
    books: Any = object.__new__(Books)
    books.account, books.draw = None, world.draw
    books.model = SimpleNamespace(curve=lambda: CURVE)
    assert books.now(1.0).last.total_w == 100.0
