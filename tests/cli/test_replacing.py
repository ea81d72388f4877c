"""What would be replaced is asked about on a terminal, and refused anywhere else."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import refused, run

STUDY = """
workload: builtin:figure-5-1
policies: {fcfs: fcfs}
"""
SIMULATE = ("simulate", "builtin:figure-5-1", "--policy", "easy")

#: By name: a command without what it writes, the option, the value, and a file that it leaves.
COMMANDS = {
    "output": (SIMULATE, ("--output", "out"), "out/jobs.csv"),
    "trace": (SIMULATE, ("--trace", "run.jsonl"), "run.jsonl"),
    "study": (("study", "study.yaml"), ("--output", "out"), "out/table.csv"),
    "convert": (("convert", "builtin:figure-5-1"), ("jobs.yaml",), "jobs.yaml"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(STUDY, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("shown", [(), ("--json",)], ids=["text", "json"])
def test_without_a_terminal_a_file_that_exists_is_kept_unless_the_option_is_given(
    folder: Path, name: str, shown: tuple[str, ...]
) -> None:
    command, option, left = COMMANDS[name]
    assert run(*command, *option, *shown).exit_code == 0
    (folder / left).write_text("mine")
    result = run(*command, *option, *shown)
    refused(result, 2, "--force replaces")
    assert option[-1] in result.stderr
    assert (folder / left).read_text() == "mine"
    assert run(*command, *option, *shown, "--force").exit_code == 0
    assert (folder / left).read_text() != "mine"


@pytest.mark.parametrize("option", ["--trace", "--report", "--plot"])
def test_the_demo_keeps_a_file_that_exists_and_starts_nothing(folder: Path, option: str) -> None:
    (folder / "run").write_text("mine")
    refused(run("demo", option, "run", "--only", "nothing"), 2, "run exists; --force replaces it")
    assert sorted(path.name for path in folder.iterdir()) == ["run", "study.yaml"]


def test_a_folder_with_other_files_is_no_question(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "notes.txt").write_text("mine")
    assert run(*SIMULATE, "--output", "out").exit_code == 0
    assert (folder / "out" / "notes.txt").read_text() == "mine"


def test_a_link_to_nothing_is_kept(folder: Path) -> None:
    (folder / "run.jsonl").symlink_to("absent")
    refused(run(*SIMULATE, "--trace", "run.jsonl"), 2, "run.jsonl exists")
    assert os.readlink(folder / "run.jsonl") == "absent"


def at_terminal(answer: str, *arguments: str, notebook: bool = False) -> tuple[int, str]:
    """Exit code and output of the command on a terminal where `answer` is typed once it asks."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "JPY_PARENT_PID"}
    if notebook:
        environment["JPY_PARENT_PID"] = "1"
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", "hpc", *arguments],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
    )  # fmt: skip
    os.close(theirs)
    said, is_answered, until_s = b"", False, time.monotonic() + 60
    try:
        while time.monotonic() < until_s:
            if not select.select([ours], [], [], 1)[0]:
                continue
            try:
                part = os.read(ours, 4096)
            except OSError:  # its end is closed
                break
            if not part:
                break
            said += part
            if b"[y/N]" in said and not is_answered:
                os.write(ours, answer.encode() + b"\n")
                is_answered = True
        return process.wait(10), said.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


FOUR = "out/result.json, out/jobs.csv, out/utilization.csv and 1 more"


@pytest.mark.parametrize(
    ("answer", "code", "option", "asked"),
    [("y", 0, ("--trace", "run.jsonl"), "run.jsonl"), ("", 1, ("--output", "out"), FOUR)],
)
def test_at_a_terminal_the_answer_decides(
    folder: Path, answer: str, code: int, option: tuple[str, ...], asked: str
) -> None:
    (folder / "out").mkdir()
    names = ("run.jsonl", "out/jobs.csv", "out/result.json", "out/utilization.csv", "out/jobs.png")
    for name in names:
        (folder / name).write_text("mine")
    found, said = at_terminal(answer, *SIMULATE, *option)
    assert found == code, said
    assert f"Replace {asked}? [y/N]" in said
    kept = {name for name in names if (folder / name).read_text() == "mine"}
    assert kept == set(names) - ({"run.jsonl"} if code == 0 else set())


@pytest.mark.parametrize(("more", "notebook"), [(["--json"], False), ([], True)], ids=["json", "notebook"])
def test_nobody_is_asked_who_reads_json_or_cannot_type(folder: Path, more: list[str], notebook: bool) -> None:
    (folder / "run.jsonl").write_text("mine")
    code, said = at_terminal("y", *SIMULATE, "--trace", "run.jsonl", *more, notebook=notebook)
    assert code == 2
    assert "run.jsonl exists; --force replaces it" in said
    assert "[y/N]" not in said
