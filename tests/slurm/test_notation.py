"""Slurm's notations: each gives its value, and what is none is told."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.errors import SlurmError
from dask_hpc.slurm.notation import (
    MOST_HOSTS,
    JobId,
    expand_hosts,
    parse_duration_s,
    parse_job_id,
    parse_time_s,
)

DAY_S = 86_400


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        ("1-02:03:04", DAY_S + 2 * 3600 + 3 * 60 + 4),
        ("365-00:00:00", 365 * DAY_S),
        ("10:00:00", 36_000),
        ("1:00:00", 3600),
        ("02:03", 123),
        ("0:00", 0),
        ("00:00.250", 0.25),
        ("100:00", 6000),
        ("1-02", DAY_S + 7200),
        ("1-02:03", DAY_S + 7380),
        ("30", 1800),
        ("UNLIMITED", math.inf),
        ("infinite", math.inf),
        *(
            (word, None)
            for word in ("NOT_SET", "INVALID", "N/A", "n/a", "Unknown", "None", "", "Partition_Limit")
        ),
    ],
)
def test_durations(duration: str, seconds: float | None) -> None:
    assert parse_duration_s(duration) == seconds


@pytest.mark.parametrize(
    "duration",
    ["-1:00", "1:60", "1:61:00", "1-24:00:00", "1:2:3:4", "1h", "1:5", "\u0663:\u0661\u0661", "9" * 12],
)
def test_what_is_no_duration(duration: str) -> None:
    with pytest.raises(SlurmError, match="is no duration; expected") as caught:
        parse_duration_s(duration)
    assert duration in str(caught.value)


@given(st.integers(0, 10**6), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_every_notation_of_a_duration_gives_it_back(
    days: int, hours: int, minutes: int, seconds: int
) -> None:
    clock_s = 3600 * hours + 60 * minutes + seconds
    assert parse_duration_s(f"{days}-{hours:02}:{minutes:02}:{seconds:02}") == DAY_S * days + clock_s
    # with leading zeros as sacct and scontrol have it, without as squeue has it
    assert parse_duration_s(f"{hours:02}:{minutes:02}:{seconds:02}") == clock_s
    assert parse_duration_s(f"{hours}:{minutes:02}:{seconds:02}") == clock_s
    assert parse_duration_s(f"{minutes}:{seconds:02}") == 60 * minutes + seconds


def test_times() -> None:
    assert parse_time_s("1795201133") == 1_795_201_133
    assert parse_time_s("2026-11-20T19:03:13+00:00") == 1_795_201_393
    assert (
        parse_time_s("2026-11-20T20:03:13", datetime.timezone(datetime.timedelta(hours=1))) == 1_795_201_393
    )
    for word in ("Unknown", "N/A", "NONE", "None", ""):
        assert parse_time_s(word) is None
    with pytest.raises(SlurmError, match="without zone; set SLURM_TIME_FORMAT=%s"):
        parse_time_s("2026-11-20T19:03:13")
    for wrong in ("19:03:13", "soon", "-5", "2026-13-01T00:00:00", "1" * 12):
        with pytest.raises(SlurmError, match="is no time; expected"):
            parse_time_s(wrong)


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("n[1-3,7],gpu[01-02]", "n1 n2 n3 n7 gpu01 gpu02"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[001-3]", "n001 n002 n003"),
        ("rack[1-2]node[01-02]", "rack1node01 rack1node02 rack2node01 rack2node02"),
        ("n[1-2]-ib.example.org,login", "n1-ib.example.org n2-ib.example.org login"),
        ("n2,n1,n2", "n2 n1 n2"),
        ("", ""),
        ("(null)", ""),
        ("None assigned", ""),
    ],
)
def test_hosts(hosts: str, expected: str) -> None:
    assert expand_hosts(hosts) == tuple(expected.split())


@pytest.mark.parametrize(
    "hosts",
    ["n[3-1]", "n[1", "n1]", "n[]", "n[1,]", "a,,b", ",a", "a,", "n[a-b]", "n[1-2-3]", "a b", "n[[1]]"],
)
def test_what_is_no_list_of_hosts(hosts: str) -> None:
    with pytest.raises(SlurmError, match="is no list of hosts; expected such as") as caught:
        expand_hosts(hosts)
    assert hosts in str(caught.value)


def test_a_list_of_hosts_may_be_long_but_not_endless() -> None:
    assert len(expand_hosts(f"n[1-{MOST_HOSTS}]")) == MOST_HOSTS
    for hosts in (f"n[0-{MOST_HOSTS}]", "n[0-999999999]", "n[1-300]m[1-300]", "a," * MOST_HOSTS + "a"):
        with pytest.raises(SlurmError, match=f"at most {MOST_HOSTS}") as caught:
            expand_hosts(hosts)
        assert len(str(caught.value)) < 400


def fold(prefix: str, width: int, numbers: list[int]) -> str:
    """The list that Slurm writes for hosts of one `prefix`: ranges where numbers follow one another."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1 and len(str(number)) <= width:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    ends = (f"{one[0]:0{width}}" + (f"-{one[-1]:0{width}}" if len(one) > 1 else "") for one in ranges)
    return f"{prefix}[{','.join(ends)}]"


groups = st.tuples(
    st.from_regex(r"[a-z][a-z-]{0,5}", fullmatch=True),
    st.integers(1, 6),
    st.lists(st.integers(0, 10**4), min_size=1, max_size=30),
)


@given(st.lists(groups, min_size=1, max_size=4))
def test_every_list_of_hosts_gives_its_hosts_back(parts: list[tuple[str, int, list[int]]]) -> None:
    hosts = tuple(f"{prefix}{number:0{width}}" for prefix, width, numbers in parts for number in numbers)
    assert expand_hosts(",".join(fold(*part) for part in parts)) == hosts
    assert expand_hosts(",".join(hosts)) == hosts


ids = st.builds(
    lambda number, kind, step: JobId(number, step=step, **kind),
    st.integers(1, 2**32 - 1),
    st.one_of(
        st.just({}),
        st.integers(0, 2**31).map(lambda task: {"array_task": task}),
        st.sampled_from(["1", "1-9", "7-70:3%2", "1,3,5-9", "1,3,..."]).map(
            lambda tasks: {"array_tasks": tasks}
        ),
        st.integers(0, 127).map(lambda component: {"component": component}),
    ),
    st.sampled_from([None, "batch", "extern", "0", "0+1", "interactive"]),
)


@given(ids)
def test_every_id_of_a_job_gives_it_back(job: JobId) -> None:
    assert parse_job_id(str(job)) == job


@pytest.mark.parametrize(
    "job", ["", "x", "-1", "1_", "1_[", "1_[]", "1+", "1_2+3", "1.", "1 2", "1;rm", "--all"]
)
def test_what_is_no_id_of_a_job(job: str) -> None:
    with pytest.raises(SlurmError, match="is no id of a job; expected such as"):
        parse_job_id(job)


values = st.sampled_from([parse_duration_s, parse_time_s, parse_job_id, expand_hosts])


@given(values, st.text() | st.text("0123456789-:,.[]nN/A_+%T"))
def test_a_value_never_fails_in_another_way(read: Callable[[str], Any], value: str) -> None:
    try:
        read(value)
    except SlurmError as error:
        said = str(error)
    else:
        return
    assert any(part in said for part in ("expected", "at most", "SLURM_TIME_FORMAT"))
