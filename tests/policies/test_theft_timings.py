"""When a victim is interrupted, by its timing and what is known of its commits."""

from __future__ import annotations

import itertools
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.decision import StealTiming
from dask_hpc_policies.rules.thefts import Saves, when

TIMINGS = get_args(StealTiming)


@given(st.sampled_from(TIMINGS), st.none() | st.builds(Saves, st.booleans(), st.booleans()))
def test_one_waits_only_for_a_commit_that_comes_and_every_answer_says_why(
    timing: StealTiming, saves: Saves | None
) -> None:
    what, text = when(timing, "v", saves)
    assert (what == "now") == (timing == "now" or saves is None)
    if what == "wait":
        assert saves is not None
        assert saves.under_way or (saves.comes and timing == "next-checkpoint")
    assert text


def test_the_whole_table() -> None:
    found = {
        (timing, under_way, comes): when(timing, "v", Saves(under_way, comes))[0]
        for timing, under_way, comes in itertools.product(TIMINGS[1:], (False, True), (False, True))
    }
    assert found == {
        ("next-checkpoint", False, False): "commit", ("next-checkpoint", False, True): "wait",
        ("next-checkpoint", True, False): "wait", ("next-checkpoint", True, True): "wait",
        ("proactive-checkpoint", False, False): "commit", ("proactive-checkpoint", False, True): "commit",
        ("proactive-checkpoint", True, False): "wait", ("proactive-checkpoint", True, True): "wait",
    }  # fmt: skip
