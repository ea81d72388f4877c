"""Constants of the program, for configurations that name them still."""

from __future__ import annotations

from typing import Any

import dask.config
import pytest

from dask_hpc.config import no_setting, settings, table
from dask_hpc.config import text as settings_text


@pytest.mark.parametrize(
    ("key", "text", "field", "value"),
    [
        ("sweep", "200 ms", "sweep_s", 0.2),
        ("performance-interval", "1 s", "performance_interval_s", 1.0),
        ("held-notice", "1 min", "held_notice_s", 60.0),
        ("trace.keep", 7, "trace_keep", 7),
        ("decisions.keep", 8, "decisions_keep", 8),
    ],
)
def test_a_configuration_that_names_one_is_honoured(key: str, text: Any, field: str, value: Any) -> None:
    with dask.config.set({f"hpc.{key}": text}):
        assert getattr(settings(), field) == value


def test_nothing_that_is_printed_offers_them() -> None:
    text = settings_text.yaml_text()
    hidden = [one.key.rpartition(".")[2] for one in table() if one.knob]
    assert len(hidden) == 5
    assert [name for name in hidden if f" {name}:" in text] == []
    # a name that is nearly one of theirs, and one that is like none
    for key in (one.key for one in table() if one.knob):
        assert f"hpc.{key}?" not in no_setting(f"{key}s")
        assert f"{key}," not in no_setting("x")
