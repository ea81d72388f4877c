"""Blocks that overlap, or leave a gap, are refused to who sends them, and nothing is changed."""

from __future__ import annotations

import random

import numpy as np
import pytest
from coupled import HALVES, opened, started
from helpers import live
from sources import asked, nothing_left, producers, told

from dask_hpc.errors import CouplingError
from dask_hpc_policies.coupling import contract
from dask_hpc_policies.coupling.laid import Laid

T = contract.Field("T", ("y", "x"), (8, 6), "float64")


def test_a_block_is_refused_that_overlaps_one_of_its_step_or_leaves_a_gap_as_the_last() -> None:
    chance = random.Random(9)
    found = set()
    for _ in range(400):
        laid, counts, there = Laid([T], 3), np.zeros((3, *T.shape), int), []
        for rank in chance.sample(range(3), 3):
            # halves, thirds and corners; of another step the first one is nobody's concern
            at, upto = (chance.choice((0, 3, 4)), chance.choice((0, 0, 3))), (chance.choice((3, 4, 8)), 6)
            if at[0] >= upto[0]:
                continue
            block = [("T", at, (upto[0] - at[0], upto[1] - at[1]))]
            alone = np.zeros(T.shape, int)
            alone[at[0] : upto[0], at[1] :] = 1
            both = counts.sum(0) + alone
            said = laid.lay(rank, 5, block)
            assert ("two blocks" in said) == (both > 1).any(), (block, said)
            assert ("no block" in said) == (len(there) == 2 and (both == 0).any() and both.max() == 1)
            if not said:
                counts[rank] = alone
                there.append(rank)
            assert laid.lay(rank, 5, block) == said
            found.add(said[8:12])
    assert found == {"", "two ", "no b"}, found


def test_where_blocks_lay_at_another_step_counts_only_for_those_that_have_sent_this_one() -> None:
    laid = Laid([T], 2)
    assert laid.lay(0, 1, [("T", (0, 0), (4, 6))]) == laid.lay(1, 1, [("T", (4, 0), (4, 6))]) == ""
    wider = [("T", (3, 0), (5, 6))]
    assert "rank 0" in laid.lay(1, 2, wider, same=[0])
    assert laid.lay(1, 3, wider) == ""


@live(workers=2, timeout=60)
async def test_blocks_that_do_not_cover_the_field_are_refused_and_the_right_ones_taken(c, s, a, b):
    flow, values = await started(c)
    async with producers(s, *HALVES) as made:
        await opened(made)
        one, other = made
        assert await asked(one, "send", step=0) is True
        for rows, said in (
            ([3, 8], "'T' has two blocks at y=3, x=0: rank 0 has sent that of step 0"),
            ([5, 8], "'T' has no block at y=4, x=0, and all other ranks have sent theirs of step 0"),
        ):
            answer = await asked(other, "send", step=0, rows=rows)
            assert (answer["error"], answer["text"]) == ("ValueError", said)
        assert await asked(other, "send", step=0) is True
        assert await anext(values) == (0, 0.0)
        # what lies elsewhere later is not known to other workers before the step is whole
        assert await asked(one, "send", step=1) is True
        other.tell("send", step=1, rows=[3, 8])
        with pytest.raises(CouplingError, match="two blocks at y=3"):
            await anext(values)
        await told(other)
        assert (await asked(other, "send", step=2))["error"] == "CouplingError"
    await flow.close()
    await nothing_left(s, a, b)


@live(workers=1, timeout=60)
async def test_blocks_that_lie_elsewhere_later_are_refused_on_one_worker_too(c, s, a):
    flow, values = await started(c)
    async with producers(s, *HALVES) as made:
        await opened(made)
        one, other = made
        # on one worker it is known whose blocks lie as before
        steps = ((0, HALVES), (1, HALVES), (2, ((0, 5), (5, 8))), (3, HALVES))
        for step, (mine, its) in steps:
            assert await asked(one, "send", step=step, rows=mine) is True
            wrong = [its[0] - 1, 8]
            answer = await asked(other, "send", step=step, rows=wrong)
            assert f"two blocks at y={wrong[0]}" in answer["text"], answer
            assert await asked(other, "send", step=step, rows=its) is True
            assert await anext(values) == (step, float(step))
        # who stays where it was is asked about as well once another has moved
        assert await asked(one, "send", step=4, rows=[0, 5]) is True
        assert "two blocks at y=4" in (await asked(other, "send", step=4))["text"]
    await flow.close()
    await nothing_left(s, a)
