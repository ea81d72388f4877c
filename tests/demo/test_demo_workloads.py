"""The demo's results are right, and the same wherever their tasks run."""

from __future__ import annotations

import time

import numpy as np
import pytest
import xarray as xr
from distributed import LocalCluster

from dask_hpc.demo import bootstrap, monte_carlo, primes, stepping
from dask_hpc.demo.paced import paced
from dask_hpc.demo.walltime import NOTICE_S
from dask_hpc.demo.workloads import WORKLOADS, digest

TASKS = 7
FIRST = 3


@pytest.fixture(scope="module")
def reference():
    """Digest of every workload's result, computed in this process, one task after the other."""
    found = {}
    for name, workload in WORKLOADS.items():
        block, summarize = workload.functions()
        found[name] = digest(summarize([block(number) for number in range(FIRST, FIRST + TASKS)]))
    return found


@pytest.mark.parametrize("workers", [1, 3])
def test_results_do_not_depend_on_the_number_of_workers(reference, workers):
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=None, memory_limit="1 GiB"
        ) as cluster,
        cluster.get_client() as client,
    ):
        futures = {name: workload.prepare(FIRST, TASKS, 0.01)(client) for name, workload in WORKLOADS.items()}
        assert {name: digest(future.result()) for name, future in futures.items()} == reference
        # equal results are not the same tasks: who submits the same again has it computed again
        again = WORKLOADS["primes"].prepare(FIRST, TASKS, 0.01)(client)
        assert again.key != futures["primes"].key


def test_a_paced_task_takes_the_time_it_has_or_as_long_as_it_needs():
    began_s = time.perf_counter()
    assert paced(0.1, sum, [1, 2]) == 3
    assert time.perf_counter() - began_s >= 0.1
    assert paced(0.0, divmod, 7, 2) == (3, 1)


def test_trend_of_the_real_series_equals_a_polynomial_fit():
    series = bootstrap.load_series()
    assert series.shape == (61, 12)
    slopes = np.polynomial.polynomial.polyfit(np.arange(61), series, 1)[1]
    np.testing.assert_allclose(bootstrap.trend(series), slopes, rtol=1e-9)
    np.testing.assert_allclose(bootstrap.trend(bootstrap.detrend(series)), 0, atol=1e-14)


def test_bootstrap_equals_a_loop_in_plain_numpy():
    series = bootstrap.load_series()
    residuals = bootstrap.detrend(series)
    block, summarize = bootstrap.functions()
    blocks = [block(number) for number in range(120)]
    alone = bootstrap.replicate_block(residuals, bootstrap.SEED, bootstrap.OUTER_REPLICATES, 5)
    assert np.array_equal(blocks[5], alone)
    result = summarize(blocks)
    assert result["replicates"] == 120 * bootstrap.OUTER_REPLICATES
    assert result["lower"] < result["trend"] < result["upper"]
    everything = np.concatenate(blocks)
    assert result["standard_error"] == pytest.approx(10 * np.std(everything[:, 0], ddof=1), rel=1e-12)
    # Residuals have no trend: neither have their replicates, within the error of their mean.
    assert abs(everything[:, 0].mean()) < 5 * everything[:, 0].std() / len(everything) ** 0.5


def test_resampled_years_are_blocks_of_neighbours():
    index = bootstrap.resampled_years(np.random.default_rng(0), 50, 61)
    assert index.shape == (50, 61)
    assert index.min() >= 0
    assert index.max() <= 60
    steps = np.diff(index, axis=1)
    inside = (np.arange(1, 61) % bootstrap.BLOCK_YEARS) != 0
    assert (steps[:, inside] == 1).all()


def test_monte_carlo_sums_equal_one_pass_over_all_pairs():
    pairs = 3 * monte_carlo.BATCH + 7
    rng = np.random.default_rng(np.random.SeedSequence(7, spawn_key=(2,)))
    normals = np.concatenate([rng.standard_normal((monte_carlo.BATCH, monte_carlo.STEPS)) for _ in range(3)])
    normals = np.concatenate([normals, rng.standard_normal((7, monte_carlo.STEPS))])
    plus, minus = monte_carlo.payoffs(normals), monte_carlo.payoffs(-normals)
    a, g = (plus[0] + minus[0]) / 2, (plus[1] + minus[1]) / 2
    expected = [pairs, a.sum(), g.sum(), (a**2).sum(), (g**2).sum(), (a * g).sum()]
    np.testing.assert_allclose(monte_carlo.simulate_block(7, pairs, 2), expected, rtol=1e-11)


def test_monte_carlo_agrees_with_the_closed_form_and_the_control_pays():
    total = monte_carlo.add([monte_carlo.simulate_block(1, 30_000, i) for i in range(2)])
    n, _, g, _, gg, _ = total
    error = ((gg / n - (g / n) ** 2) / n) ** 0.5
    assert abs(g / n - monte_carlo.geometric_price()) < 4 * error
    result = monte_carlo.summarize(total)
    assert abs(result["price"] - result["plain_price"]) < 4 * result["plain_standard_error"]
    assert result["standard_error"] < result["plain_standard_error"] / 5
    assert result["paths"] == 2 * n


def test_primes_equal_a_plain_sieve():
    assert primes.small_primes(30) == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
    sieve = np.ones(2 * primes.SEGMENT, dtype=bool)
    sieve[:2] = False
    for number in range(2, int(len(sieve) ** 0.5) + 1):
        if sieve[number]:
            sieve[number * number :: number] = False
    assert primes.count_segment(0) == np.count_nonzero(sieve[: primes.SEGMENT])
    assert primes.count_segment(1) == np.count_nonzero(sieve[primes.SEGMENT :])


def test_digest_sees_every_difference():
    base = {"a": np.array([0.0, 1.0]), "b": [1, 2.5, "x"]}
    same = {"b": [1, 2.5, "x"], "a": np.array([0.0, 1.0])}
    others = [
        {"a": np.array([-0.0, 1.0]), "b": [1, 2.5, "x"]},
        {"a": np.array([0.0, np.nextafter(1.0, 2.0)]), "b": [1, 2.5, "x"]},
        {"a": np.array([[0.0], [1.0]]), "b": [1, 2.5, "x"]},
        {"a": np.array([0.0, 1.0], dtype=np.float32), "b": [1, 2.5, "x"]},
        {"a": np.array([0.0, 1.0]), "b": [1.0, 2.5, "x"]},
        {"a": np.array([0.0, 1.0]), "b": [1, [2.5, "x"]]},
        {"a": np.array([0.0, 1.0]), "c": [1, 2.5, "x"]},
        {"a": np.array([0.0, 1.0])},
    ]
    assert digest(base) == digest(same)
    assert len({digest(value) for value in [base, *others]}) == len(others) + 1
    first = xr.Dataset({"v": ("x", [1.0, 2.0])}, coords={"x": [0, 1]})
    moved = xr.Dataset({"v": ("x", [1.0, 2.0])}, coords={"x": [0, 2]})
    renamed = first.rename(x="y")
    assert len({digest(value) for value in (first, moved, renamed)}) == 3
    with pytest.raises(TypeError, match="cannot compare bit for bit what is of type object"):
        digest(object())


def test_the_notice_of_a_walltime_is_longer_where_steps_take_longer():
    assert stepping.notice_of([]) == stepping.notice_of([0.0, 0.1, 0.2, 0.3]) == NOTICE_S
    assert stepping.notice_of([0.0, 0.1, 1.6, 1.7]) == pytest.approx(stepping.NOTICE_STEPS * 1.5)
