"""Constants of the program: for tests, and for configurations that name them still."""

from __future__ import annotations

from typing import Any

import dask.config
import pytest

from dask_hpc.config import Settings, knobs, settings, table
from dask_hpc.config import text as settings_text
from dask_hpc_policies.params import ParameterError


def test_an_override_holds_for_what_is_made_in_it_and_is_taken_back() -> None:
    before = Settings()
    with knobs.override(sweep_s="20 ms", trace_keep=3):
        assert (Settings().sweep_s, settings({}).trace_keep) == (0.02, 3)
        with knobs.override(trace_keep=4):
            assert (knobs.value("sweep_s"), knobs.value("trace_keep")) == (0.02, 4)
        assert knobs.value("trace_keep") == 3
        assert settings({"sweep": "30 ms"}).sweep_s == 0.03, "what is configured counts more"
    assert Settings() == before


@pytest.mark.parametrize(
    ("values", "named"),
    [({"swep_s": 1}, "did you mean 'sweep_s'"), ({"sweep_s": "1 min", "trace_keep": 1}, "10 ms to 10 s")],
)
def test_what_is_no_knob_or_not_allowed_changes_nothing(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ParameterError, match=named), knobs.override(**values):
        pass
    assert knobs.value("trace_keep") == 5000


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
