"""The contract of a flow, pure: fields, coverage, which steps go on."""

from __future__ import annotations

import itertools
import math
import random
import re
import time
from types import SimpleNamespace

import dask
import numpy as np
import pytest
import xarray as xr

from dask_hpc.client.readers import Reader
from dask_hpc.client.turns import Turn, unneeded
from dask_hpc.coupling.given import array_of, connect_s
from dask_hpc_policies.coupling import contract
from dask_hpc_policies.coupling.turns import Turns, Verdict, makes_room

T = contract.Field("T", ("y", "x"), (8, 6), "float64")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "one field at least"),
        ([1], "needed: a dict"),
        ({"T": (("y",), (4,))}, "dims, shape and dtype"),
        ({"T": (("step",), (4,), "float64")}, "the flow's own"),
        ({"T": (("y", "y"), (4, 4), "float64")}, "each once"),
        ({"T": (("y",), (4, 4), "float64")}, "1 numbers"),
        ({"T": (("y",), (0,), "float64")}, "length of 'T' is 0"),
        ({"T": (("y",), (4,), "object")}, "dtype of 'T' is 'object'"),
        ({"T": (("y",), (4,), None)}, "dtype of 'T' is None"),
        ({"T": (("y",), (4,), "f9")}, "dtype of 'T' is 'f9'"),
        ({"T": (("y",), (4,), "f8,i4")}, "dtype of 'T' is 'f8,i4'"),
        ({"T": ([f"d{number}" for number in range(9)], [1] * 9, "float64")}, "needed: from 1 to 8"),
        ({"T U": (("y",), (4,), "float64")}, "name of a field is 'T U'"),
        (
            {"T": (("y", "x"), (4, 3), "int8"), "U": (("x",), (4,), "int8")},
            "length of 'U' along 'x' is 4; allowed: 3",
        ),
        ({"T": (("y",), (4,), "int8"), "y": (("x",), (3,), "int8")}, "field is 'y', which is a dimension"),
        ({"step": (("y",), (4,), "int8")}, "field is 'step', which is a dimension"),
    ],
)
def test_fields_that_cannot_be_are_refused_with_what_is_allowed(fields, said) -> None:
    with pytest.raises(ValueError, match=said):
        contract.declared(fields)


def test_a_dtype_is_what_numpy_takes_for_one() -> None:
    for dtype in ("float64", "f8", ">f8", float, np.float64, np.dtype("f8")):
        assert contract.declared({"T": (T.dims, T.shape, dtype)}) == (T,)


def test_a_block_lies_within_its_field_and_is_of_its_type() -> None:
    assert T.placed({"y": 5}, (3, 6), "float64") == ((5, 0), (3, 6))
    assert T.placed({"y": 5.0, "x": np.int64(0)}, (3, 6), "float64") == ((5, 0), (3, 6))
    for at, shape, dtype, said in (
        ({"y": 6}, (3, 6), "float64", "within 0 to 8"),
        ({"x": -1}, (3, 6), "float64", "within 0 to 6"),
        ({"y": 4.5}, (3, 6), "float64", r"at has 4\.5 along 'y'; allowed: whole numbers"),
        ({"y": math.inf}, (3, 6), "float64", "at has inf along 'y'"),
        ({"x": None}, (3, 6), "float64", "at has None along 'x'"),
        ({"x": "4"}, (3, 6), "float64", "at has '4' along 'x'"),
        ({}, (0, 6), "float64", "at least one"),
        ({}, (8,), "float64", "1 dimensions"),
        ({}, (8, 6), "float32", "type float32; allowed: float64"),
    ):
        with pytest.raises(ValueError, match=said):
            T.placed(at, shape, dtype)


