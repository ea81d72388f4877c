"""The command line: what it lists and describes, and that whatever is wrong with it is one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest
from command_line import refused, run

from dask_hpc import capabilities
from dask_hpc.cli import hpc, register
from dask_hpc.terminal import echo_table
from dask_hpc_policies import registry

COMMANDS = [
    "cancel", "chaos", "checkpoint", "compare", "config", "convert", "decisions", "demo", "doctor",
    "flows", "interval", "io", "jobs", "parity", "place", "policies", "power", "replay", "simulate", "status",
    "study", "update", "why",
]  # fmt: skip


def test_help_lists_the_commands() -> None:
    result = run("-h")
    assert result.exit_code == 0
    help = result.output.split("Show this message and exit.")[1]
    listed = re.findall(r"^  ([a-z-]+) ", help, re.MULTILINE)
    assert sorted(listed) == COMMANDS
    headings = re.findall(r"^(\S.*):$", help, re.MULTILINE)
    assert headings == ["Run", "Understand", "Simulate", "Models", "Saved data", "Set up"]
    assert "..." not in help
    assert run("--help").output == result.output


def test_a_capability_adds_commands_under_a_heading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hpc, "commands", dict(hpc.commands))
    monkeypatch.setattr(hpc, "headings", {heading: list(names) for heading, names in hpc.headings.items()})
    loaded: list[str] = []

    @click.command()
    def meter() -> None:
        """Show watts."""
        click.echo("7 W")

    @click.command()
    def watts() -> None:
        """Show watts as well."""

    def load() -> tuple[str, ...]:
        if not loaded:
            loaded.append("meter")
            register("Energy", meter)
            hpc.add_command(watts)
            warnings.warn("capability 'x' is left out", stacklevel=2)
        return tuple(loaded)

    monkeypatch.setattr(capabilities, "load", load)
    assert run("policies").exit_code == 0
    assert loaded == [], "our own commands do not load those of others"
    result = run("meter")
    assert (result.stdout, result.stderr) == ("7 W\n", "Warning: capability 'x' is left out\n")
    help = run("-h").output
    assert "Energy:\n  meter  Show watts.\n\nOther:\n  watts  Show watts as well.\n" in help
    register("Energy", meter)
    with pytest.raises(ValueError, match="has a command 'policies'"):
        register("Energy", click.Command("policies"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(command: str) -> None:
    result = run(command, "-h")
    assert result.exit_code == 0
    assert "--json" in result.output
    assert max(map(len, result.output.splitlines())) <= 88


def test_tests_come_to_a_command_through_ours(repository: Path) -> None:
    """click keeps a command's help option as it was at first use: alone it would have no -h for good."""
    calls = re.compile(r"[rR]unner(?:\(\))?\.invoke\(\s*(\w+)")
    used = {
        name: str(path.relative_to(repository))
        for path in (repository / "tests").rglob("*.py")
        for name in calls.findall(path.read_text("utf-8"))
    }
    assert used.keys() == {"hpc"}, used


def test_names_are_lower_case_with_hyphens() -> None:
    options = [
        option
        for command in hpc.commands.values()
        for parameter in command.params
        if parameter.param_type_name == "option"
        for option in parameter.opts
    ]
    assert options
    assert [
        option
        for option in options
        if not option.startswith("--") or option != option.lower() or "_" in option
    ] == []


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["simulat"], "No such command 'simulat'"),
        (["policies", "--jsn"], "--jsn"),
        (["--json", "policies"], "(dask hpc -h shows the options)"),
        (["replay"], "Missing argument 'TRACE'"),
        (["replay", "no-such-file.jsonl"], "no-such-file.jsonl"),
        (["jobs"], "give --address or --scheduler-file"),
        (["jobs", "--address", "tcp://h:1", "--timeout", "5 W"], "unknown unit 'W'"),
        (["jobs", "--address", "tcp://h:1", "--timeout", "0 s"], "from 1 ms"),
        (["jobs", "--scheduler-file", "absent.json"], "absent.json"),
        (["decisions", "--address", "tcp://h:1", "--limit", "0"], "--limit"),
        # as of a variable that is not set: never what is configured, or this folder, in its place
        (["doctor", "--address", ""], "'' is no address"),
        (["parity", "builtin:figure-5-1", "--policy", "fcfs", "--cluster", ""], "'' is no address"),
        (["checkpoint", "gc", "--dry-run", "--store", ""], "'' is no path"),
        (["chaos", "--faults", "none", "--folder", ""], "'' is no path"),
        (["simulate", "", "--policy", "fcfs"], "'' is no path"),
        (["study", ""], "'' is no path"),
        (["parity", "builtin:esp-10", "--policy", "fcfs", "--task-length", "2 h"], "up to 3600 s"),
        (["parity", "absent.swf", "--policy", "fcfs"], "absent.swf' does not exist"),
        (["parity", "builtin:esp-10", "--policy", "none"], "unknown policy 'none'"),
        (["study", "."], "is a directory"),
        (["update", "tick=never"], "hpc.tick is 'never'; allowed:"),
        (["update", "none=1"], "there is no setting hpc.none"),
        (["demo", "--policy", "none"], "unknown policy 'none'"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: list[str], part: str) -> None:
    refused(run(*arguments), 2, part)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["convert", "builtin:esp-10", "{file}/x.yaml"], "cannot be written: Not a directory"),
        (["compare", "builtin:esp-10", "--policy", "fcfs", "--plot", "{long}.png"], "File name too long"),
        (["checkpoint", "ls", "--store", "{long}"], "File name too long"),
    ],
)
def test_a_path_that_cannot_be_is_one_line(tmp_path: Path, arguments: list[str], part: str) -> None:
    file, long = tmp_path / "file", tmp_path / ("x" * 300)
    file.write_text("")
    refused(run(*(one.format(file=file, long=long) for one in arguments)), 1, part)


