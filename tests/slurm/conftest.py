"""A Slurm cluster for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import dask
import dask_jobqueue.config
import pytest
from fake_slurm import pretending
from private_slurm import PrivateSlurm, missing


@pytest.fixture(autouse=True)
def jobqueue_defaults() -> None:
    """The defaults of dask-jobqueue, which `distributed.utils_test` drops with what it does not know."""
    if not dask.config.get("jobqueue", None):
        dask_jobqueue.config.reconfigure()


@pytest.fixture(scope="session")
def slurm() -> Iterator[PrivateSlurm]:
    """A running cluster; its `environment` leads there.

    Its partitions are compute (n1 to n6) and staging (n7, n8). Skips where Slurm is not installed. Whoever
    submits jobs takes `cluster`.
    """
    if why := missing():
        pytest.skip(why)
    with PrivateSlurm() as cluster:
        yield cluster


@pytest.fixture
def cluster(slurm: PrivateSlurm) -> Iterator[PrivateSlurm]:
    """The same for one test, with an empty queue before and after it."""
    yield slurm
    slurm.cancel_all()


@pytest.fixture
def fakes(tmp_path: Path) -> Iterator[Callable[[str, str], None]]:
    """A function that puts a script in the place of one of Slurm's commands."""
    with pretending(tmp_path) as fake:
        yield fake
