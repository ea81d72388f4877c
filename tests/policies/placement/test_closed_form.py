"""Real numbers of nodes and helper cores: published figures, equal phases, and nothing better anywhere."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dask_hpc_policies.placement.application import MODES, Analysis, Application, Mode, Platform, Simulation
from dask_hpc_policies.placement.closed_form import Shares, shares
from dask_hpc_policies.placement.times import Load, load_of, phases_of


def example(
    serial_fraction: float = 0.0, *, inside_s: float = 60.0, outside_s: float = 90.0, sent: float = 0.3
) -> Application:
    """50 nodes of 8 cores, a simulation of 400 s, and an analysis on each side unless it takes nothing."""
    return Application(
        platform=Platform(nodes=50, cores=8, memory_bytes=1.0, bandwidth_bytes_s=0.00266),
        simulation=Simulation(one_core_s=400.0, memory_bytes=1.0, serial_fraction=serial_fraction),
        analyses=tuple(
            Analysis(name=where, one_core_s=seconds, memory_bytes=size, where=where)  # type: ignore[arg-type]
            for where, seconds, size in (("in-situ", inside_s, 0.1), ("in-transit", outside_s, sent))
            if seconds
        ),
    )


def solved(application: Application, mode: Mode = "asynchronous") -> tuple[Load, Shares]:
    load = load_of(application, application.split())
    return load, shares(application, load, mode)


def test_perfectly_parallel() -> None:
    application = example()
    load, found = solved(application)
    assert found.helper_cores == pytest.approx(1.04348, rel=1e-5)
    assert found.nodes == pytest.approx(15.8374, rel=1e-5)
    phases = phases_of(application, load, found.nodes, found.helper_cores, "asynchronous")
    for seconds in (phases.simulation_s, phases.in_situ_s, phases.in_transit_s):
        assert seconds == pytest.approx(3.63064, rel=1e-5)


def test_amdahl() -> None:
    application = example(0.01)
    load, found = solved(application)
    assert found.helper_cores == pytest.approx(0.360504, rel=1e-5)
    assert found.nodes == pytest.approx(28.6495, rel=1e-5)
    phases = phases_of(application, load, found.nodes, found.helper_cores, "asynchronous")
    for seconds in (phases.simulation_s, phases.in_situ_s, phases.in_transit_s):
        assert seconds == pytest.approx(5.80931, rel=1e-5)
    # with the only root of the published cubic that gives nodes at all (equation 4.2) a step takes longer
    nodes = {root: 60 / (root * 4) - 0.99 / ((8 - root) * 0.01) for root in (7.95, 0.55)}
    assert nodes[7.95] < 0 < nodes[0.55]
    there = phases_of(application, load, nodes[0.55], 0.55, "asynchronous")
    assert there.step_s("asynchronous") > 1.3 * 5.80931


def test_what_is_sent_over_a_link_that_is_hardly_there_has_all_nodes() -> None:
    _, found = solved(example(0.01, sent=1e16))
    assert (found.nodes, found.helper_cores) == (pytest.approx(0), pytest.approx(60 * 8 / (60 + 396)))


def test_nothing_in_situ_and_nothing_in_transit() -> None:
    application = example(inside_s=0.0)
    load, found = solved(application)
    assert found.helper_cores == 0
    assert found.nodes == pytest.approx(50 * 50 / (50 + load.in_transit_s))
    application = example(outside_s=0.0)
    load, found = solved(application)
    assert found == Shares(50.0, pytest.approx(60 * 8 / 460))
    nothing = Application(platform=application.platform, simulation=application.simulation)
    for mode in MODES:
        assert solved(nothing, mode)[1] == Shares(50.0, 0.0)


def test_synchronous() -> None:
    application = example()
    load, found = solved(application, "synchronous")
    together_s = (400 + 60) / 8
    assert found == Shares(pytest.approx(50 * together_s / (together_s + load.in_transit_s)), 0.0)
    phases = phases_of(application, load, found.nodes, 0, "synchronous")
    assert phases.simulation_s + phases.in_situ_s == pytest.approx(phases.in_transit_s)


SECONDS = st.floats(0.1, 1e4)


@given(
    serial=st.sampled_from([0.0, 1e-6, 0.01, 0.5, 1.0]),
    inside_s=st.one_of(st.just(0.0), SECONDS),
    outside_s=st.one_of(st.just(0.0), SECONDS),
    sent=st.floats(0.0, 10.0),
    mode=st.sampled_from(MODES),
    there=st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)),
)
def test_no_other_shares_have_a_shorter_step(
    serial: float,
    inside_s: float,
    outside_s: float,
    sent: float,
    mode: Mode,
    there: tuple[float, float],
) -> None:
    application = example(serial, inside_s=inside_s, outside_s=outside_s, sent=sent)
    load, found = solved(application, mode)
    assert 0 <= found.nodes <= 50
    assert 0 <= found.helper_cores <= 8
    step_s = phases_of(application, load, found.nodes, found.helper_cores, mode).step_s(mode)
    assume(math.isfinite(step_s))
    other = phases_of(application, load, 50 * there[0], 8 * there[1], mode)
    assert step_s <= other.step_s(mode) * (1 + 1e-9)
    if inside_s and outside_s and mode == "asynchronous" and serial < 1:
        phases = phases_of(application, load, found.nodes, found.helper_cores, mode)
        assert phases.in_situ_s == pytest.approx(phases.simulation_s)
        assert phases.in_transit_s == pytest.approx(phases.simulation_s)
