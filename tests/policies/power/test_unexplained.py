"""A draw that no job explains is led back inside, under any policy, and jobs are not resized to and fro.

Jobs on a toy machine, of which a policy would give all nodes away at every tick; the corridor is enforced.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.combine.arbitrate import arbitrate
from dask_hpc_policies.combine.corridor import enforced, guards
from dask_hpc_policies.decision import Decision, Expand, Reason, ReasonCode, Shrink
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView
from dask_hpc_policies.power.problem import Problem
from dask_hpc_policies.power.program import Plan, solve
from dask_hpc_policies.power.question import Terms, drawn_w, planned
from dask_hpc_policies.power.unexplained import GOES_S, STAYS_S, Unexplained, counted, noted
from dask_hpc_policies.power.view import PowerView

NODES, IDLE_W = 8, 50.0
WHY = Reason(ReasonCode.IDLE_NODES, "a test")
_answers: dict[Problem, Plan] = {}


def solved(problem: Problem) -> Plan:
    if problem not in _answers:
        _answers[problem] = solve(problem)
    return _answers[problem]


@dataclass
class World:
    """Jobs by their watts a node and their sizes, and what is drawn beside them at a time."""

    watts: list[float]
    sizes: list[int]
    lower_w: float
    upper_w: float
    beside_w: Callable[[int, list[int]], float]
    memory: Unexplained = field(default_factory=Unexplained)
    resizes: int = 0
    draw: list[float] = field(default_factory=list)

    def known_w(self, sizes: list[int]) -> float:
        drawn = sum(nodes * watts for nodes, watts in zip(sizes, self.watts, strict=True))
        return drawn + (NODES - sum(sizes)) * IDLE_W

    def inside(self, watts: float) -> bool:
        return self.lower_w - 1e-6 <= watts <= self.upper_w + 1e-6

    def view(self) -> tuple[ClusterSnapshot, PowerView]:
        """What is there at the present sizes, and what is known of its draw."""
        jobs = tuple(
            JobView(id=f"j{i}", name=f"j{i}", kind="malleable", state="running", nodes=nodes, min_nodes=1,
                    max_nodes=NODES, min_power_w=watts, max_power_w=watts)
            for i, (nodes, watts) in enumerate(zip(self.sizes, self.watts, strict=True))
        )  # fmt: skip
        nodes = tuple(NodeView(id=f"n{i}") for i in range(NODES))
        view = ClusterSnapshot(now_s=0.0, nodes=nodes, jobs=jobs, idle_nodes=NODES - sum(self.sizes))
        power = PowerView(mode="enforce", lower_w=self.lower_w, upper_w=self.upper_w, idle_w=IDLE_W)
        low_w, high_w = drawn_w(view, power)
        return view, replace(power, min_w=low_w, max_w=high_w)

    def sample(self, t_s: int, view: ClusterSnapshot, power: PowerView) -> PowerView:
        """What is drawn then, and what counts of it."""
        assert power.max_w is not None
        self.draw.append(power.max_w + self.beside_w(t_s, self.sizes))
        power = replace(power, draw_w=self.draw[-1])
        self.memory = noted(self.memory, replace(view, now_s=float(t_s)), power, self.draw[-1])
        return counted(power, self.memory)

    def run(self, ticks: int) -> World:
        view, power = self.view()
        before = None
        for t_s in range(ticks):
            now = self.sample(t_s, view, power)
            above, below = self.draw[-1] > self.upper_w, self.draw[-1] < self.lower_w
            if before == (self.sizes, self.memory.watts, above, below):
                continue  # nothing that a decision goes by is another
            before = self.sizes, self.memory.watts, above, below
            planned_view = planned(view, now, Terms(), solved)
            wish = tuple(
                Expand(job=job.id, nodes=job.nodes + view.idle_nodes, reason=WHY)
                for job in view.jobs[:1] if view.idle_nodes
            )  # fmt: skip
            asked = arbitrate(planned_view, Decision(actions=wish), guards(planned_view))
            for action in enforced(planned_view, asked).actions:
                if isinstance(action, (Expand, Shrink)):
                    self.sizes = [*self.sizes]
                    self.sizes[int(action.job[1:])] = action.nodes
                    self.resizes += 1
            view, power = self.view()
        return self


@given(
    st.lists(st.tuples(st.integers(60, 300), st.integers(1, 4)), min_size=1, max_size=2),
    st.integers(0, 1500), st.integers(60, 600), st.integers(0, 900),
)  # fmt: skip
@examples(40)
def test_a_constant_draw_of_nobody_is_led_inside_where_some_allocation_is(jobs, lower, wide, beside) -> None:
    watts, sizes = [float(watts) for watts, _ in jobs], [nodes for _, nodes in jobs]
    world = World(watts, sizes, lower, lower + wide, lambda *_: beside)
    legal = [one for one in product(range(1, NODES + 1), repeat=len(jobs)) if sum(one) <= NODES]
    possible = any(world.inside(world.known_w(list(one)) + beside) for one in legal)
    world.run(240)
    if possible:
        assert all(map(world.inside, world.draw[-20:])), world.draw[-20:]
    assert world.resizes <= 12


@pytest.mark.parametrize("share", [0.02, 0.1])
@pytest.mark.parametrize("memory", [0.0, 0.5])
def test_noise_around_what_is_known_resizes_nobody(share: float, memory: float) -> None:
    for seed in range(3):
        print(f"seed {seed}")
        noise, now = random.Random(seed), 0.0
        # 1,050 W, and 1 % more are allowed
        world = World([150.0, 100.0], [6, 1], 900.0, 1060.0, lambda *_: now)  # noqa: B023
        view, power = world.view()
        for t_s in range(3600):
            now = memory * now + math.sqrt(1 - memory**2) * noise.gauss(0.0, share * 1050)
            world.sample(t_s, view, power)
            # and so nothing is done that would not be done without
            assert world.memory.watts == (0.0, 0.0), t_s


@pytest.mark.parametrize("half_s", [5, 40, 300])
def test_a_draw_that_comes_and_goes_does_not_have_jobs_resized_at_each_turn(half_s: int) -> None:
    world = World([150.0, 100.0], [6, 1], 0.0, 1100.0, lambda t_s, _: 300.0 * (t_s // half_s % 2))
    world.run(3600)
    # with 300 s there are 12 of them
    assert world.resizes <= 12
    above_s = sum(draw > 1100 for draw in world.draw)
    assert above_s <= {5: 3600, 40: 200, 300: 200}[half_s], above_s


def test_jobs_that_draw_three_times_what_they_say_are_tried_on_more_nodes_now_and_then_alone() -> None:
    # what is unexplained is then a matter of the sizes: to let it go is to have it again
    world = World([100.0], [8], 0.0, 1300.0, lambda _, sizes: 200.0 * sizes[0]).run(7200)
    assert world.resizes <= 30
    assert sum(draw > 1300 for draw in world.draw[-3600:]) <= 6 * 22


def unexplained(*samples: float, upper_w: float = 2000.0, known_w: float = 1000.0) -> tuple[float, float]:
    """What counts after a sample a second of a draw so far beyond what is known."""
    world = World([known_w / NODES], [NODES], 0.0, upper_w, lambda t_s, _: samples[t_s])
    for t_s in range(len(samples)):
        world.sample(t_s, *world.view())
    return world.memory.watts


def test_it_counts_once_it_has_stayed_and_goes_at_once_for_the_lower_bound_alone() -> None:
    stays = int(STAYS_S) + 1
    assert unexplained(*[300.0] * (stays - 1)) == (0.0, 0.0)
    assert unexplained(*[300.0] * (stays - 1), 299.5) == (300.0, 300.0)
    assert unexplained(*[300.0] * (stays - 1), 0.0, *[300.0] * (stays - 1)) == (0.0, 0.0)
    # a little is noise, but above the upper bound
    assert unexplained(*[15.0] * 60) == (0.0, 0.0)
    assert unexplained(*[15.0] * 60, upper_w=1010.0) == (15.0, 15.0)
    gone = [300.0] * stays + [0.0] * stays
    assert unexplained(*gone) == (0.0, 300.0)
    assert unexplained(*gone, *[0.0] * int(GOES_S)) == (0.0, 0.0)
    # what is less than known is no reason to draw more
    assert unexplained(*[-300.0] * 100) == (0.0, 0.0)


def test_what_may_have_been_a_jobs_is_let_go_soon_after_its_end() -> None:
    world = World([150.0, 100.0], [5, 1], 0.0, 2000.0, lambda *_: 300.0)
    for t_s in range(30):
        world.sample(t_s, *world.view())
    assert world.memory.watts == (300.0, 300.0)
    world.watts, world.sizes, world.beside_w = [150.0], [5], lambda *_: 0.0
    for t_s in range(30, 30 + int(STAYS_S) + 1):
        assert world.memory.watts[1] == 300.0
        world.sample(t_s, *world.view())
    assert world.memory.watts == (0.0, 0.0)


def test_what_jobs_come_to_be_known_for_does_not_count_twice() -> None:
    world = World([125.0], [NODES], 0.0, 2000.0, lambda *_: 300.0)
    for t_s in range(30):
        world.sample(t_s, *world.view())
    assert world.memory.watts == (300.0, 300.0)
    world.watts, world.beside_w = [150.0], lambda *_: 100.0
    power = world.sample(30, *world.view())
    assert world.memory.watts == (100.0, 100.0)
    assert (power.max_w, power.unexplained_w) == (8 * 150 + 100, (100.0, 100.0))


def told_w(known_w: Callable[[int], float], drawn: float = 1500.0, seconds: int = 600, samples: int = 1):
    """What counts, second by second, of a draw beside what is known of two jobs that keep their sizes."""
    view, power = World([100.0, 100.0], [4, 4], 0.0, 1000.0, lambda t_s, sizes: 0.0).view()
    memory, told = Unexplained(), []
    for t_s in range(seconds):
        for _ in range(samples):
            at, known = replace(view, now_s=float(t_s)), known_w(t_s)
            memory = noted(memory, at, replace(power, min_w=known, max_w=known, draw_w=drawn), drawn)
        told.append(memory.watts[1])
    return told


def test_what_is_known_of_jobs_may_tremble() -> None:
    # up and down by one in a hundred, every ten seconds and every second
    for every_s in (10, 1):
        told = told_w(lambda t_s, every_s=every_s: 840.0 + 12.0 * (t_s // every_s % 2))
        assert set(told[40:]) <= {float(watts) for watts in range(648, 661)}
        assert len(set(told[100:])) == 1


def test_what_becomes_known_counts_no_more_beside_it_and_what_was_seen_stays() -> None:
    told = told_w(lambda t_s: 840.0 if t_s < 30 else 1140.0)
    assert (told[29], told[30], told[-1]) == (660.0, 360.0, 360.0)
    # before it counts, too: the twenty seconds go on
    told = told_w(lambda t_s: 840.0 if t_s < 15 else 1140.0, seconds=25)
    assert (told[15], told[24]) == (0.0, 360.0)


def test_samples_of_one_moment_are_one() -> None:
    assert told_w(lambda t_s: 840.0, seconds=3, samples=30)[-1] == 0.0
