"""What a producer is told that is wrong with what it was given, before it connects."""

from __future__ import annotations

from pathlib import Path

import pytest

import dask_hpc


def test_a_source_says_in_one_line_what_is_wrong_with_where_the_scheduler_is(tmp_path: Path) -> None:
    empty, torn = tmp_path / "empty.json", tmp_path / "torn.json"
    empty.write_text("{}")
    torn.write_text('{"address": "tcp')
    for path in (empty, torn, tmp_path / "none.json"):
        with pytest.raises(ValueError, match="is not a scheduler file: ") as caught:
            dask_hpc.Source("heat", path)
        assert "\n" not in str(caught.value)
    for seconds in ("5", -1, float("nan"), True):
        with pytest.raises(ValueError, match=r"timeout is .*; allowed: a finite number of seconds"):
            dask_hpc.Source("heat", "tcp://127.0.0.1:1", timeout=seconds)