def test_names_in_errors_and_warnings_have_a_terminal_do_nothing() -> None:
    refused(run("simulate", ":a\x07\x9bb.swf", "--policy", "easy"), 1, ":a??b.swf: cannot be read")


def test_who_has_closed_output_or_input_gets_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``>&-`` and ``<&-`` of a shell do."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stdin", None)
    hpc(["policies"], standalone_mode=False)
    with pytest.raises(click.ClickException, match="-: standard input is closed"):
        hpc(["power", "fit", "-"], standalone_mode=False)


def test_policies_are_listed() -> None:
    listed = json.loads(run("policies", "--json").stdout)
    assert {one["name"] for one in listed} == {*registry.names(), *registry.library_names()}
    text = run("policies").stdout.splitlines()
    assert text[0].split() == ["NAME", "WHAT", "IT", "DOES"]
    assert len(text) == len(listed) + 1
    assert len({line.index(one["summary"]) for line, one in zip(text[1:], listed, strict=True)}) == 1


def test_one_policy_is_described() -> None:
    described = json.loads(run("policies", "pwma-fpsma", "--json").stdout)
    assert described == registry.describe("pwma-fpsma")
    text = run("policies", "pwma-fpsma").stdout
    for parameter in described["parameters"]:
        assert parameter["name"] in text
        assert parameter["allowed"] in text


def test_an_unknown_policy_is_one_line_with_a_suggestion() -> None:
    refused(run("policies", "pwma-fpsm"), 2, "unknown policy 'pwma-fpsm'", "did you mean 'pwma-fpsma'")


def test_doctor() -> None:
    result = run("doctor", "--json")
    report = json.loads(result.stdout)
    assert report["ok"] == (result.exit_code == 0)
    assert report["ok"], report
    text = run("doctor").stdout.splitlines()
    assert len([line for line in text if line.startswith(("ok", "warn", "fail"))]) == len(report["findings"])
    assert text[-1].endswith("0 failures")
    # what there is on this machine is told, too
    result = run("doctor", "--json", "--address", "tcp://", "--timeout", "500 ms")
    assert result.exit_code == 1
    *here, scheduler = json.loads(result.stdout)["findings"]
    assert len(here) == len(report["findings"])
    assert scheduler["text"].startswith("no scheduler answers at tcp://")


def test_through_dask_s_own_command_line(repository: Path, tmp_path: Path) -> None:
    # what an installation leaves behind, so that the real entry point is taken in a bare checkout too
    installed = tmp_path / "dask_hpc-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: dask-hpc\nVersion: 0.1.0\n")
    target = entry_points(repository)["dask_cli"]["hpc"]
    (installed / "entry_points.txt").write_text(f"[dask_cli]\nhpc = {target}\n")
    paths = [str(tmp_path), *(path for path in sys.path if path)]
    done = subprocess.run(
        [sys.executable, "-m", "dask", "hpc", "policies", "--json"],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(paths)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert {one["name"] for one in json.loads(done.stdout)} >= set(registry.names())
    assert done.stderr == ""


def entry_points(repository: Path) -> dict[str, dict[str, str]]:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    points: dict[str, dict[str, str]] = project["entry-points"]
    return points


def test_entry_points_name_real_things(repository: Path) -> None:
    points = entry_points(repository)
    assert EntryPoint("hpc", points["dask_cli"]["hpc"], "dask_cli").load() is hpc
    factories = points["dask_hpc.policies"]
    assert set(factories) == set(registry.BUILTIN)
    for name, target in factories.items():
        policy = EntryPoint(name, target, "dask_hpc.policies").load()()
        assert registry.spec_of(policy) == registry.spec_of(registry.create(name))


def test_columns_stand_below_each_other_where_letters_are_two_columns_wide_or_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{"name": "日本", "nodes": 1}, {"name": "e\N{COMBINING ACUTE ACCENT}te", "nodes": 12}]
    echo_table(rows, {"name": "NAME", "nodes": "NODES"}, "")
    head, wide, accented = capsys.readouterr().out.splitlines()
    assert (head, wide) == ("NAME  NODES", "日本      1")
    assert accented == "e\N{COMBINING ACUTE ACCENT}te      12"


def test_a_long_name_makes_no_other_row_longer(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["short", "x" * 200, "y" * 48]
    echo_table([{"name": name, "nodes": 1} for name in names], {"name": "NAME", "nodes": "NODES"}, "")
    lines = capsys.readouterr().out.splitlines()
    assert [len(line) for line in lines] == [55, 55, 207, 55]
    assert lines[2] == f"{names[1]}      1"
