"""Futures of NumPy arrays are plain bytes in the store: nobody has to allow that anything is unpickled."""

from __future__ import annotations

import gc
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from saved import save_values

from dask_hpc.checkpoint.opening import open_checkpoint
from dask_hpc.checkpoint.plan import Array
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.values import Form, form, from_bytes, to_bytes
from dask_hpc.errors import CheckpointError

ARRAYS = [
    np.arange(12.0).reshape(3, 4),
    np.asfortranarray(np.arange(6).reshape(2, 3)),
    np.arange(20)[::3],
    np.full((), 3, "f4"),
    np.empty((0, 3), "c16"),
    np.array(["a", "text"]),
    np.array(["2026-01-01", "NaT"], "M8[us]"),
    np.array([1, 2], ">i4"),
    np.array([(1, 2.5)], [("n", "i4"), ("x", "f8")]),
    # the most that NumPy reads of a header without a word is less
    np.zeros(2, [(f"the field of number {number}", "f8") for number in range(500)]),
]
#: Arrays of which NumPy's format cannot say what they are: their fields are in another order than they lie,
#: have names in other letters, or are too many.
OTHERS = [
    np.array([(1, 2.5)], [("n", "i4"), ("x", "f8")])[["x", "n"]],
    np.array([(1,)], [("число", "i4")]),
    np.ones(1, [(f"the field of number {number}", "f8") for number in range(3000)]),
]


def test_arrays_come_back_without_a_word_and_can_be_written_to(tmp_path: Path) -> None:
    for value, lazy in zip(ARRAYS, open_checkpoint(save_values(Store(tmp_path), ARRAYS)), strict=True):
        again = lazy.compute(scheduler="sync")
        assert (again.dtype, again.shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(again, value)
        assert again.flags.writeable


@pytest.mark.parametrize(
    "value", [{"a": 1}, np.array([None]), np.ma.array([1], mask=[True]), 3, *OTHERS], ids="{!r:.20}".format
)
def test_other_values_need_the_word(tmp_path: Path, value: Any) -> None:
    path = save_values(Store(tmp_path), [np.ones(2), value])
    with pytest.raises(CheckpointError, match="allow_pickle=True"):
        open_checkpoint(path)
    again = open_checkpoint(path, allow_pickle=True)[1].compute(scheduler="sync")
    assert type(again) is type(value)
    np.testing.assert_array_equal(again, value)


def test_bytes_of_an_array_that_are_left_in_a_circle_go_without_a_word() -> None:
    # newer Pythons close a file in memory that somebody still refers to first, and say that they cannot
    parts, _ = to_bytes(Array("data", "opaque", None, (1,), ((1,),)), 0, np.ones(3))
    assert {type(part.obj) for part in parts} == {bytes, np.ndarray}
    circle: list[Any] = [parts]
    circle.append(circle)
    del parts, circle
    gc.collect()


def test_bytes_that_say_that_they_are_python_values_are_none() -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_2_0(header, {"descr": "|O", "fortran_order": False, "shape": (1,)})
    content = np.frombuffer(header.getvalue() + bytes(8), np.uint8)
    with pytest.raises(ValueError, match="is no array as it was written: another order, or Python values"):
        from_bytes(Form("block 0", None, None, (1,), (1,)), content, None, True)


def test_text_that_is_longer_or_shorter_than_it_says_is_none() -> None:
    what = Form("block 0", "|O", "text", (2,), (2,))
    (text,), _ = to_bytes(Array("t", "apart", "|O", (2,), ((2,),), "text"), 0, np.array(["a", "ü"], object))
    good = np.frombuffer(text, np.uint8)
    assert from_bytes(what, good, None, False).tolist() == ["a", "ü"]
    for bad in (np.append(good, good[:1]), good[:-2], good.copy()):
        if bad.size == good.size:
            bad[0] += 1
        with pytest.raises(ValueError, match="is no text as it was written"):
            from_bytes(what, bad, None, False)


def test_what_is_no_array_is_not_made_one(tmp_path: Path) -> None:
    path = save_values(Store(tmp_path), [np.ones(2)])
    files = [file for file in Path(path).rglob("*") if file.is_file()]
    (file,) = [file for file in files if b"NUMPY" in file.read_bytes()]
    content = bytearray(file.read_bytes())
    content[content.index(b"NUMPY") - 1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="is not what was written"):
        open_checkpoint(path)[0].compute(scheduler="sync")


def test_headers_are_parsed_one_at_a_time_and_once_more_where_python_fails(monkeypatch) -> None:
    """CPython 3.11 fails where two threads make a tree of code at once (its issue 106905)."""
    met, together, failures = threading.Barrier(2), [], [SystemError("AST constructor")]
    parse = np.lib.format.read_array_header_2_0

    def parsed(*args: Any) -> Any:
        try:
            met.wait(0.2)
            together.append(True)
        except threading.BrokenBarrierError:
            met.reset()
        if failures:
            raise failures.pop()
        return parse(*args)

    monkeypatch.setattr(np.lib.format, "read_array_header_2_0", parsed)
    array, value = Array("data", "opaque", None, (1,), ((1,),)), np.arange(3)
    parts, digest = to_bytes(array, 0, value)
    content = np.frombuffer(b"".join(parts), np.uint8)
    with ThreadPoolExecutor(2) as pool:
        read = [pool.submit(from_bytes, form(array, 0), content, digest, False) for _ in range(2)]
        for each in read:
            np.testing.assert_array_equal(each.result(10), value)
    assert not together
    assert not failures
