"""Placements of any application: they fit, none is better than the exact one, bounds hold."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from placements import (
    STUDY_BANDWIDTHS,
    STUDY_LOADS,
    any_application,
    applications,
    brute_force,
    helper_cores,
    step_s,
    study,
)

from dask_hpc.clock import countdown
from dask_hpc_policies.placement.application import (
    MODES,
    Analysis,
    Application,
    InvalidApplication,
    Mode,
    Platform,
    Simulation,
)
from dask_hpc_policies.placement.bounds import cells_below
from dask_hpc_policies.placement.closed_form import shares
from dask_hpc_policies.placement.exact import all_splits
from dask_hpc_policies.placement.exact_lp import solve
from dask_hpc_policies.placement.many import best
from dask_hpc_policies.placement.one_by_one import ORDERS, ordered
from dask_hpc_policies.placement.packs import packs
from dask_hpc_policies.placement.plan import METHODS, Placement, plan
from dask_hpc_policies.placement.times import load_of
from dask_hpc_policies.placement.whole import ROUNDINGS, rounded

modes = st.sampled_from(MODES)


def planned(application: Application, method: str, mode: Mode, **more: object) -> Placement | None:
    """The placement, None when there is none."""
    try:
        return plan(application, method, mode=mode, **more)  # type: ignore[arg-type]
    except InvalidApplication:
        return None


def check_exact(applications: list[Application]) -> None:
    for application, mode in itertools.product(applications, MODES):
        found = planned(application, "exact", mode)
        least_s = brute_force(application, mode)
        if found is None:
            assert math.isinf(least_s), application
        else:
            assert found.step_s == pytest.approx(least_s, rel=1e-9), application
            assert found.bound_s == found.step_s


def test_exact_is_the_least_step_of_all() -> None:
    check_exact([any_application(random.Random(seed), most=5, nodes=8) for seed in range(60)])
    # what is sent once, however many read it, seldom decides in those
    check_exact([pipelined(many(random.Random(seed), 3)) for seed in range(19, 28)])


@pytest.mark.slow
def test_exact_is_the_least_step_of_all_in_a_thousand_cases() -> None:
    chance = random.Random(20)
    cases = [any_application(chance, most=7) for _ in range(950)]
    # up to as many analyses as are enumerated, on few nodes
    cases += [many(chance, 8 + number % 5) for number in range(50)]
    check_exact(cases)


def many(chance: random.Random, analyses: int) -> Application:
    """One with so many analyses that may run anywhere, on few nodes."""
    return Application(
        platform=Platform(nodes=6, cores=4, memory_bytes=1.0, bandwidth_bytes_s=10 ** chance.uniform(-3, 0)),
        simulation=Simulation(one_core_s=100.0, memory_bytes=chance.uniform(0.5, 4.0)),
        analyses=tuple(
            Analysis(name=f"a{i}", one_core_s=chance.uniform(1, 10), memory_bytes=chance.uniform(0.0, 0.5))
            for i in range(analyses)
        ),
    )


def pipelined(case: Application) -> Application:
    """The same with several steps in flight."""
    return dataclasses.replace(case, platform=dataclasses.replace(case.platform, pipelined=True))


def test_programs_do_not_add_up_what_is_sent_once() -> None:
    case = pipelined(many(random.Random(1), 13))
    with pytest.raises(InvalidApplication, match="solved for up to 12 free analyses, not for 13"):
        plan(case, "exact")
    assert plan(case, "packs") is not None


def check_programs(applications: list[Application]) -> None:
    """The integer programs find what enumeration finds, without being asked to by the number of analyses."""
    in_turn = [
        dataclasses.replace(one, platform=dataclasses.replace(one.platform, pipelined=False))
        for one in applications
    ]
    for application, mode in itertools.product(in_turn, MODES):
        judged = best(application, all_splits(application), mode)
        least_s = float(judged.step_s.min())
        found, bound = solve(application, mode)
        assert (found is None) == math.isinf(least_s), application
        if found is not None:
            assert found.step_s == pytest.approx(least_s, rel=1e-8), application
            assert bound == pytest.approx(least_s, rel=1e-8)


def test_integer_programs_find_what_enumeration_finds() -> None:
    check_programs([any_application(random.Random(seed), most=7, nodes=8) for seed in range(25)])


@pytest.mark.slow
def test_integer_programs_find_what_enumeration_finds_in_larger_cases() -> None:
    chance = np.random.default_rng(4)
    check_programs([study(chance, load, 0.25, 12) for load in (1.1, 1.25, 1.33, 1.5, 2.0) for _ in range(3)])


def test_a_time_limit_leaves_a_bound_below_the_step() -> None:
    chance = np.random.default_rng(3)
    # to the last of nine digits this one takes far longer
    application = [study(chance, 1.05, 0.25, 30) for _ in range(2)][1]
    found = plan(application, left_s=countdown(1.0))
    assert 0.99 * found.step_s < found.bound_s < found.step_s


def test_a_time_limit_is_for_the_search_before_the_programs_too() -> None:
    # where single moves and swaps from the best start find better ones
    application = study(np.random.default_rng(0), 1.05, 0.25, 30)
    whole, asked = packs(application, "asynchronous"), itertools.count()
    found = plan(application, left_s=lambda: -float(next(asked)))
    # the same where it is all there is
    assert plan(application, "packs", left_s=lambda: 0.0).step_s > plan(application, "packs").step_s
    assert whole is not None
    assert whole.step_s < found.step_s < math.inf
    assert found.bound_s < found.step_s


@examples(60)
@given(application=applications(), mode=modes, seed=st.integers(0, 9), rounding=st.sampled_from(ROUNDINGS))
def test_every_method_gives_a_placement_that_fits_and_is_not_below_the_bound(
    application: Application, mode: Mode, seed: int, rounding: str
) -> None:
    least_s = brute_force(application, mode)
    for method in METHODS:
        found = planned(application, method, mode, rounding=rounding, seed=seed)
        if found is None:
            assert method != "exact" or math.isinf(least_s)
            continue
        split = [one.name in found.in_situ for one in application.analyses]
        assert sorted(found.in_situ + found.in_transit) == sorted(one.name for one in application.analyses)
        for one, inside in zip(application.analyses, split, strict=True):
            assert one.where in ("auto", "in-situ" if inside else "in-transit")
        # inf where it does not fit
        really_s = step_s(application, split, found.nodes, found.helper_cores, mode)
        assert found.step_s == pytest.approx(really_s, rel=1e-9)
        assert least_s * (1 - 1e-9) <= found.step_s
        assert found.bound_s <= least_s * (1 + 1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_no_split_is_below_the_bound_of_its_cell(mode: Mode) -> None:
    judged = 0
    for seed in range(400):
        application = any_application(random.Random(seed), most=4, nodes=6)
        # without analyses in transit there is no cell
        splits = [split for split in all_splits(application) if not split.all()]
        cells = cells_below(application, mode, math.inf)
        assert list(cells.bound_s) == sorted(cells.bound_s)
        bounds = dict(zip(zip(cells.nodes, cells.helper_cores, strict=True), cells.bound_s, strict=True))
        for nodes, helpers in itertools.product(
            range(1, application.platform.nodes),
            range(1, application.platform.cores) if mode == "asynchronous" else (0,),
        ):
            each_s = [step_s(application, split, nodes, helpers, mode) for split in splits]
            least_s = min(each_s, default=math.inf)
            if math.isfinite(least_s):
                judged += 1
                assert bounds[nodes, helpers] <= least_s * (1 + 1e-9)
    assert judged > 100


@examples(60)
@given(application=applications(), mode=modes)
def test_whole_numbers_of_many_splits_are_those_of_each(application: Application, mode: Mode) -> None:
    splits = all_splits(application)
    judged = best(application, splits, mode)
    for i, split in enumerate(splits):
        least_s = min(
            [
                step_s(application, split, nodes, h, mode)
                for nodes in range(1, application.platform.nodes + 1)
                for h in helper_cores(application, mode, any(split))
            ],
            default=math.inf,
        )
        assert judged.step_s[i] == pytest.approx(least_s, rel=1e-9)
        if math.isfinite(least_s):
            assert judged.with_helpers_s[i].min() == judged.step_s[i]


@examples(200)
@given(application=applications(), mode=modes)
def test_of_all_roundings_four_is_best(application: Application, mode: Mode) -> None:
    load = load_of(application, application.split())
    real = shares(application, load, mode)
    found = {one: rounded(application, load, real, mode, one) for one in ROUNDINGS}
    four = found.pop("four")
    for other in found.values():
        assert (other is None) == (four is None)
        if other is not None and four is not None:
            assert four.step_s <= other.step_s


def test_rounding_up_makes_the_simulation_the_slowest_phase() -> None:
    # memory apart, which may lift the nodes further
    application = study(np.random.default_rng(0), 1.2, 0.25)
    load = load_of(application, application.split([0, 1, 2]))
    found = rounded(application, load, shares(application, load, "asynchronous"), "asynchronous", "up")
    assert found is not None
    real = shares(application, load, "asynchronous")
    assert (found.nodes, found.helper_cores) == (math.ceil(real.nodes), math.ceil(real.helper_cores))
    assert found.phases.simulation_s > found.phases.in_situ_s


def test_nodes_are_lifted_to_what_memory_needs() -> None:
    # Algorithm 1 would begin with all in transit on 21 nodes, which hold half of the simulation
    application = Application(
        platform=Platform(nodes=50, cores=8, memory_bytes=1.0, bandwidth_bytes_s=0.01),
        simulation=Simulation(one_core_s=4000.0, memory_bytes=40.5),
        analyses=(Analysis(name="a", one_core_s=200.0, memory_bytes=7.0),),
    )
    load = load_of(application, application.split())
    assert shares(application, load, "asynchronous").nodes < 22
    for method in METHODS:
        assert plan(application, method).nodes >= 41


@examples(60)
@given(application=applications())
def test_without_a_serial_fraction_the_synchronous_optimum_is_never_above_the_asynchronous(
    application: Application,
) -> None:
    parallel = dataclasses.replace(
        application,
        simulation=dataclasses.replace(application.simulation, serial_fraction=0.0),
        analyses=tuple(dataclasses.replace(one, serial_fraction=0.0) for one in application.analyses),
    )
    together_s, beside_s = (brute_force(parallel, mode) for mode in ("synchronous", "asynchronous"))
    assert together_s <= beside_s * (1 + 1e-12)
    if math.isfinite(together_s):
        assert plan(parallel, mode="synchronous").step_s <= beside_s * (1 + 1e-9)


def test_with_a_serial_fraction_it_may_be_above() -> None:
    # what no second core speeds up also has analyses waiting that could have run beside it
    application = Application(
        platform=Platform(nodes=1, cores=4, memory_bytes=10.0, bandwidth_bytes_s=1.0),
        simulation=Simulation(one_core_s=100.0, memory_bytes=1.0, serial_fraction=1.0),
        analyses=(Analysis(name="a", one_core_s=100.0, memory_bytes=1.0),),
    )
    assert plan(application, mode="asynchronous").step_s == 100.0
    assert plan(application, mode="synchronous").step_s == 125.0


def test_orders() -> None:
    application = Application(
        platform=Platform(nodes=4, cores=4, memory_bytes=1.0, bandwidth_bytes_s=1.0),
        simulation=Simulation(one_core_s=1.0, memory_bytes=1.0),
        analyses=tuple(
            Analysis(name=name, one_core_s=seconds, memory_bytes=size, where=where)  # type: ignore[arg-type]
            for name, seconds, size, where in (
                ("a", 3, 1, "auto"), ("b", 1, 2, "auto"), ("c", 9, 9, "in-situ"), ("d", 2, 3, "auto"),
            )
        ),
    )  # fmt: skip
    assert {order: ordered(application, order) for order in ORDERS[:4]} == {
        "increasing-time": [1, 3, 0],
        "decreasing-time": [0, 3, 1],
        "increasing-peak": [0, 1, 3],
        "decreasing-peak": [3, 1, 0],
    }
    drawn = {tuple(ordered(application, "random", seed)) for seed in range(50)}
    assert drawn == set(itertools.permutations((0, 1, 3)))
    assert ordered(application, "random", 7) == ordered(application, "random", 7)


def test_packs_see_what_one_by_one_does_not() -> None:
    # a helper core on every node is too dear for any one of the analyses and cheap for all of them
    application = Application(
        platform=Platform(nodes=10, cores=4, memory_bytes=1.0, bandwidth_bytes_s=0.01),
        simulation=Simulation(one_core_s=300.0, memory_bytes=5.0),
        analyses=tuple(Analysis(name=f"a{i}", one_core_s=12.0, memory_bytes=0.5) for i in range(8)),
    )
    alone = [plan(application, order, rounding="up") for order in ORDERS]
    together = plan(application, "packs")
    assert together.step_s == plan(application).step_s
    assert together.step_s < 0.9 * min(one.step_s for one in alone)


def test_packs_come_near_the_least_step_of_the_study() -> None:
    chance = np.random.default_rng(11)
    above = []
    for load, bandwidth in itertools.product(STUDY_LOADS, STUDY_BANDWIDTHS):
        application = study(chance, load, bandwidth)
        above.append(plan(application, "packs").step_s / plan(application).step_s - 1)
    assert max(above) < 0.03
    assert sum(above) / len(above) < 0.005


@given(chance=st.randoms(use_true_random=False), mode=modes)
@examples(30)
def test_the_order_of_the_analyses_does_not_change_the_exact_step(chance: random.Random, mode: Mode) -> None:
    application = any_application(chance, most=5, nodes=6)
    turned = dataclasses.replace(application, analyses=application.analyses[::-1])
    found, again = planned(application, "exact", mode), planned(turned, "exact", mode)
    assert (found is None) == (again is None)
    if found is not None and again is not None:
        assert found.step_s == pytest.approx(again.step_s, rel=1e-12)


@pytest.mark.parametrize(
    ("field", "value", "part"),
    [
        ("platform.nodes", 0, "from 1 to"),
        ("platform.bandwidth_bytes_s", 0.0, "0.0 is not allowed; it must be a number from 1e-09"),
        ("simulation.serial_fraction", 1.5, "1.5 is not allowed; it must be a number from 0 to 1"),
        ("simulation.memory_bytes", math.nan, "nan is not allowed"),
        ("simulation.memory_bytes", 51.0, "51 bytes do not fit; the platform has 50"),
    ],
)
def test_values_out_of_range_are_named(field: str, value: float, part: str) -> None:
    application = Application(
        platform=Platform(nodes=50, cores=8, memory_bytes=1.0, bandwidth_bytes_s=1.0),
        simulation=Simulation(one_core_s=1.0, memory_bytes=1.0),
    )
    section, name = field.split(".")
    wrong = dataclasses.replace(getattr(application, section), **{name: value})
    with pytest.raises(InvalidApplication, match=part) as caught:
        plan(dataclasses.replace(application, **{section: wrong}))
    assert caught.value.field == field


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_finds_the_one_plan_that_fits_though_its_first_ones_do_not(order: str) -> None:
    # there is no node for staging
    platform = Platform(nodes=1, cores=4, memory_bytes=4.0, bandwidth_bytes_s=1.0)
    two = tuple(Analysis(name=name, one_core_s=1.0, memory_bytes=1.0) for name in "ab")
    application = Application(
        platform=platform, simulation=Simulation(one_core_s=9.0, memory_bytes=1.0), analyses=two
    )
    assert plan(application, order).in_situ == ("a", "b")


@pytest.mark.parametrize("seed", [816, 1230, 2607])
def test_packs_change_places_where_no_single_move_helps(seed: int) -> None:
    application = any_application(random.Random(seed), most=7)
    # by moves alone they end 18 to 66 % above
    assert plan(application, "packs").step_s == pytest.approx(plan(application).step_s)
