"""A state is read again when those who read it are lost, and not for ever."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError

import pytest

from dask_hpc.errors import JobCancelled
from dask_hpc.program.outlines import VersionLost
from dask_hpc.program.saving import insisted


def tried(failures, on=True):
    """What comes of a reading that fails like that first, and how often it was tried."""
    tries = []

    async def read():
        tries.append(1)
        if len(tries) <= len(failures):
            raise failures[len(tries) - 1]
        return True

    async def lost():
        if not on:
            raise JobCancelled("the job is cancelled")

    try:
        return asyncio.run(insisted(read, lost)), len(tries)
    except Exception as error:
        return type(error), len(tries)


@pytest.mark.parametrize(
    ("failures", "on", "expected"),
    [
        ([], True, (True, 1)),
        ([CancelledError(), VersionLost("gone")], True, (True, 3)),
        ([CancelledError()] * 3, True, (CancelledError, 3)),
        ([VersionLost("gone")], False, (JobCancelled, 1)),
        ([ValueError("other")], True, (ValueError, 1)),
    ],
)
def test_a_state_is_read_up_to_three_times_while_its_job_is_on(failures, on, expected):
    assert tried(failures, on) == expected
