"""What `scale` and `adapt` take as stock takes it, and what they refuse, with what to write instead."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

import dask_hpc
from dask_hpc.deploy.arguments import (
    as_whole,
    check_adapt,
    check_counts,
    check_flags,
    check_scale,
    in_workers,
    workers_of,
)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"minimum": 0, "maximum": inf},
        {"minimum": 2.0, "maximum": 2},
        {"minimum": np.int64(1), "maximum": None},
        {"interval": "500 ms", "target_duration": 5, "wait_count": 1},
        {"minimum_cores": 4, "maximum_memory": "8 GB", "worker_key": None, "memory_ratio": 2},
    ],
)
def test_what_adapt_takes(options: dict[str, Any]) -> None:
    check_adapt(options)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"maximum_jobs": 3}, TypeError, "maximum_jobs; allowed: "),
        ({"scale_factor": 2}, TypeError, "in place of scale_factor write target_duration"),
        ({"minimum": 3, "maximum": 2}, ValueError, "minimum is 3, maximum 2"),
        ({"minimum": inf, "maximum": inf}, ValueError, "minimum is inf; allowed: a whole number"),
        ({"minimum": -1}, ValueError, "minimum is -1"),
        ({"maximum": 2.5}, ValueError, "maximum is 2.5"),
        ({"maximum": True}, ValueError, "maximum is True"),
        ({"maximum": "3"}, ValueError, "maximum is '3'"),
        ({"wait_count": 0}, ValueError, "wait_count is 0"),
        ({"interval": 0}, ValueError, "interval is 0"),
        ({"interval": "0 s"}, ValueError, "interval is '0 s'"),
        ({"target_duration": "soon"}, ValueError, "target_duration is 'soon'"),
    ],
)
def test_what_adapt_refuses(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error) as found:
        check_adapt(options)
    assert said in str(found.value)


def test_bounds_in_cores_and_memory_are_numbers_of_workers() -> None:
    def read(**options: Any) -> dict[str, Any]:
        return in_workers(options, cores=lambda: 2, memory=lambda: 1_000_000_000)

    assert read(minimum_cores=3, maximum_memory="8.5 GB") == {"minimum": 2, "maximum": 8}
    assert read(minimum=3, minimum_cores=4, maximum=2, maximum_cores=6) == {"minimum": 3, "maximum": 2}
    assert read(minimum=None, minimum_memory="1 MB", maximum_cores=0) == {"minimum": 1, "maximum": 0}
    for wrong, said in (
        ({"maximum_cores": 1}, "maximum_cores is 1, less than a worker has"),
        ({"minimum_cores": "x"}, "minimum_cores is 'x'; allowed"),
        ({"maximum_memory": "much"}, "maximum_memory is 'much'; allowed: an amount"),
    ):
        with pytest.raises(ValueError, match=said):
            read(**wrong)


def test_workers_without_a_limit_are_scaled_by_number_or_cores() -> None:
    options: dict[str, Any] = {"n_workers": 0, "threads_per_worker": 2, "dashboard_address": ":0"}
    with dask_hpc.LocalCluster(**options, processes=False, memory_limit=0) as cluster:
        with pytest.raises(ValueError, match="memory_limit of the workers is 0: "):
            cluster.scale(memory="8 GB")
        with pytest.raises(ValueError, match=r"minimum is 4, maximum 2 .workers.; allowed"):
            cluster.adapt(minimum_cores=8, maximum_cores=4)
        assert cluster.adapt(minimum_cores=0, maximum_cores=4).maximum == 2


def test_sizes_are_whole_numbers_and_flags_are_flags() -> None:
    check_counts(n=3, cores=None)
    check_counts(n=2.0, cores=np.int32(4))
    for n in (-1, 1.5, True, "2"):
        with pytest.raises(ValueError, match="n is"):
            check_counts(n=n)
    with pytest.raises(ValueError, match="force is 1; allowed: True or False"):
        check_flags(dry_run=True, force=1)
    assert (as_whole(2.0), as_whole(2.5), as_whole(inf), as_whole("x")) == (2, 2.5, inf, "x")
    assert type(as_whole(2.0)) is int


def test_jobs_are_so_many_workers_and_are_those_of_batch_systems() -> None:
    assert [workers_of("maximum_jobs", jobs, 4) for jobs in (0, 3, 2.0, inf)] == [0, 12, 8, inf]
    with pytest.raises(ValueError, match=r"maximum_jobs is 1.5; .*; for workers, 4 to a job, write maximum$"):
        workers_of("maximum_jobs", 1.5, 4)
    check_scale({})
    with pytest.raises(TypeError, match="in place of jobs write n"):
        check_scale({"jobs": 3})
