"""Declared parameters: what is accepted, what is refused and how it is said."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import yaml

from dask_hpc_policies.params import (
    AbsolutePath,
    Bool,
    Choice,
    Duration,
    Float,
    Int,
    ParameterError,
    Parameters,
    Power,
    Table,
    Text,
    UnknownParameter,
    duration_text,
    parse_duration,
    parse_power,
)

DECLARED = Parameters(
    (
        Int("count", 2, lo=0, hi=10, none_ok=True),
        Float("share", 0.5, lo=0.0, hi=1.0),
        Duration("wait_s", 60.0, hi=3600.0),
        Power("cap_w", 200.0, hi=5000.0),
        Choice("step", "max", ("max", "next")),
        Bool("live", True),
        Text("file", None, none_ok=True, noun="a path"),
        AbsolutePath("folder", "/tmp"),
        Table("values", {}),
    )
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30 s", 30),
        ("5 min", 300),
        ("2 h", 7200),
        ("1.5h", 5400),
        ("100 ms", 0.1),
        ("90", 90),
        (7, 7),
        ("2 hours", 7200),
        ("1 d", 86400),
        ("3 Minutes", 180),
    ],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "watts"), [("200 W", 200), ("1.5 kW", 1500), (80, 80), ("5 mW", 0.005), ("5 MW", 5e6)]
)
def test_powers(text: str | float, watts: float) -> None:
    assert parse_power(text) == pytest.approx(watts)


@pytest.mark.parametrize("text", ["5 W", "soon", "", "-3 s", math.nan, math.inf, True, None, "1 s; rm", [3]])
def test_what_is_no_duration_is_refused_by_name(text: object) -> None:
    with pytest.raises(ParameterError) as caught:
        parse_duration(text)  # type: ignore[arg-type]
    assert repr(text) in str(caught.value)
    assert "duration" in str(caught.value)


def test_wrong_unit_is_named_with_the_units_that_are_right() -> None:
    with pytest.raises(ParameterError, match=r"unknown unit 'W'; use ms, s, min, h or d"):
        parse_duration("5 W")
    with pytest.raises(ParameterError, match=r"unknown unit 's'; use mW, W, kW or MW"):
        parse_power("5 s")


@pytest.mark.parametrize(
    ("name", "value", "clean"),
    [
        ("count", "7", 7),
        ("count", None, None),
        ("count", "none", None),
        ("share", "0.25", 0.25),
        ("wait_s", "1 min", 60),
        ("cap_w", "1 kW", 1000),
        ("step", "next", "next"),
        ("live", "no", False),
        ("count", 3.0, 3),
        ("count", np.int64(3), 3),
        ("share", np.float32(0.25), 0.25),
        ("wait_s", np.int64(60), 60),
        ("file", "a.json", "a.json"),
        ("file", "none", None),
        ("file", "null", None),
        ("folder", "/scratch", "/scratch"),
        ("values", {"a": 1}, {"a": 1}),
    ],
)
def test_accepted(name: str, value: object, clean: object) -> None:
    found = DECLARED.validate(name, value)
    assert (found, type(found).__module__) == (clean, "builtins")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("count", 11, "a whole number from 0 to 10, or none"),
        ("count", True, "whole number"),
        ("count", math.inf, "whole number"),
        ("count", 1.5, "whole number"),
        ("share", 2, "a number from 0 to 1"),
        ("share", "x", "a number from 0 to 1"),
        ("share", math.nan, "from 0 to 1"),
        ("wait_s", "2 h", "a duration from 0 s to 1 h"),
        ("wait_s", "5 W", "unknown unit 'W'"),
        ("wait_s", None, "0 s to 1 h"),
        ("cap_w", "9 kW", "from 0 to 5000 W"),
        ("step", "mx", "did you mean 'max'"),
        ("live", 1, "true or false"),
        ("share", 10**400, "a number from 0 to 1"),
        ("wait_s", 10**400, "it must be finite"),
        ("file", " ", "it must be a path, or none"),
        ("file", 3, "it must be a path, or none"),
        ("folder", "scratch", "it must be an absolute path"),
        ("folder", None, "it must be an absolute path"),
        ("values", [1], "it must be a mapping from names to values"),
        ("values", {1: 2}, "it must be a mapping from names to values"),
    ],
)
def test_refusals_name_parameter_value_and_range(name: str, value: object, allowed: str) -> None:
    with pytest.raises(ParameterError) as caught:
        DECLARED.validate(name, value)
    for part in (repr(name), repr(value)[:80], allowed):
        assert part in str(caught.value)


def test_unknown_parameter_suggests_a_close_one() -> None:
    with pytest.raises(UnknownParameter, match=r"unknown parameter 'wait'.*did you mean 'wait_s'") as caught:
        DECLARED.validate("wait", 3)
    assert caught.value.name == "wait"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.001, "1 ms"),
        (0.1, "100 ms"),
        (0.0005, "0.0005 s"),
        (1.5, "1.5 s"),
        (90.0, "90 s"),
        (120.0, "2 min"),
        (7200, "2 h"),
        (365 * 86400.0, "365 d"),
    ],
)
def test_a_duration_is_said_in_the_largest_unit_that_fits(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
    assert parse_duration(text) == seconds


def test_a_declaration_takes_no_word_that_it_does_not_know() -> None:
    with pytest.raises(TypeError, match="low"):
        Int("count", 1, low=0)


def test_what_is_formatted_reads_back_as_the_same_value_from_text_and_from_yaml() -> None:
    values = {
        "count": None, "share": 0.1, "wait_s": 90.5, "cap_w": 1e3, "step": "next", "live": False,
        "file": None, "folder": "/tmp",
    }  # fmt: skip
    text = DECLARED.format(values)
    assert DECLARED.resolve(text) == {**values, "values": {}}
    assert DECLARED.resolve(yaml.safe_load(yaml.safe_dump(text))) == {**values, "values": {}}


def test_defaults_fill_the_rest_and_the_declaration_is_json() -> None:
    assert DECLARED.resolve({"count": 1})["wait_s"] == 60.0
    spec = json.loads(json.dumps(DECLARED.json_spec()))
    assert spec[2]["unit"] == "s"
    assert spec[4]["choices"] == ["max", "next"]
