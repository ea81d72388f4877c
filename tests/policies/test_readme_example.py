"""The example in the README of the policies folder runs as printed."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dask_hpc_policies.codec import decode, encode
from dask_hpc_policies.decision import Expand, Hold, Start
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.registry import create, describe, updated

README = Path(__file__).resolve().parents[2] / "policies" / "README.md"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module of its own."""
    (code,) = re.findall(r"```python\n(from __future__.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.splitlines()) <= 40
    (tmp_path / "one_at_a_time.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "one_at_a_time", raising=False)
    return importlib.import_module("one_at_a_time")


def test_the_example_decides_and_takes_parameters(example: ModuleType) -> None:
    policy: Any = create(example.OneAtATime(), patience=2)
    assert policy.params == {"patience": 2}
    jobs = (
        JobView(id="a", state="running", nodes=2, min_nodes=1, max_nodes=4, start_s=0.0),
        JobView(id="b", start_nodes=3, min_nodes=3, max_nodes=3),
    )
    state = policy.initial_state()
    kinds = []
    for _ in range(2):
        decision, state = policy.decide(ClusterSnapshot(now_s=0.0, jobs=jobs, idle_nodes=1), state)
        kinds.append([(type(action), getattr(action, "nodes", None)) for action in decision.actions])
    assert kinds == [[(Hold, None)], [(Hold, None), (Expand, 3)]]
    assert decode(type(state), encode(state)) == state
    decision, _ = policy.decide(ClusterSnapshot(now_s=0.0, jobs=jobs, idle_nodes=3), state)
    assert isinstance(decision.actions[0], Start)
    assert updated(policy, patience="7").params == {"patience": 7}  # type: ignore[attr-defined]


def test_names_in_the_readme_exist() -> None:
    text = README.read_text(encoding="utf-8")
    (table,) = re.findall(r"\| policy \|.*?\n\n", text, re.DOTALL)
    listed = re.findall(r"^\| `([a-z-]+)`", table, re.MULTILINE)
    assert len(listed) == 18
    for name in listed:
        assert describe(name)["summary"]


def test_the_example_of_a_guard_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if "arbitrate" in block]
    exec(compile(code, str(README), "exec"), {})  # noqa: S102
    assert capsys.readouterr().out == (
        "8 nodes; power: in the end the decision leads to 4000 W, allowed are at most 2000 W, now it is "
        "1000\n"
    )
