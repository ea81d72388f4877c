"""Conditions of studies: what they say, and what is no condition."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.sim.study.conditions import ConditionError, Term, parse_condition, parse_number, parse_term


def holds(text: str, **values: Any) -> bool:
    """Whether a condition holds when the terms, by their text with ``_`` for other signs, are worth so."""

    def worth(term: Term) -> Any:
        plain = Term(term.metric, term.statistic, term.policy)
        return values["".join(c if c.isalnum() else "_" for c in str(plain)).strip("_")]

    return parse_condition(text).holds(worth)


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("makespan_s == 2000", 2000.0, True),
        ("makespan_s == 2000", 2000.01, False),
        ("makespan_s == 0.3", 0.1 + 0.2, True),
        ("makespan_s == 1500 +- 5 %", 1425.0, True),
        ("makespan_s == 1500 +- 5 %", 1424.0, False),
        ("makespan_s == 47.85 min +- 0.005 min", 2871.3, True),
        ("makespan_s == 47.85 min +- 0.005 min", 2871.4, False),
        ("makespan_s == -31.4+-10", -21.5, True),
        ("makespan_s == -31.4 +- 10", -21.3, False),
        ("makespan_s < 10", 10.0, False),
        ("makespan_s <= 10", 10.0, True),
        ("makespan_s > 10", 10.0, False),
        ("makespan_s >= 10", 10.0, True),
        ("5 < makespan_s < 10", 7.0, True),
        ("5 < makespan_s < 10", 4.0, False),
        ("makespan_s < 10", None, False),
    ],
)
def test_a_bar(text: str, value: float | None, expected: bool) -> None:
    assert holds(text, makespan_s=value) is expected


def test_orders_name_policies_and_factors() -> None:
    text = "makespan_s of pwma-fpsma < makespan_s of prma-fpsma < makespan_s"
    values = {"makespan_s_of_pwma_fpsma": 1.0, "makespan_s_of_prma_fpsma": 2.0, "makespan_s": 3.0}
    assert holds(text, **values)
    assert not holds(text, **{**values, "makespan_s": 2.0})
    assert not holds(text, **{**values, "makespan_s_of_pwma_fpsma": 2.5})
    assert holds("makespan_s >= 0.999 * makespan_s of easy", makespan_s=99.95, makespan_s_of_easy=100.0)
    assert not holds("makespan_s >= 0.999 * makespan_s of easy", makespan_s=99.8, makespan_s_of_easy=100.0)


def test_lists_are_compared_job_by_job() -> None:
    assert holds("flows_s == [8, 5.5, 15]", flows_s=(8.0, 5.5, 15.0))
    assert not holds("flows_s == [8, 5, 15]", flows_s=(8.0, 5.0, 16.0))
    assert not holds("flows_s == [8, 5]", flows_s=(8.0, 5.0, 15.0))
    assert not holds("flows_s == [8, 5]", flows_s=(8.0, None))
    assert not holds("flows_s < [8, 5]", flows_s=(1.0, 1.0))
    assert not holds("flows_s == 8", flows_s=(8.0,))


def test_statistics() -> None:
    term = parse_term("change(mean_wait_s) of reordering-0.2")
    assert term == Term("mean_wait_s", "change", "reordering-0.2")
    assert str(term) == "change(mean_wait_s) of reordering-0.2"
    assert holds("better(mean_wait_s) > worse(mean_wait_s)", better_mean_wait_s=60.0, worse_mean_wait_s=30.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("makespan_s", "expected one of <= >= == < >, got 'the end'"),
        ("makespan_s = 5", "'= 5' is not understood"),
        ("makespam_s == 5", "did you mean 'makespan_s'"),
        ("total(makespan_s) == 5", "unknown statistic 'total'"),
        ("makespan_s == five", "unknown metric 'five'"),
        ("makespan_s == 5 6", "expected the end, got '6'"),
        ("makespan_s < 5 +- 1", "a tolerance belongs to =="),
        ("makespan_s == [1, 2", "expected ']'"),
        ("makespan_s of 5 == 5", "expected the name of a policy"),
        ("mean(makespan_s == 5", "expected ')'"),
        ("makespan_s == 1e999", "numbers must be finite"),
        ("mean(starts_s) == 5", "starts_s is a list, of which there is no mean"),
        ("better(commits) > 50", "of two values of commits neither is the better one"),
        ("makespan_s == __import__(os)", "unknown statistic '__import__'"),
        ("", "expected a metric or a number"),
    ],
)
def test_what_is_no_condition_says_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(ConditionError) as error:
        parse_condition(text)
    assert message in str(error.value).replace('"', "'")


@given(st.text(alphabet="makespn_ of()[]<>=+-*%.,0123456789e", max_size=40))
def test_any_text_is_a_condition_or_an_error(text: str) -> None:
    with suppress(ConditionError):
        found = parse_condition(text)
        assert len(found.values) == len(found.comparisons) + 1
        assert parse_condition(found.text) == found


@given(st.floats(-1e12, 1e12))
def test_numbers_are_read_as_written(number: float) -> None:
    assert parse_number(repr(number)) == number
    assert parse_number(f"{number!r} h") == number * 3600
