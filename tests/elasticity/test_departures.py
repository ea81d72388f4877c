"""Workers that have less time than their shuffle takes: at most its tasks run again, and all is right."""

from __future__ import annotations

import asyncio

import numpy as np
from elastic_clusters import shrinkable
from elastic_work import result_of, shuffled, until, within

from dask_hpc.scheduler.rpc.service import of


def test_a_shuffle_that_takes_longer_than_there_is_time_runs_again_and_nothing_else() -> None:
    async def run() -> None:
        async with shrinkable(3) as made:
            here = made.address(1)
            done = await made.results(20, workers=[here], allow_other_workers=True)
            columns, expected = shuffled(320, 32, 0.1, made.tally.effects)
            array = made.client.compute(columns)
            shuffles = made.scheduler.plugins["shuffle"].active_shuffles
            await until(lambda: shuffles and made.tally.side_effects().total() >= 6, "inputs have been sent")
            left = await within(of(made.scheduler).departures.depart(here, 0.2, "a test"))
            assert here not in made.scheduler.workers
            assert (left["lost"], left["actors"]) == ([], [])
            assert np.array_equal(await within(array), expected)
            again = made.tally.twice()
            print(f"run again: {len(again)} of {len(made.tally.starts())}")
            assert again
            of_the_shuffle = ("source-320", "rechunk", "shuffle-barrier")
            assert [key for key in again if not any(name in key for name in of_the_shuffle)] == []
            assert await within(made.client.gather(done)) == [result_of(n) for n in range(20)]

    asyncio.run(run())
