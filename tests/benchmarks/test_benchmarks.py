"""Every benchmark works: a tiny run of each gives the rows it promises. Times are not looked at."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dask_hpc_policies import registry

HERE = Path(__file__).resolve().parent
SHARED = {"harness", "machine", "run", "in_kernel", "test_benchmarks"}
SCRIPTS = sorted({path.stem for path in HERE.glob("*.py")} - SHARED)


@functools.cache
def report(name: str) -> dict[str, Any]:
    """What a tiny run of a benchmark prints."""
    repository = HERE.parents[1]
    roots = [str(repository / part) for part in (".", "policies", "widgets")]
    done = subprocess.run(
        [sys.executable, str(HERE / f"{name}.py"), "--tiny", "--json"],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(roots)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    # 1 says that a bar was missed, which a tiny run on a busy machine may well do
    assert done.returncode in (0, 1), done.stderr
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    found: dict[str, Any] = json.loads(lines[-1])
    assert done.returncode == (0 if found["ok"] else 1)
    return found


def rows(name: str, text: str) -> list[dict[str, Any]]:
    """The rows of a benchmark whose names contain `text`; at least one."""
    found = [row for row in report(name)["rows"] if text in row["name"]]
    assert found, f"{name} has no row with {text!r}"
    return found


#: Those that start several kernels and clusters.
SLOW = {"panel", "what_if"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in SCRIPTS]
)
def test_a_benchmark_says_what_it_measured_and_where(name: str) -> None:
    found = report(name)

    assert found["benchmark"] == name
    assert found["rows"]
    assert found["environment"]["cpu"]
    assert found["environment"]["distributed"]
    for row in found["rows"]:
        assert row["unit"] or "ratio" in row["name"]
        assert (row["bar"] is None) == (row["verdict"] == "info")
        if row["low"] is not None and row["high"] is not None and "p99" not in row["name"]:
            assert row["low"] <= row["high"]
    assert found["ok"] == all(row["verdict"] != "fail" for row in found["rows"])


def test_run_runs_every_benchmark() -> None:
    text = (HERE / "run.py").read_text()

    assert all(f'"{name}"' in text for name in SCRIPTS)


def test_hooks_and_jobs_compare_with_stock_of_the_same_run() -> None:
    for name in ("hooks", "jobs"):
        for row in rows(name, "workers x"):
            # a task costs the scheduler tens of microseconds, whoever measures
            assert 5 < row["stock"] < 5000


def test_jobs_covers_roots_and_dependents_with_one_and_four_jobs_and_held_tasks() -> None:
    for text in ("1 job: root", "4 jobs: root", "pairs", "dependents", "a worker joins", "a worker pauses"):
        assert rows("jobs", text)


def test_no_worker_ever_has_more_in_flight_than_under_stock_queuing() -> None:
    for threads, bound in (("1 thread:", 2), ("4 threads:", 5)):
        for row in rows("in_flight", threads):
            assert row["stock"] == bound
            assert row["value"] <= bound


def test_fairness_gives_a_ratio_for_each_backlog() -> None:
    for row in rows("fairness", "ratio"):
        assert row["value"] > 0
        assert row["bar"] == 1.5


def test_every_builtin_policy_is_measured() -> None:
    measured = {row["name"].removeprefix("decide: ") for row in rows("policy_pass", "decide: ")}

    assert measured == set(registry.BUILTIN)
    assert all(row["value"] > 0 for row in rows("policy_pass", "tick, "))


def test_resize_adopt_and_pool_give_times_above_nothing() -> None:
    for name in ("resize", "adopt", "pool"):
        assert all(row["value"] > 0 for row in report(name)["rows"])


def test_window_times_every_step_up_and_down_and_compares_the_driver_with_plain_dask() -> None:
    for step in ("expand 1 to 2 nodes", "expand 2 to 3 nodes", "shrink 3 to 2 nodes", "shrink 2 to 1 nodes"):
        window, whole = rows("window", f"{step}: ")
        assert window["name"].endswith("begin to commit")
        # a window lies between the request and its outcome
        assert 0 < window["value"] < whole["value"]
    for row in rows("window", "step on"):
        assert row["value"] > 0
        assert row["stock"] > 0
