"""A draw that is measured outside is brought inside, whatever was expected; and nobody swings to and fro."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from dask_hpc.scheduler.power.account import ENOUGH, History
from dask_hpc_policies.combine.arbitrate import arbitrate
from dask_hpc_policies.combine.corridor import enforced, guards
from dask_hpc_policies.decision import Expand, Shrink, Start
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView
from dask_hpc_policies.power.excess import HELD, SEEN, Excess
from dask_hpc_policies.power.program import solve
from dask_hpc_policies.power.question import Terms, drawn_w, outside_w, planned, terms_of
from dask_hpc_policies.power.view import Mode, PowerView
from dask_hpc_policies.registry import create

IDLE_W, NODES = 70.0, 8


@dataclass
class World:
    """Eight nodes, one job, and what it draws in truth; a step is a tick."""

    policy: str
    lower_w: float
    upper_w: float
    #: What the job says that a node of it draws, what it draws, and what is drawn beside.
    says_w: float = 200.0
    draws_w: float = 200.0
    beside_w: float = 0.0
    #: Whether it is known which job draws what.
    learns: bool = True
    params: dict[str, str] = field(default_factory=dict)
    size: int = NODES
    tick: int = 0
    sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.excess, self.history, self.changed = Excess(1.0), History(), -10

    @property
    def draw_w(self) -> float:
        return self.size * self.draws_w + (NODES - self.size) * IDLE_W + self.beside_w

    def picture(self) -> ClusterSnapshot:
        job = JobView(
            id="a", name="a", state="running", nodes=self.size, min_nodes=1, max_nodes=NODES,
            min_power_w=self.says_w, max_power_w=self.says_w,
        )  # fmt: skip
        table = self.history.holds("a", job) if self.learns else {}
        job = replace(job, power_by_nodes=tuple(table.items()))
        nodes = tuple(NodeView(id=f"n{i}") for i in range(NODES))
        return ClusterSnapshot(
            now_s=float(self.tick), nodes=nodes, jobs=(job,), idle_nodes=NODES - self.size
        )

    def step(self) -> None:
        """A tick: a sample, a picture, a decision that is carried out at once, and seen a tick later."""
        self.tick += 1
        if self.learns and self.tick - self.changed > 1:
            self.history.add("a", "a", self.size, self.draws_w)
        view, policy = self.picture(), create(self.policy, **self.params)
        mode: Mode = "policy" if self.policy == "power-aware" else "enforce"
        power = PowerView(
            mode=mode, lower_w=self.lower_w, upper_w=self.upper_w, idle_w=IDLE_W, busy_w=200.0,
            draw_w=self.draw_w,
        )  # fmt: skip
        low_w, high_w = drawn_w(view, power)
        power = self.excess.look(view, replace(power, min_w=low_w, max_w=high_w), self.tick - 0.5)
        terms = terms_of(self.params) if mode == "policy" else Terms()
        view = planned(view, power, terms, solve)
        decision: Any = policy.decide(view, policy.initial_state())[0]
        decision = enforced(view, arbitrate(view, decision, guards(view)))
        for action in decision.actions:
            if isinstance(action, Start | Expand | Shrink) and action.nodes != self.size:
                self.size, self.changed = action.nodes, self.tick
        self.sizes.append(self.size)

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            self.step()


POLICIES = pytest.mark.parametrize(
    ("policy", "params"),
    [("power-aware", {}), ("power-aware", {"mode": "reactive"}), ("prma-fpsma", {})],
    ids=["proactive", "reactive", "enforced"],
)


def test_a_draw_of_these_sizes_is_outside_whatever_is_expected() -> None:
    power = PowerView(lower_w=1000, upper_w=2500, draw_w=3000, min_w=2000, max_w=2200)
    assert outside_w(power, Terms()) == 500
    assert outside_w(replace(power, draw_w=900), Terms()) == 100
    # of other sizes it says nothing
    assert outside_w(replace(power, settled=False), Terms()) == 0
    assert outside_w(replace(power, settled=False, max_w=2600), Terms()) == 100


@POLICIES
def test_a_job_whose_watts_double_is_brought_inside_and_stays(policy: str, params: dict[str, str]) -> None:
    world = World(policy, 1000, 1700, params=params)
    world.run(300)
    assert set(world.sizes) == {8}
    # 8 nodes draw 3,200 W then; 3 draw 1,550 W
    world.draws_w = 400.0
    world.run(2 * ENOUGH)
    assert world.size == 3
    world.run(2 * HELD)
    assert set(world.sizes[-2 * HELD :]) == {3}
    world.draws_w = 200.0
    world.run(2 * ENOUGH)
    assert world.size == 8


@POLICIES
def test_watts_of_nobody_are_made_room_for_without_swinging(policy: str, params: dict[str, str]) -> None:
    world = World(policy, 1000, 1700, params=params, learns=False)
    world.run(20)
    assert set(world.sizes) == {8}
    world.beside_w = 500.0
    world.run(SEEN + 2)
    # 8 nodes draw 2,100 W with it; 4 draw 1,580 W, 5 1,710 W
    assert world.size == 4
    world.run(3 * HELD)
    assert set(world.sizes[-3 * HELD :]) == {4}
    world.beside_w = 0.0
    world.run(HELD + SEEN)
    assert world.size == 8


def test_a_job_of_which_one_sample_is_odd_keeps_its_watts() -> None:
    history, request = History(), JobView(id="a", name="a", min_power_w=100.0)
    for watts in [200.0] * 100 + [400.0] * 4 + [200.0] * 40:
        history.add("a", "a", 4, watts)
    assert 200 <= history.holds("a", request)[4] <= 210
    for _ in range(5):
        history.add("a", "a", 4, 400.0)
    assert history.holds("a", request) == {4: 400.0}
    # what it drew on other sizes was of before
    history.add("a", "a", 2, 390.0)
    for _ in range(5):
        history.add("a", "a", 2, 200.0)
    assert history.holds("a", request) == {2: 200.0}
