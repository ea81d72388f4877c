"""The command line: what it prints, how it fails, and a running cluster asked from outside."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from distributed import Client, Event

import dask_hpc
from dask_hpc import capabilities
from dask_hpc.cli import hpc, register
from dask_hpc.trace.files import write_trace
from dask_hpc.trace.records import Header, Pass
from dask_hpc_policies import registry
from dask_hpc_policies.codec import encode
from dask_hpc_policies.decision import Decision
from dask_hpc_policies.model import ClusterSnapshot, JobView

COMMANDS = [
    "cancel", "compare", "config", "convert", "decisions", "demo", "doctor", "jobs", "parity", "policies",
    "replay", "simulate", "status", "study", "update",
]  # fmt: skip
ASK = {"status": [], "jobs": [], "decisions": [], "cancel": ["some-job"], "update": ["tick=2s"]}


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(hpc, list(arguments), prog_name="dask hpc", env=environment)


def refused(result: Result, code: int, *parts: str) -> None:
    """`result` is one line on stderr that holds `parts`, nothing on stdout, and exit code `code`."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: ")
    for part in parts:
        assert part in lines[0]


def test_help_lists_the_commands() -> None:
    result = run("-h")
    assert result.exit_code == 0
    help = result.output.split("Show this message and exit.")[1]
    listed = re.findall(r"^  ([a-z-]+) ", help, re.MULTILINE)
    assert sorted(listed) == COMMANDS
    assert re.findall(r"^(\S.*):$", help, re.MULTILINE) == ["Run", "Understand", "Simulate", "Set up"]
    assert "..." not in help
    assert run("--help").output == result.output


def test_a_capability_adds_commands_under_a_heading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hpc, "commands", dict(hpc.commands))
    monkeypatch.setattr(hpc, "headings", {heading: list(names) for heading, names in hpc.headings.items()})
    loaded: list[str] = []

    @click.command()
    def power() -> None:
        """Show watts."""
        click.echo("7 W")

    @click.command()
    def watts() -> None:
        """Show watts as well."""

    def load() -> tuple[str, ...]:
        if not loaded:
            loaded.append("power")
            register("Energy", power)
            hpc.add_command(watts)
            warnings.warn("capability 'x' is left out", stacklevel=2)
        return tuple(loaded)

    monkeypatch.setattr(capabilities, "load", load)
    assert run("policies").exit_code == 0
    assert loaded == [], "our own commands do not load those of others"
    result = run("power")
    assert (result.stdout, result.stderr) == ("7 W\n", "Warning: capability 'x' is left out\n")
    help = run("-h").output
    assert "Energy:\n  power  Show watts.\n\nOther:\n  watts  Show watts as well.\n" in help
    register("Energy", power)
    with pytest.raises(ValueError, match="has a command 'policies'"):
        register("Energy", click.Command("policies"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(command: str) -> None:
    result = run(command, "-h")
    assert result.exit_code == 0
    assert "--json" in result.output
    assert max(map(len, result.output.splitlines())) <= 88


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
        (["replay"], "Missing argument 'TRACE'"),
        (["replay", "no-such-file.jsonl"], "no-such-file.jsonl"),
        (["jobs"], "give --address or --scheduler-file"),
        (["jobs", "--address", "tcp://h:1", "--timeout", "5 W"], "unknown unit 'W'"),
        (["jobs", "--address", "tcp://h:1", "--timeout", "0 s"], "from 1 ms"),
        (["jobs", "--scheduler-file", "absent.json"], "absent.json"),
        (["decisions", "--address", "tcp://h:1", "--limit", "0"], "--limit"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: list[str], part: str) -> None:
    refused(run(*arguments), 2, part)


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
    refused(run("policies", "pwma-fpsm"), 1, "unknown policy 'pwma-fpsm'", "did you mean 'pwma-fpsma'")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    policy = registry.create("fcfs")
    view = ClusterSnapshot(now_s=1.0, jobs=(JobView(id="evil\x1b[2J\njob", max_nodes=4),), idle_nodes=4)
    decision, _ = policy.decide(view, policy.initial_state())
    item = Pass(
        policy=registry.spec_of(policy),
        state=encode(policy.initial_state()),
        snapshot=view,
        decision=decision,
    )
    edited = Pass(policy=item.policy, state=item.state, snapshot=view, decision=Decision())
    write_trace(tmp_path / "good.jsonl", [Header(), item])
    write_trace(tmp_path / "edited.jsonl.gz", [Header(), item, edited])
    return tmp_path


def test_replay_of_a_good_trace(trace: Path) -> None:
    assert run("replay", str(trace / "good.jsonl")).exit_code == 0
    report = json.loads(run("replay", str(trace / "good.jsonl"), "--json").stdout)
    assert (report["ok"], report["mode"], report["passes"], report["same"]) == (True, "verify", 1, 1)


def test_replay_that_differs_says_where_and_exits_1(trace: Path) -> None:
    result = run("replay", str(trace / "edited.jsonl.gz"))
    assert result.exit_code == 1
    assert "first difference: pass 2, t = 1.000 s, called for tick" in result.stdout
    assert "start evil?[2J job to 4 nodes" in result.stdout, "control characters must not reach the terminal"
    report = json.loads(run("replay", str(trace / "edited.jsonl.gz"), "--json").stdout)
    assert (report["ok"], report["differing"], report["first"]["number"]) == (False, 1, 2)


def test_replay_of_another_policy_is_a_comparison(trace: Path) -> None:
    path = str(trace / "edited.jsonl.gz")
    result = run(
        "replay", path, "--policy", "pwma-fpsma", "--param", "step=next", "--param", "min-remaining-s=5 s"
    )
    assert result.exit_code == 0
    assert "another policy on the same snapshots: pwma-fpsma" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["--policy", "pwma"], 1, "unknown policy 'pwma'"),
        (["--policy", "absent.yaml"], 1, "absent.yaml"),
        (["--policy", "pwma-fpsma", "--param", "stp=next"], 1, "unknown parameter 'stp'"),
        (["--policy", "pwma-fpsma", "--param", "step=far"], 1, "parameter 'step' cannot be 'far'"),
        (["--policy", "pwma-fpsma", "--param", "min_remaining_s=5 W"], 1, "'5 W'"),
        (["--policy", "pwma-fpsma", "--param", "step"], 2, "not NAME=VALUE"),
        (["--param", "step=next"], 2, "--param needs --policy"),
    ],
)
def test_wrong_policy_options_are_one_line(trace: Path, arguments: list[str], code: int, part: str) -> None:
    refused(run("replay", str(trace / "good.jsonl"), *arguments), code, part)


