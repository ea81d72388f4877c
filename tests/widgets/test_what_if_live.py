"""What Simulate predicts of a live cluster is what then happens: jobs end in the predicted order."""

from __future__ import annotations

import pytest
import what_if


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 7])
def test_jobs_end_in_the_order_that_simulate_predicts(seed, client, rt):
    # sleeps so long that a busy machine, which adds to each, changes little
    asked = what_if.ask(client, rt, seed, slower=1.5)
    assert asked.answer_s <= what_if.ANSWER_BAR_S
    assert asked.running
    assert asked.waiting
    assert len(asked.finishes) == what_if.JOBS
    assert len(asked.pairs()) >= 7
    assert asked.wrong() == []