def test_a_block_that_a_plain_array_would_say_otherwise_is_refused() -> None:
    values = np.arange(48.0).reshape(8, 6)
    labelled = xr.DataArray(values, dims=T.dims)
    for block in (values, values.astype(">f8"), values.tolist(), labelled, np.ma.masked_array(values)):
        array = array_of(T, block)
        assert (type(array), array.dtype.isnative) == (np.ndarray, True)
        assert np.array_equal(array, values)
    for block, said in (
        (np.ma.masked_less(values, 3), "block of 'T' has masked values"),
        (labelled.T, "block of 'T' has dims ('x', 'y'); needed: ('y', 'x'), in this order"),
        (labelled.rename(x="z"), "block of 'T' has dims ('y', 'z')"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            array_of(T, block)


def test_who_waits_for_a_moment_does_not_wait_longer_for_the_scheduler() -> None:
    with dask.config.set({"distributed.comm.timeouts.connect": "30 s"}):
        assert [connect_s(timeout_s) for timeout_s in (0.0, 3.0, 600.0)] == [1.0, 3.0, 30.0]


def test_a_whole_number_of_numpy_or_written_as_a_float_is_one_and_becomes_a_plain_one() -> None:
    for value in (np.int64(3), np.uint8(3), np.float64(3), 3.0, 3):
        assert type(contract.checked_number("step", value, 0, 3)) is int
    for value in (np.bool_(True), True, 2.5, float("nan"), float("inf"), "3", None, 4, np.int64(-1)):
        with pytest.raises(ValueError, match="allowed: a whole number from 0 to 3"):
            contract.checked_number("step", value, 0, 3)
    for value in (np.float32(3), np.int64(3), 3):
        assert type(contract.checked_amount("memory_bytes", value, "bytes")) is float
    for value in (np.bool_(True), True, np.float64("nan"), float("inf"), 10**400, -1, "3", 3j):
        with pytest.raises(ValueError, match="allowed: a finite number of bytes, 0 or more"):
            contract.checked_amount("memory_bytes", value, "bytes")


def test_coverage_is_that_of_counting_every_index() -> None:
    chance = random.Random(7)
    whole = contract.Field("f", ("a", "b"), (4, 3), "int8")
    found = set()
    for _ in range(600):
        cuts = sorted(chance.sample(range(1, 4), chance.randint(0, 2)))
        blocks = []
        for begin, end in itertools.pairwise([0, *cuts, 4]):
            at = chance.randint(1, 2)
            blocks += [((begin, 0), (end - begin, at)), ((begin, at), (end - begin, 3 - at))]
        if chance.random() < 0.3:
            blocks.pop(chance.randrange(len(blocks)))
        if chance.random() < 0.3:
            blocks.append(chance.choice([((1, 1), (2, 1)), ((0, 0), (1, 1))]))
        counts = dict.fromkeys(itertools.product(range(4), range(3)), 0)
        for (a, b), (rows, columns) in blocks:
            for index in itertools.product(range(a, a + rows), range(b, b + columns)):
                counts[index] += 1
        said = contract.uncovered(whole, blocks)
        shared = [contract.shared(whole, *pair) for pair in itertools.combinations(blocks, 2)]
        assert any(shared) == any(count > 1 for count in counts.values())
        wrong = [(index, count) for index, count in counts.items() if count != 1]
        # of the first index that is wrong
        expected = [
            f"'f' has {'two blocks' if count else 'no block'} at a={a}, b={b}" for (a, b), count in wrong[:1]
        ]
        assert [said] == (expected or [""]), blocks
        found.add(said[:18])
        lacking = [f"a={a}, b={b}" for (a, b), count in counts.items() if not count]
        assert contract.lacking(whole, blocks) == next(iter(lacking), "")
    assert len(found) == 3


def test_blocks_that_no_grid_has_are_looked_at_in_no_time() -> None:
    chance, whole = random.Random(7), contract.Field("f", ("z", "y", "x"), (1024, 1024, 1024), "int8")
    blocks = [((0, 0, 0), whole.shape)]
    # halved in turn along each dimension, at a place of its own: the edges of all would make 2 million cells
    for half in range(400):
        at, shape = blocks.pop(0)
        dim = (half + 1).bit_length() % 3
        cut = chance.randint(shape[dim] * 3 // 8, shape[dim] * 5 // 8)
        after = tuple(begin + cut * (each == dim) for each, begin in enumerate(at))
        blocks += [
            (at, tuple(cut if each == dim else count for each, count in enumerate(shape))),
            (after, tuple(count - cut * (each == dim) for each, count in enumerate(shape))),
        ]
    began_s = time.thread_time()
    assert contract.uncovered(whole, blocks) == ""
    assert contract.uncovered(whole, blocks[1:]).startswith("'f' has no block at ")
    assert contract.lacking(whole, blocks) == ""
    assert time.thread_time() - began_s < 0.5
    print(len(blocks), "blocks")


def test_chunks_are_those_of_a_grid_and_of_nothing_else() -> None:
    grid = [((0, 0), (5, 6)), ((5, 0), (3, 6))]
    assert contract.chunks(T, grid) == ((5, 3), (6,))
    assert contract.chunks(T, [((0, 0), (5, 6)), ((5, 0), (3, 2)), ((5, 2), (3, 4))]) is None


def test_a_window_is_due_once_full_and_every_so_many_steps() -> None:
    assert [turn for turn in range(12) if contract.is_due(turn, 2, 3, 4)] == [4, 8]


def test_steps_wait_for_room_and_are_told_alike_everywhere() -> None:
    turns = Turns(1, "wait", 2)
    assert turns.ask(0, 10) == turns.ask(1, 10) == Verdict(0)
    assert turns.ask(0, 20) is None
    turns.done(0)
    assert turns.ask(1, 20) == turns.ask(0, 20) == Verdict(1)
    assert (turns.left(1, 1), turns.whole(0, 1), turns.left(0, 1)) == (2, False, 0)
    assert (turns.left(1, 1), turns.whole(1, 1), turns.left(1, 1)) == (1, True, 0)


def test_a_step_beyond_the_queue_is_left_out_or_the_oldest_one_is() -> None:
    newest, oldest = Turns(1, "drop-newest", 2), Turns(1, "drop-oldest", 2)
    for turns in (newest, oldest):
        assert turns.ask(0, 1) == turns.ask(1, 1) == Verdict(0)
    assert newest.ask(0, 2) == newest.ask(1, 2) == Verdict(None)
    newest.done(0)
    assert newest.ask(0, 3) == Verdict(1)
    oldest.computed(0)
    assert oldest.ask(0, 2) == Verdict(1, ousted=0)
    assert oldest.ask(1, 2) == Verdict(1)
    assert list(oldest.flight) == [1]


def test_what_is_analysed_makes_no_room_and_what_nobody_reads_does() -> None:
    # the oldest is the next one to be analysed, if it is not yet
    assert makes_room([3], (), ()) is None
    assert makes_room([3, 4, 5], (), ()) == 4
    assert makes_room([3, 4, 5], {4}, ()) == 5
    assert makes_room([3, 4, 5], {4, 5}, ()) is None
    # 3 waits for a reader
    assert makes_room([3, 4, 5], (), {3}) == 5
    assert makes_room([3, 4, 5], {5}, {3}) == 3
    assert makes_room([3, 4, 5], (), {3, 4, 5}) == 3


def test_a_step_is_left_out_while_all_are_analysed() -> None:
    turns = Turns(2, "drop-oldest", 2)
    assert [turns.ask(0, 1), turns.ask(0, 2)] == [Verdict(0), Verdict(1)]
    turns.ask(1, 1), turns.ask(1, 2)
    assert turns.ask(0, 3, {0, 1}) == turns.ask(1, 3) == Verdict(None)
    assert turns.ask(0, 4, {0}) == Verdict(2, ousted=1)
    assert turns.ask(1, 4) == Verdict(2)
    turns.computed(0)
    assert (turns.ask(0, 5, {2}), list(turns.flight)) == (Verdict(3, ousted=0), [2, 3])


def test_who_comes_back_later_takes_no_step_with_it_that_went_to_another_worker() -> None:
    turns = Turns(4, "wait", 1)
    assert turns.ask(0, 5) == Verdict(0)
    assert turns.begun(0) == {0: 5}
    turns.lose(0)
    assert turns.begun(0, 5) == {}
    assert turns.ask(0, 6) == Verdict(1)
    # another rank of the place had sent as much to the worker that is lost
    assert turns.begun(0, 5) == {}
    assert list(turns.flight) == [1]


def test_a_step_that_is_repeated_skipped_or_out_of_order_is_refused_and_nothing_changed() -> None:
    turns = Turns(4, "wait", 2)
    assert turns.ask(0, 5) == Verdict(0)
    for place, step, said in (
        (1, 6, "allowed: 5, which other"),
        (0, 4, "allowed: above 5"),
        (1, 4, "above 5"),
    ):
        with pytest.raises(ValueError, match=said):
            turns.ask(place, step)
    assert (turns.given, turns.ask(1, 5), turns.ask(1, 6)) == (1, Verdict(0), Verdict(1))


def test_what_a_lost_place_had_begun_is_lost_and_what_still_comes_of_it_left_out() -> None:
    turns = Turns(4, "wait", 2)
    for step in (5, 6):
        turns.ask(0, step), turns.ask(1, step)
    assert (turns.whole(0, 0), turns.whole(1, 0)) == (False, True)
    # sent again, it does not become whole again
    assert turns.whole(0, 0) is False
    assert (turns.lacking(0, 5), turns.begun(0)) == (6, {0: 5, 1: 6})
    turns.lose(1)
    assert turns.ask(0, 6) == turns.ask(1, 6) == Verdict(None)
    assert (turns.ask(0, 7), list(turns.flight)) == (Verdict(2), [0, 2])


def test_a_place_takes_steps_unasked_while_there_is_room_and_all_places_count_alike() -> None:
    turns = Turns(2, "wait", 2)
    assert (turns.room, Turns(2, "drop-oldest", 2).room, Turns(2, "drop-newest", 2).room) == (2, 0, 0)
    assert turns.took(0, 5, 0)
    assert turns.ask(1, 5) == Verdict(0)
    assert turns.took(1, 7, 1)
    assert turns.took(0, 7, 1)
    assert (turns.given, turns.flight, turns.room) == (2, {0: 5, 1: 7}, 2)
    assert turns.ask(0, 8) is None
    turns.done(0)
    turns.done(0)
    assert turns.room == 3
    with pytest.raises(ValueError, match="step 9 was sent where other producers have sent 7"):
        turns.took(0, 9, 1)
    with pytest.raises(ValueError, match="step 7 was sent where other producers have sent none"):
        turns.took(0, 7, 2)


def test_what_a_lost_place_had_taken_unasked_is_lost_whoever_has_heard_of_it() -> None:
    turns = Turns(4, "wait", 2)
    turns.ask(0, 5), turns.ask(1, 5)
    # nobody has heard of step 6
    assert turns.begun(0, 6) == {0: 5, 1: 6}
    turns.lose(1)
    assert (turns.given, turns.took(1, 6, 1), turns.took(1, 7, 2)) == (2, False, True)
    # of step 7 the other place has told
    assert turns.begun(0, 7) == {0: 5, 2: 7}
    turns.lose(2)
    assert (turns.begun(0, 7), turns.ask(0, 8), list(turns.flight)) == ({0: 5}, Verdict(3), [0, 3])


def test_no_more_is_remembered_however_many_steps_come() -> None:
    turns = Turns(2, "wait", 2)
    for step in range(1000):
        assert turns.ask(0, step) == turns.ask(1, step) == Verdict(step)
        turns.done(step)
        turns.computed(step)  # word of that may come late
    assert len(turns._steps) <= 64
    assert not turns._computed


def test_who_is_behind_is_told_of_each_step_what_the_others_were() -> None:
    turns = Turns(1, "drop-newest", 2)
    told = [turns.ask(0, step) for step in range(100)]
    assert [turns.ask(1, step) for step in range(100)] == told == [Verdict(0), *[Verdict(None)] * 99]


def test_a_step_that_is_forgotten_does_not_go_on_and_is_no_other_one() -> None:
    turns = Turns(2, "drop-oldest", 1)
    assert [turns.ask(0, step).turn for step in range(100)] == list(range(100))
    assert 1 not in turns._steps
    assert [turns.took(0, step, step) for step in (0, 1, 99)] == [True, False, True]
    with pytest.raises(ValueError, match="step 1 was sent where other producers have sent 99"):
        turns.took(0, 1, 99)


def test_a_step_lacks_blocks_of_who_has_left_before_it_and_of_nobody_else() -> None:
    turns = Turns(4, "wait", 2)
    for step in (3, 5, 7):
        turns.ask(0, step)
        turns.ask(1, step)
    turns.whole(1, 0)
    assert [turns.lacking(1, after) for after in (None, 3, 5, 7)] == [5, 5, 7, None]
    turns.lose(2)
    assert turns.lacking(1, 5) is None


def test_as_many_steps_as_a_window_has_are_remembered_whatever_was_left_out_between_them() -> None:
    turns = Turns(1, "drop-newest", 1)
    turns.remember(80)
    for turn in range(200):
        assert [turns.ask(0, 10 * turn + more).turn for more in range(10)] == [turn] + [None] * 9
        turns.done(turn)
    assert list(turns.begun(0, 2000)) == list(range(120, 200))
    assert len(turns._steps) < 80 + 64


def test_the_window_of_a_step_that_is_analysed_is_remembered_however_many_are_left_out_meanwhile() -> None:
    turns = Turns(2, "drop-oldest", 1)
    turns.remember(100)
    for turn in range(100):
        assert turns.ask(0, turn) == Verdict(turn)
        turns.done(turn)
    for step in range(100, 400):
        turns.ask(0, step, begun={100})
    assert 100 in turns.flight
    assert set(range(1, 101)) <= turns.begun(0, 400).keys()
    assert len(turns._steps) < 101 + 100 + 64 + 2


def test_a_late_reader_begins_with_the_next_step() -> None:
    reader = Reader(None, None, 3, None)  # type: ignore[arg-type]
    for turn in (2, 3, 4):
        reader.put(turn, 10 * turn, "value", None)
    assert [reader.has(turn) for turn in (2, 3, 4)] == [False, True, True]
    reader.drop(3)
    assert [reader.has(turn) for turn in (3, 4)] == [False, True]


def test_no_step_is_held_that_no_window_needs_which_may_still_be_computed() -> None:
    # two steps are analysed, those between them had to make room
    assert unneeded(range(20), [2, 10], 12, 3) == [3, 4, 5, 6, 7]
    assert unneeded(range(20), [], 12, 3) == list(range(10))
    assert unneeded(range(20), [0], 1, 1) == []


def test_of_a_step_that_makes_room_nothing_is_computed_and_its_blocks_stay_for_later_windows():
    done = []

    def task(name):
        return SimpleNamespace(cancel=lambda: done.append(name), release=lambda: done.append(name))

    turn = Turn([task("block")], futures=[task("value on the cluster")], values={"mean": task("value here")})
    turn.oust()
    assert (sorted(done), turn.settled.is_set()) == (["value here", "value on the cluster"], True)
