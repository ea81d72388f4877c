"""`dask hpc replay` says whether a trace is what its policy decides; a wrong trace is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import refused, run

from dask_hpc.trace.files import write_trace
from dask_hpc.trace.records import Header, Pass
from dask_hpc_policies import registry
from dask_hpc_policies.codec import encode
from dask_hpc_policies.decision import Decision
from dask_hpc_policies.model import ClusterSnapshot, JobView


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
        (["--policy", "pwma"], 2, "unknown policy 'pwma'"),
        (["--policy", "absent.yaml"], 2, "absent.yaml"),
        (["--policy", "pwma-fpsma", "--param", "stp=next"], 2, "unknown parameter 'stp'"),
        (["--policy", "pwma-fpsma", "--param", "step=far"], 2, "parameter 'step' cannot be 'far'"),
        (["--policy", "pwma-fpsma", "--param", "min_remaining_s=5 W"], 2, "'5 W'"),
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