def test_a_malformed_trace_is_one_line(trace: Path) -> None:
    path = trace / "bad.jsonl"
    path.write_text((trace / "good.jsonl").read_text() + "not a record\n")
    refused(run("replay", str(path)), 1, f"{path}, line 3: expected one JSON object")


def test_a_cut_trace_is_read_with_a_warning(trace: Path) -> None:
    path = trace / "cut.jsonl"
    path.write_text((trace / "good.jsonl").read_text() + '{"kind": "no')
    result = run("replay", str(path))
    assert result.exit_code == 0
    assert result.stderr.startswith("Warning: ")
    assert "line 3 is cut" in result.stderr


def test_doctor() -> None:
    result = run("doctor", "--json")
    report = json.loads(result.stdout)
    assert report["ok"] == (result.exit_code == 0)
    assert report["ok"], report
    text = run("doctor").stdout.splitlines()
    assert len([line for line in text if line.startswith(("ok", "warn", "fail"))]) == len(report["findings"])
    assert text[-1].endswith("0 failures")


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


@pytest.mark.parametrize(
    ("command", "address"),
    [
        ("status", "tcp://127.0.0.1:1"),
        ("jobs", "foo://127.0.0.1:1"),
        ("decisions", "tls://127.0.0.1:1"),
        ("cancel", "nowhere"),
        ("doctor", "tcp://"),
    ],
)
def test_a_wrong_address_is_one_line(command: str, address: str) -> None:
    result = run(command, *ASK.get(command, []), "--address", address, "--timeout", "500 ms")
    refused(result, 1, f"no scheduler answers at {address}")


