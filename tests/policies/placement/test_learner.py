"""What analyses take is learned: hints give way, noise is averaged, outliers hardly count, changes do."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.codec import decode, encode
from dask_hpc_policies.placement.learner import CHANGED, NEAR, Estimate, Learner, Sample, scaled
from dask_hpc_policies.placement.view import AnalysisView

VALUES = st.floats(1e-3, 1e6)


def after(estimate: Estimate, *values: float) -> Estimate:
    for value in values:
        estimate = estimate.after(value)
    return estimate


def mean_of(estimate: Estimate) -> float:
    assert estimate.mean is not None
    return estimate.mean


@given(hint=st.one_of(st.none(), VALUES), value=VALUES, samples=st.integers(8, 40))
def test_a_hint_of_any_kind_gives_way_to_what_is_measured(
    hint: float | None, value: float, samples: int
) -> None:
    estimate = after(Estimate(mean=hint), *[value] * samples)
    assert mean_of(estimate) == pytest.approx(value, rel=0.05)
    assert estimate.samples == samples


@given(value=VALUES, outlier=st.floats(1e-9, 1e12), before=st.integers(4, 30))
def test_one_outlier_moves_it_by_less_than_a_twentieth(value: float, outlier: float, before: int) -> None:
    steady = after(Estimate(), *[value] * before)
    assert mean_of(steady.after(outlier)) == pytest.approx(value, rel=NEAR / min(before, 5))
    # and what comes then as before brings it back
    assert mean_of(after(steady, outlier, *[value] * 12)) == pytest.approx(value, rel=0.05)


@given(value=VALUES, factor=st.sampled_from([0.1, 0.25, 0.5, 2.0, 4.0, 30.0]), before=st.integers(1, 40))
def test_a_change_is_believed_with_the_second_sample(value: float, factor: float, before: int) -> None:
    steady = after(Estimate(mean=value), *[value] * before)
    assert CHANGED == 2
    assert mean_of(steady.after(value * factor)) == pytest.approx(value, rel=NEAR)
    assert mean_of(after(steady, value * factor, value * factor)) == pytest.approx(value * factor)


def test_noise_is_averaged_and_its_spread_known() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        estimate = after(Estimate(), *[3.0 * chance.uniform(0.9, 1.1) for _ in range(60)])
        assert mean_of(estimate) == pytest.approx(3.0, rel=0.05)
        assert estimate.spread == pytest.approx(0.0577, abs=0.03)


@given(values=st.lists(VALUES, min_size=1, max_size=30), unit=st.sampled_from([1e-3, 8.0]))
def test_units_do_not_matter(values: list[float], unit: float) -> None:
    plain, other = after(Estimate(), *values), after(Estimate(), *[unit * value for value in values])
    assert mean_of(other) == pytest.approx(unit * mean_of(plain))
    assert min(values) * (1 - 1e-9) <= mean_of(plain) <= max(values) * (1 + 1e-9)


@given(work=VALUES, serial=st.floats(0.0, 1.0), cores=st.integers(2, 64), said=st.booleans())
def test_scaling_is_learned_from_work_and_time_or_work_from_scaling(
    work: float, serial: float, cores: int, said: bool
) -> None:
    wall_s = scaled(work, serial, cores)
    if said:
        learner, sample = Learner.said(serial_fraction=serial), Sample(wall_s=wall_s, cores=cores)
    else:
        learner, sample = Learner(), Sample(core_s=work, wall_s=wall_s, cores=cores)
    for _ in range(12):
        learner = learner.after(sample)
    view = learner.of_analysis(AnalysisView(name="a"))
    assert view.one_core_s == pytest.approx(work)
    assert view.serial_fraction == pytest.approx(serial, abs=0.01)
    assert scaled(view.one_core_s or 0.0, view.serial_fraction, cores) == pytest.approx(wall_s, rel=1e-6)


def test_a_peak_rises_at_once_and_falls_slowly_and_what_is_read_is_the_latest() -> None:
    learner = Learner.said(memory_bytes=100.0, input_bytes=7.0)
    learner = learner.after(Sample(memory_bytes=900.0, input_bytes=50.0))
    assert (learner.memory_bytes, learner.input_bytes) == (900.0, 50.0)
    learner = learner.after(Sample(memory_bytes=100.0))
    assert learner.memory_bytes == 800.0
    assert learner.input_bytes == 50.0
    assert learner.one_core_s.samples == 0
    assert decode(Learner, encode(learner)) == learner


@pytest.mark.parametrize("serial", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("stale", [0, 2])
def test_how_work_scales_is_learned_from_times_at_two_numbers_of_cores(serial: float, stale: int) -> None:
    def took(cores: int) -> float:
        return scaled(12.0, serial, cores)

    known = Learner()
    for _ in range(5):
        known = known.after(Sample(wall_s=took(4), cores=4))
    # nothing is known of that yet: it is taken for all parallel
    assert known.one_core_s.mean == pytest.approx(4 * took(4))
    for at in range(12):
        known = known.after(Sample(wall_s=took(4) if at < stale else took(12), cores=12))
    assert known.serial_fraction.mean == pytest.approx(serial, abs=0.02)
    assert known.one_core_s.mean == pytest.approx(12.0, rel=0.05)
    # what gets dearer later changes the work alone
    for _ in range(6):
        known = known.after(Sample(wall_s=2 * took(12), cores=12))
    assert known.serial_fraction.mean == pytest.approx(serial, abs=0.02)
    assert known.one_core_s.mean == pytest.approx(24.0, rel=0.05)
