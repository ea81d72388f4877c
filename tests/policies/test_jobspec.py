"""What a job description means on a pool, and how a wrong one is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dask_hpc_policies.codec import decode, encode
from dask_hpc_policies.jobs.jobspec import (
    InvalidJob,
    JobSpec,
    arguments,
    job_spec,
    job_spec_from_mapping,
    resolve,
)
from dask_hpc_policies.model import JobFacts, JobRequest
from dask_hpc_policies.views import values_of


def sizes(job: JobRequest) -> tuple[str, int | None, int, int]:
    return (job.kind, job.start_nodes, job.min_nodes, job.max_nodes)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"nodes": 4, "min_nodes": 2, "max_nodes": 8}, ("malleable", 4, 2, 8)),
        ({"min_nodes": 2, "max_nodes": 8}, ("malleable", None, 2, 8)),
        ({"min_nodes": 2, "max_nodes": 8, "rigid": True}, ("moldable", None, 2, 8)),
        ({"nodes": 4}, ("rigid", 4, 4, 4)),
        ({}, ("malleable", None, 1, 16)),
        ({"rigid": True}, ("moldable", None, 1, 16)),
        ({"min_nodes": 3}, ("malleable", None, 3, 16)),
        ({"max_nodes": 3}, ("malleable", None, 1, 3)),
        ({"nodes": 4, "min_nodes": 2}, ("malleable", 4, 2, 16)),
        ({"nodes": 4, "max_nodes": 8}, ("malleable", 4, 1, 8)),
        ({"nodes": 4, "min_nodes": 2, "max_nodes": 8, "rigid": True}, ("rigid", 4, 4, 4)),
        ({"min_nodes": 3, "max_nodes": 15, "constraint": "pof2"}, ("malleable", None, 4, 8)),
        ({"max_nodes": 64}, ("malleable", None, 1, 16)),
        ({"constraint": "even"}, ("malleable", None, 2, 16)),
    ],
)
def test_sizes_on_a_pool_of_16(arguments: dict[str, Any], expected: tuple[str, int | None, int, int]) -> None:
    assert sizes(resolve(job_spec("j", **arguments), 16)) == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"min_nodes": 9, "max_nodes": 8}, ["min_nodes=9", "max_nodes=8"]),
        ({"nodes": 9, "min_nodes": 2, "max_nodes": 8}, ["nodes=9", "min_nodes=2", "max_nodes=8"]),
        ({"nodes": 1, "min_nodes": 2}, ["nodes=1", "at least min_nodes=2"]),
        ({"nodes": 6, "constraint": "pof2"}, ["nodes=6", "constraint='pof2'", "4 and 8"]),
        (
            {"min_nodes": 5, "max_nodes": 7, "constraint": "pof2"},
            ["constraint='pof2'", "min_nodes=5", "max_nodes=7"],
        ),
        (
            {"constraint": "pow2"},
            ["constraint='pow2'", "any, even, odd, pof2, square, cube", "did you mean 'pof2'"],
        ),
        ({"constraint": 3}, ["constraint=3"]),
        ({"nodes": 0}, ["nodes=0", "at least 1"]),
        ({"min_nodes": -1}, ["min_nodes=-1"]),
        ({"max_nodes": 2.5}, ["max_nodes=2.5", "whole number"]),
        ({"nodes": True}, ["nodes=True", "whole number"]),
        ({"nodes": np.True_}, ["nodes=np.True_", "whole number"]),
        ({"nodes": np.float64("inf")}, ["nodes=np.float64(inf)", "whole number"]),
        ({"nodes": 2j}, ["nodes=2j", "whole number"]),
        ({"priority": 1.5}, ["priority=1.5"]),
        ({"weight": np.True_}, ["weight=np.True_", "a number from 0.001 to 1000"]),
        ({"walltime": np.True_}, ["walltime", "give a number or text"]),
        ({"rigid": "yes"}, ["rigid='yes'"]),
        ({"io_intensity": 1.1}, ["io_intensity=1.1", "0 to 1"]),
        ({"io_intensity": float("nan")}, ["io_intensity=nan"]),
        ({"io_intensity": 10**400}, ["io_intensity=1000", "0 to 1"]),
        ({"min_power_w": 300, "max_power_w": 200}, ["min_power_w=300", "max_power_w=200"]),
        ({"min_power_w": 1e30}, ["min_power_w=1e+30", "0 to 1e+06 W"]),
        ({"max_power_w": "2 MW"}, ["max_power_w='2 MW'", "0 to 1e+06 W"]),
        ({"walltime": "5 W"}, ["walltime", "'5 W'", "ms, s, min, h or d"]),
        ({"walltime": 0}, ["walltime=0", "above 0 s"]),
        ({"walltime": -3}, ["walltime", "-3"]),
        ({"deadline": "soon"}, ["deadline", "'soon'", "ms, s, min, h or d"]),
        ({"deadline": 0}, ["deadline=0", "above 0 s"]),
        ({"soft_deadline": "5 W"}, ["soft_deadline", "'5 W'"]),
        ({"soft_deadline": "2 h", "deadline": "1 h"}, ["soft_deadline=7200 s", "deadline=3600 s"]),
        ({"value": -1}, ["value=-1", "0 to 1e+09"]),
        ({"value": True}, ["value=True"]),
        ({"protect": ""}, ["protect=''", "true, false or a text"]),
        ({"protect": 1}, ["protect=1"]),
        ({"resilience": None}, ["resilience=None", "a text"]),
    ],
)
def test_refusals_name_value_range_and_argument(arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidJob) as caught:
        job_spec("heat", **arguments)
    for word in ["'heat'", *words]:
        assert word in str(caught.value)


def test_numbers_of_numpy_are_numbers() -> None:
    spec = job_spec(
        "heat", nodes=np.int64(4), min_nodes=np.uint8(2), max_nodes=np.float64(8), priority=np.int16(-1),
        walltime=np.int64(60), deadline=np.float32(90), min_power_w=np.float32(100), value=np.int8(3),
        io_intensity=np.float16(0.5), weight=np.int32(2),
    )  # fmt: skip
    plain = job_spec(
        "heat", nodes=4, min_nodes=2, max_nodes=8, priority=-1, walltime=60, deadline=90, min_power_w=100,
        value=3, io_intensity=0.5, weight=2,
    )  # fmt: skip
    assert spec == plain
    # and go over the network, and into files, as what they are
    assert json.dumps(encode(spec)) == json.dumps(encode(plain))


@pytest.mark.parametrize("name", ["", "  ", None, 3])
def test_a_job_needs_a_name(name: Any) -> None:
    with pytest.raises(InvalidJob, match="name"):
        job_spec(name)


@pytest.mark.parametrize(
    "arguments",
    [{"nodes": 17}, {"min_nodes": 17}, {"nodes": 20, "min_nodes": 2}],
)
def test_larger_than_the_pool_can_ever_be(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match=r"hpc\.pool\.max-nodes") as caught:
        resolve(job_spec("j", **arguments), 16)
    assert "16" in str(caught.value)


def test_constraint_without_a_size_on_this_pool() -> None:
    with pytest.raises(InvalidJob, match=r"'cube' allows no size from 9 to 16 .*hpc\.pool\.max-nodes"):
        resolve(job_spec("j", min_nodes=9, max_nodes=30, constraint="cube"), 16)


def test_mapping_has_the_same_fields_and_refuses_others() -> None:
    data = {
        "name": "heat",
        "nodes": 4,
        "min_nodes": 2,
        "max_nodes": 8,
        "walltime": "30 min",
        "min_power_w": "1.5 kW",
    }
    spec = job_spec_from_mapping(data)
    assert spec.walltime_s == 1800
    assert spec.min_power_w == 1500
    with pytest.raises(InvalidJob, match=r"'min_node'.*did you mean 'min_nodes'"):
        job_spec_from_mapping({"name": "x", "min_node": 2})
    with pytest.raises(InvalidJob, match="needs a name"):
        job_spec_from_mapping({"nodes": 2})
    with pytest.raises(InvalidJob, match="give a mapping"):
        job_spec_from_mapping(["name"])  # type: ignore[arg-type]


def test_json_round_trip() -> None:
    spec = job_spec(
        "heat", nodes=4, min_nodes=2, max_nodes=8, constraint="pof2", walltime="2 h", io_intensity=0.5
    )
    assert decode(JobSpec, json.loads(json.dumps(encode(spec)))) == spec
    assert "deadline_s" not in encode(spec), "what was added later is written when it is said"
    late = replace(spec, deadline_s=60.0, protect="field")
    assert decode(JobSpec, json.loads(json.dumps(encode(late)))) == late


def test_all_that_is_declared_is_in_the_request_and_can_be_declared_again() -> None:
    spec = job_spec(
        "heat", constraint="pof2", walltime="2 h", priority=3, min_power_w=100, max_power_w="200 W",
        io_intensity=0.5, deadline="3 h", soft_deadline="90 min", value=7, protect="field", resilience="ml",
        exclusive=True, user="ada", weight=2,
    )  # fmt: skip
    facts = values_of(JobFacts, spec)
    assert all(facts[name] != value for name, value in values_of(JobFacts, JobFacts()).items())
    request = resolve(spec, 16)
    assert values_of(JobFacts, request) == facts
    assert values_of(JobFacts, resolve(replace(spec, nodes=4), 16)) == facts
    assert job_spec("heat", **arguments(request)) == spec
    assert arguments(JobRequest(name="heat")) == {}
