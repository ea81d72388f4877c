"""Which results the scheduler is told the bytes of, and what they are made of again."""

from __future__ import annotations

import asyncio
import datetime
import enum
import threading
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.worker.small import SmallCopy, contents, is_plain, tell, to_content

LIMIT = 1024
Pair = namedtuple("Pair", "first second")


@dataclass
class Measures:
    loss: float
    parts: list


class Weights:
    """A model: Dask says that it has 48 bytes."""

    def __init__(self):
        self.weights = np.zeros(100_000)


class OwnWay:
    """It would make a copy of all that it holds to be pickled."""

    asked = False

    def __getstate__(self):
        OwnWay.asked = True
        return {}


class Table(dict):
    """A mapping of a user's."""


class Rows(list):
    """A list of a user's."""


class Colour(enum.Enum):
    RED = 1


PLAIN = [
    None,
    1.5,
    "text",
    np.float32(2),
    np.zeros(120),
    np.zeros(10**6)[:4],
    np.datetime64("2026-01-01"),
    datetime.datetime(2026, 1, 1),
    Colour.RED,
    Pair(1, (2, {3})),
    {"loss": [0.1, {"deep": b"bytes"}]},
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_are_what_they_were(value):
    content = to_content(value, LIMIT)
    assert len(content) <= 4 * LIMIT
    back = SmallCopy(1, content).read()
    assert type(back) is type(value)
    np.testing.assert_equal(back, value)


def test_an_object_of_a_class_is_what_it_was():
    assert SmallCopy(1, to_content(Measures(0.5, [1, 2]), LIMIT)).read() == Measures(0.5, [1, 2])


def test_a_list_that_holds_itself_is_given_up():
    value = [1]
    value.append(value)
    assert to_content(value, LIMIT) is None


@pytest.mark.parametrize(
    "value",
    [
        Weights(), [Weights()], OwnWay(), {"a": OwnWay()}, {OwnWay(): 1}, Pair(1, OwnWay()),
        Table(a=OwnWay()), Rows([OwnWay()]), Measures(0.5, [OwnWay()]),
        threading.Lock(), (n for n in range(3)), lambda: 1,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_may_be_large_or_slow_to_pickle_is_passed_over_and_not_even_asked(value):
    assert to_content(value, LIMIT) is None
    assert not OwnWay.asked


@examples(40)
@given(st.recursive(st.none() | st.floats() | st.text() | st.binary(), st.lists, max_leaves=30))
def test_what_is_plain_takes_no_more_bytes_than_was_said(value):
    if is_plain(value, LIMIT):
        assert len(to_content(value, LIMIT)) <= LIMIT + 100


@examples(20)
@given(st.lists(st.none() | st.integers() | st.just(Weights()), max_size=20), st.integers(0, 30))
def test_each_result_is_told_under_its_own_key(values, missing):
    there = {number: value for number, value in enumerate(values) if number != missing}
    answer = asyncio.run(tell(SimpleNamespace(data=there), range(len(values)), LIMIT))
    told = contents(answer, len(values))
    for number, content in enumerate(told):
        if number == missing or isinstance(values[number], Weights):
            assert content is None
        else:
            assert SmallCopy(1, content).read() == values[number]


@pytest.mark.parametrize("answer", [b"", b"\0\0\0", b"\x05\0\0\0abc", b"\x01\0\0\0abc"])
def test_an_answer_of_another_form_is_refused(answer):
    with pytest.raises(ValueError, match="bytes"):
        contents(answer, 1)


@pytest.mark.parametrize("how", ["__reduce__", "__reduce_ex__", "__getstate__"])
def test_what_says_itself_how_it_is_pickled_is_not_pickled_unasked(how):
    assert is_plain(type("Usual", (), {})(), LIMIT)
    assert not is_plain(type("Own", (), {how: lambda *_: (int, ())})(), LIMIT)
