"""The output of Slurm's commands: captured text, what the manuals document, and what must never happen."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.errors import DaskHPCError, SlurmError
from dask_hpc.slurm import text
from dask_hpc.slurm.notation import (
    JobId,
)
from dask_hpc.slurm.rows import QueuedJob, RecordedJob, is_over

#: What Slurm 22.05.8 printed for the commands of `dask_hpc.slurm.commands`.
CAPTURED = Path(__file__).parent / "captured"
DAY_S = 86_400


def captured(name: str) -> str:
    return (CAPTURED / f"{name}-22.05.8.txt").read_text()


def sacct_rows(output: str) -> tuple[RecordedJob, ...]:
    return tuple(text.sacct_jobs(enumerate(output.split("\n"), start=1)))


def test_squeue_as_captured() -> None:
    rows = {str(row.id): row for row in text.parse_squeue(captured("squeue"))}
    assert len(rows) == 15
    assert rows["1"] == QueuedJob(
        id=JobId(1), number=1, name="a|b = c d", partition="compute", user="root", state="RUNNING", reason="",
        nodes=2, hosts=("n1", "n2"), time_limit_s=600, time_left_s=595,
        submit_s=1795201705, start_s=1795201705, end_s=1795202305,
    )  # fmt: skip
    assert (rows["4"].time_limit_s, rows["4"].time_left_s, rows["4"].end_s) == (math.inf, math.inf, None)
    assert (rows["5_4"].id, rows["5_4"].number) == (JobId(5, array_task=4), 15)
    assert (rows["5_4"].time_left_s, rows["5_4"].hosts) == (DAY_S + 7436, ("n3",))
    waiting = rows["5_[7-70:3%2]"]
    assert (waiting.state, waiting.reason, waiting.hosts) == ("PENDING", "JobArrayTaskLimit", ())
    assert (rows["11+1"].id, rows["11+1"].number) == (JobId(11, component=1), 12)
    assert (rows["6"].nodes, rows["6"].start_s) == (6, None)
    assert rows["6"].reason.startswith("Nodes required for job are DOWN, DRAINED")
    assert (rows["8"].partition, rows["8"].reason) == ("staging,compute", "Dependency")
    assert (rows["10"].start_s, rows["10"].reason) == (1795205305, "BeginTime")
    assert [name for name, row in rows.items() if is_over(row.state)] == ["13", "2", "3"]


def test_sacct_as_captured() -> None:
    rows = {str(row.id): row for row in sacct_rows(captured("sacct"))}
    assert len(rows) == 12
    assert (rows["1"].name, rows["1"].hosts, rows["1"].time_limit_s) == ("a|b = c d", ("n1", "n2"), 600)
    assert (rows["3"].state, rows["3"].exit_code, rows["3"].exit_signal) == ("FAILED", 3, 0)
    assert (rows["4"].state, rows["4"].exit_code, rows["4"].exit_signal) == ("FAILED", 0, 9)
    assert (rows["10"].state, rows["10"].cancelled_by, rows["10"].elapsed_s) == ("CANCELLED", 0, 2)
    assert (rows["9"].start_s, rows["9"].hosts, rows["9"].cancelled_by) == (None, (), None)
    assert (rows["7+1"].plain_id, rows["6_4"].plain_id) == (JobId(8), JobId(12))
    assert rows["6_[7-70:3%2]"].reason == "JobArrayTaskLimit"
    steps = {str(row.id): row for row in sacct_rows(captured("sacct-steps"))}
    assert len(steps) == 21
    assert (steps["7+0.0"].name, steps["7+0.0"].user, steps["7+0.0"].time_limit_s) == ("sleep", "", None)
    assert (steps["10.batch"].id.step, steps["10.batch"].exit_signal) == ("batch", 15)


def test_sinfo_as_captured() -> None:
    told = [(row.partition, row.is_default, row.nodes) for row in text.parse_sinfo(captured("sinfo"))]
    assert told == [("compute", True, 6), ("staging", False, 2)]


def test_the_time_before_a_kill_is_read_or_said_to_be_missing() -> None:
    printed = "Configuration data as of 2026-01-01\nKeepAliveTime\t= SYSTEM_DEFAULT\nKillOnBadExit = 0\n"
    assert text.parse_kill_wait_s(printed + "KillWait                = 30 sec\nLicenses = (null)\n") == 30.0
    with pytest.raises(SlurmError, match="KillWait"):
        text.parse_kill_wait_s(printed)


def test_other_versions_as_documented() -> None:
    line = "7|7|gpu|ada|{state}|2048|{hosts}|UNLIMITED|{left}|1|1|{end}|{reason}|name"

    def queued(**changed: Any) -> QueuedJob:
        values = {
            "state": "RUNNING",
            "hosts": "n1",
            "left": "NOT_SET",
            "end": "N/A",
            "reason": "None",
        } | changed
        (row,) = text.parse_squeue(line.format(**values) + "\n")
        return row

    assert queued(end="N/A").end_s is None
    # past its limit, until Slurm notices
    assert queued(left="INVALID").time_left_s is None
    # states that 22.05 does not have are words all the same; whether they are over is then not claimed
    assert not is_over(queued(state="EXPEDITING").state)
    assert is_over(queued(state="LAUNCH_FAILED").state)
    assert queued(reason="(null)").reason == ""
    assert queued(reason="ReqNodeNotAvail, UnavailableNodes:n[1-3]").reason.endswith("n[1-3]")


def test_nothing_is_no_row() -> None:
    for parse in PARSERS.values():
        assert parse("") == parse("\n") == ()


PARSERS: dict[str, Callable[[str], Any]] = {
    "squeue": text.parse_squeue,
    "sacct": sacct_rows,
    "sinfo": text.parse_sinfo,
}
GOOD = "1|1|compute|ada|RUNNING|2|n[1-2]|10:00|9:55|1|1|601|None|name"


@pytest.mark.parametrize(
    ("command", "output", "expected"),
    [
        ("squeue", f"{GOOD}\nCLUSTER: north\n", ["line 2", "14 fields (%A|%i|", "got 1", "CLUSTER: north"]),
        (
            "squeue",
            GOOD.replace("RUNNING", "R!"),
            ["line 1", "%T: 'R!' is no state", "such as RUNNING", "9:55"],
        ),
        ("squeue", GOOD.replace("9:55", "soon"), ["%L: 'soon' is no duration", "UNLIMITED"]),
        ("squeue", GOOD.replace("601", "2026-11-20T19:03:13"), ["%e: ", "SLURM_TIME_FORMAT=%s"]),
        ("squeue", GOOD.replace("n[1-2]", "n[1-"), ["%N: 'n[1-' is no list of hosts"]),
        ("squeue", GOOD.replace("|2|", "|2K|"), ["%D: '2K' is no number; expected digits"]),
        ("squeue", "x" * 10_000, ["got 1", "xxx..."]),
        ("sacct", "accounting is disabled", ["line 1", "expected 15 fields (JobID|", "disabled"]),
        (
            "sacct",
            "1|1|c|u|FAILED|3|1|n1|UNLIMITED|0|1|1|1|None|x",
            ["ExitCode: '3' is no exit code", "0:15"],
        ),
        ("sinfo", "compute|compute*", ["line 1", "expected 3 fields", "got 2"]),
    ],
)
def test_malformed_output_is_told(command: str, output: str, expected: list[str]) -> None:
    with pytest.raises(SlurmError, match=f"^{command}, line ") as caught:
        PARSERS[command](output)
    assert isinstance(caught.value, DaskHPCError)
    assert isinstance(caught.value, RuntimeError)
    for part in expected:
        assert part in str(caught.value)
    assert len(str(caught.value)) < 600


def refusal(read: Callable[[str], Any], given: str) -> str | None:
    """What `read` says against the text; None when it takes it. Any other failure is one of the test."""
    try:
        read(given)
    except SlurmError as error:
        return str(error)
    return None


@given(st.sampled_from(sorted(PARSERS)), st.text() | st.text("JobIdName=|[]-:,01 \n"))
def test_output_never_fails_in_another_way(command: str, output: str) -> None:
    said = refusal(PARSERS[command], output)
    assert said is None or said.startswith(f"{command}, line ")


@given(st.sampled_from(sorted(PARSERS)), st.data())
def test_captured_output_that_is_changed_never_fails_in_another_way(
    command: str, data: st.DataObject
) -> None:
    output = captured(command)
    start = data.draw(st.integers(0, len(output)))
    end = data.draw(st.integers(start, min(len(output), start + 200)))
    said = refusal(PARSERS[command], output[:start] + data.draw(st.text(max_size=5)) + output[end:])
    assert said is None or said.startswith(f"{command}, line ")


def test_reading_needs_neither_dask_nor_processes(repository: Path) -> None:
    roots = [str(repository), str(repository / "policies")]
    code = (
        "import sys, dask_hpc.slurm.text, dask_hpc.slurm.rows, dask_hpc.slurm.notation; "
        "print(*sorted({'dask', 'distributed', 'asyncio', 'subprocess'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(roots)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""