@pytest.fixture
def mute() -> Iterator[str]:
    """Address of a port that accepts connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []

        def accept() -> None:
            try:
                while True:
                    kept.append(server.accept()[0])
            except OSError:
                for connection in kept:
                    connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def test_a_server_that_says_nothing_is_one_line(mute: str) -> None:
    refused(run("status", "--address", mute, "--timeout", "500 ms"), 1, f"no scheduler answers at {mute}")


def test_a_file_that_names_no_scheduler_is_one_line(tmp_path: Path) -> None:
    for content in ("", "[]", "{}", "\xff"):
        (tmp_path / "scheduler.json").write_text(content, encoding="latin-1")
        refused(
            run("jobs", "--scheduler-file", str(tmp_path / "scheduler.json")), 1, "is not a scheduler file"
        )


def test_a_worker_is_not_a_scheduler(client: Client, a: Any) -> None:
    address = a["address"]
    refused(run("status", "--address", address), 1, f"no scheduler answers at {address}: it is a Worker")


@pytest.mark.parametrize("command", ASK)
def test_a_cluster_without_the_runtime_is_one_line(client: Client, s: Any, command: str) -> None:
    refused(run(command, *ASK[command], "--address", s["address"]), 1, "dask_hpc.install")


def test_settings_and_policy_change_from_outside(client: Client, s: Any) -> None:
    runtime = dask_hpc.install(client, policy="pwma-fpsma")
    where = ["--address", s["address"]]
    said = run("update", "tick=2s", "pool.max-nodes=16", "spill.directory=none", *where).stdout
    assert said.split("\n")[1:] == [
        "tick             2 s",
        "pool.max-nodes   16",
        "spill.directory  none",
        "",
    ]
    assert (runtime.status()["settings"]["tick_s"], runtime.status()["settings"]["pool_max_nodes"]) == (
        2.0,
        16,
    )
    asked = ("update", "lock=system", "--policy", "easy", "--param", "reservation-depth=3", *where)
    status = json.loads(run(*asked, "--json").stdout)
    assert status["policy"]["params"]["reservation_depth"] == 3
    assert status["settings"]["lock"] == "system"
    run("update", "--param", "reservation-depth=2", *where)
    assert runtime.status()["policy"]["params"]["reservation_depth"] == 2
    before = runtime.status()
    refused(
        run("update", "tick=5s", "--param", "depth=2", *where), 1, "unknown parameter 'depth'", "hpc.depth"
    )
    refused(
        run("update", "tick=5s", "kill-delay=1s", *where), 1, "hpc.kill-delay is 25 s and cannot become 1 s"
    )
    refused(run("update", *where), 2, "nothing is to be changed")
    refused(run("update", "tick", *where), 2, "'tick' is not SETTING=VALUE")
    refused(run("update", "policy=easy", *where), 2, "--policy")
    for part in ("settings", "policy"):
        assert runtime.status()[part] == before[part]


def slow_step(number: int, stop: Event) -> int:
    stop.wait(60)
    return number


def test_a_running_cluster_is_asked_from_outside(client: Client, s: Any) -> None:
    runtime = dask_hpc.install(client, policy="pwma-fpsma")
    where = ["--address", s["address"]]
    stop = Event("stop-test-cli", client=client)
    with runtime.job("heat", min_nodes=1, max_nodes=2) as job:
        futures = client.map(slow_step, range(4), stop=stop)
    try:
        # its tasks arrive on a stream of their own, perhaps after its start
        assert poll(lambda: (job.status()["state"], job.status()["unfinished_tasks"]) == ("running", 4)), (
            job.status()
        )

        (listed,) = [row for row in json.loads(run("jobs", *where, "--json").stdout) if row["name"] == "heat"]
        assert (listed["id"], listed["state"], listed["unfinished_tasks"]) == (job.id, "running", 4)
        line = next(line for line in run("jobs", *where).stdout.splitlines() if "heat" in line)
        assert line.split()[0] == job.id
        assert "running" in line

        status = json.loads(run("status", *where, "--json").stdout)
        assert status["policy"]["policy"] == "pwma-fpsma"
        text = run("status", *where).stdout
        assert text.splitlines()[0].split()[:2] == ["policy", "pwma-fpsma"]
        assert all(node["id"] in text for node in status["nodes"])

        decided = json.loads(run("decisions", *where, "--job", job.id, "--json").stdout)
        assert "start" in [row["action"] for row in decided]
        assert all(row["reason"] for row in decided)
        assert "start" in run("decisions", *where, "--limit", "20").stdout

        refused(run("cancel", "no-such-job", *where), 1, "no-such-job")
        assert run("cancel", job.id, *where).stdout == f"{job.id} is cancelled\n"
        assert job.status()["state"] == "cancelled"
        assert [future.status for future in futures if future.status == "finished"] == []
        # once more is the same, and changes nothing
        ended_s = job.status()["end_s"]
        assert run("cancel", job.id, *where).stdout == f"{job.id} is cancelled\n"
        assert job.status()["end_s"] == ended_s

        found = json.loads(run("doctor", *where, "--json").stdout)["findings"]
        (switched,) = [finding for finding in found if finding["name"] == "runtime"]
        assert switched["text"] == "switched on, policy pwma-fpsma"
        assert "dashboard panels" in [finding["name"] for finding in found]
    finally:
        stop.set()
        runtime.uninstall()


def test_decisions_of_nothing_say_so(client: Client, s: Any) -> None:
    runtime = dask_hpc.install(client)
    try:
        assert run("jobs", "--address", s["address"]).stdout == "no job has been declared\n"
        assert run("decisions", "--address", s["address"]).stdout == "no decision has been taken\n"
    finally:
        runtime.uninstall()


def poll(condition: Callable[[], bool], deadline_s: float = 20.0) -> bool:
    """Whether `condition` becomes true in time."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
