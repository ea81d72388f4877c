"""Every benchmark works: a tiny run of each gives the rows it promises, and fails beyond its bar.

Times are not looked at.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import pays_off
import pytest
import rounds
import run
import shapes
from arrivals import Arrival
from distributed import LocalCluster
from outside import FORKED

from dask_hpc.demo.users import Served
from dask_hpc_policies import registry

HERE = Path(__file__).resolve().parent
SHARED = {
    "harness", "machine", "run", "in_kernel", "arrivals", "shapes", "one_user", "many_jobs", "trend_cells",
    "coupling_rank", "coupling_ranks", "coupling_keys", "trend_fallback", "spinning", "rounds",
    "instructions", "test_benchmarks",
}  # fmt: skip
SCRIPTS = sorted({path.stem for path in HERE.glob("*.py")} - SHARED)


#: Without a bar: they print figures alone.
FREE = {"adopt", "pool", "resize", "window"}
#: Counts and bytes, not times: even a tiny run on a busy machine is within its bars. All others are given a
#: bar that nobody can hold, so that what is said and the exit code depend on no noise.
EXACT = {"in_flight", "full_memory"}
IMPOSSIBLE = -1e9


@functools.cache
def report(name: str) -> dict[str, Any]:
    """What a tiny run of a benchmark prints; its exit code must be that of what it says."""
    repository = HERE.parents[1]
    roots = [str(repository / part) for part in (".", "policies", "widgets")]
    bar = [] if name in EXACT else [f"--bar={IMPOSSIBLE}"]
    done = subprocess.run(
        [sys.executable, str(HERE / f"{name}.py"), "--tiny", "--json", *bar],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(roots), **FORKED),
        capture_output=True,
        text=True,
        timeout=280,
    )
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    found: dict[str, Any] = json.loads(lines[-1])
    assert done.returncode == (0 if found["ok"] else 1), done.stderr
    return found


def rows(name: str, text: str) -> list[dict[str, Any]]:
    """The rows of a benchmark whose names contain `text`; at least one."""
    found = [row for row in report(name)["rows"] if text in row["name"]]
    assert found, f"{name} has no row with {text!r}"
    return found


#: Those whose rows are looked at below; a tiny run of all of them takes minutes.
QUICK = ("in_flight", "jobs", "policy_pass")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in SCRIPTS],
)
def test_a_benchmark_says_what_it_measured_and_where_and_fails_beyond_its_bar(name: str) -> None:
    found = report(name)

    assert found["benchmark"] == name
    assert found["rows"]
    assert found["environment"]["cpu"]
    assert found["environment"]["distributed"]
    for row in found["rows"]:
        assert row["unit"] or "ratio" in row["name"]
        if row["low"] is not None and row["high"] is not None and "p99" not in row["name"]:
            assert row["low"] <= row["high"]
    verdicts = {row["verdict"] for row in found["rows"] if row["bar"] is not None}
    assert verdicts == (set() if name in FREE else {"ok"} if name in EXACT else {"fail"})
    assert {row["verdict"] for row in found["rows"] if row["bar"] is None} <= {"info"}
    assert found["ok"] == (name in FREE | EXACT)


def test_a_figure_is_held_to_its_bar_and_to_the_limit_above_it() -> None:
    held = functools.partial(harness.row, "x", unit="us")
    verdicts = [held([value], bar=5.0, limit=10.0).verdict for value in (5.0, 5.1, 10.0, 10.1)]
    assert verdicts == ["ok", "short", "short", "fail"]
    assert held([5.1], bar=5.0).verdict == "fail"
    assert held([5.1]).verdict == "info"
    # the median of the repetitions counts
    assert held([1.0, 4.0, 99.0], bar=5.0).verdict == "ok"


def test_what_misses_its_bar_ends_a_benchmark_with_1_also_where_it_is_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["x.py", "--json"])
    for value, verdict in ((5.0, "ok"), (6.0, "short"), (11.0, "fail")):
        with pytest.raises(SystemExit) as ended:
            harness.main("x", "x", lambda _, v=value: [harness.row("x", [v], "us", bar=5.0, limit=10.0)])
        found = json.loads(capsys.readouterr().out)
        assert [row["verdict"] for row in found["rows"]] == [verdict]
        assert (ended.value.code, found["ok"]) == (int(verdict != "ok"), verdict == "ok")


def test_what_benchmarks_share_has_no_name_of_what_tests_share_with_them() -> None:
    tools = {path.stem for path in (HERE.parent / "tools").glob("*.py")}
    assert tools & {path.stem for path in HERE.glob("*.py")} == set()


def test_run_runs_every_benchmark_and_fails_when_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert sorted(run.BENCHMARKS) == SCRIPTS
    for name, code in (("first", 0), ("second", 1), ("third", 0)):
        (tmp_path / f"{name}.py").write_text(f"import sys\nprint('{name}', *sys.argv[1:])\nsys.exit({code})")
    for names, missed in ((("first", "third"), ""), (("first", "second", "third"), "second")):
        monkeypatch.setattr(run, "BENCHMARKS", tuple(str(tmp_path / name) for name in names))
        assert run.run(["--fast"]) == (1 if missed else 0)
        said = capfd.readouterr().out.split()
        assert [word for word in said if word in ("first", "second", "third")] == list(names)
        assert said.count("--fast") == len(names)
        assert said[-1] == (str(tmp_path / missed) if missed else "none")


@pytest.mark.parametrize("name", [pytest.param("hooks", marks=pytest.mark.slow), "jobs"])
def test_hooks_and_jobs_compare_with_stock_of_the_same_run(name: str) -> None:
    for row in rows(name, "workers x"):
        # a task costs the scheduler tens of microseconds, whoever measures
        assert 5 < row["stock"] < 5000


@pytest.mark.parametrize("name", ["hooks", "jobs"])
def test_instructions_are_not_counted_without_what_counts_them(name: str, tmp_path: Path) -> None:
    roots = os.pathsep.join(str(HERE.parents[1] / part) for part in (".", "policies", "widgets"))
    done = subprocess.run(
        [sys.executable, str(HERE / f"{name}.py"), "--tiny", "--instructions"],
        env=dict(os.environ, PYTHONPATH=roots, PATH=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "--instructions needs valgrind and callgrind_control; install valgrind" in done.stderr


def test_jobs_covers_roots_and_dependents_with_one_and_four_jobs_and_held_tasks() -> None:
    for text in ("1 job: root", "4 jobs: root", "pairs", "dependents", "a worker joins", "a worker pauses"):
        assert rows("jobs", text)


def test_no_worker_ever_has_more_in_flight_than_under_stock_queuing() -> None:
    for threads, bound in (("1 thread:", 2), ("4 threads:", 5)):
        for row in rows("in_flight", threads):
            assert row["value"] <= row["bar"]
            if "together" in row["name"]:
                # of tasks that wait for tokens, which stock does not know
                assert row["bar"] < row["stock"]
            else:
                assert row["stock"] == row["bar"] == bound


@pytest.mark.slow
def test_fairness_gives_a_ratio_for_each_backlog() -> None:
    for row in rows("fairness", "ratio"):
        assert row["value"] > 0


def test_every_builtin_policy_is_measured() -> None:
    measured = {row["name"].removeprefix("decide: ") for row in rows("policy_pass", "decide: ")}

    assert measured == set(registry.BUILTIN)
    assert all(row["value"] > 0 for row in rows("policy_pass", "tick, "))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resize", "adopt"])
def test_resize_and_adopt_give_times_above_nothing(name: str) -> None:
    assert all(row["value"] > 0 for row in report(name)["rows"])


@pytest.mark.slow
def test_window_times_every_step_up_and_down_and_compares_the_driver_with_plain_dask() -> None:
    for step in ("expand 1 to 2 nodes", "expand 2 to 3 nodes", "shrink 3 to 2 nodes", "shrink 2 to 1 nodes"):
        window, whole = rows("window", f"{step}: ")
        assert window["name"].endswith("begin to commit")
        # a window lies between the request and its outcome
        assert 0 < window["value"] < whole["value"]
    for row in rows("window", "step on"):
        assert row["value"] > 0
        assert row["stock"] > 0


@pytest.mark.slow
def test_pays_off_holds_its_scenarios_against_stock_and_the_oracle() -> None:
    for scenario in pays_off.TINY_SCENARIOS:
        assert any(row["bar"] is not None for row in rows("pays_off", f"{scenario}: fair: "))
        for way in ("stock", "fair"):
            assert rows("pays_off", f"{scenario}: {way}: mean turnaround")[0]["value"] > 0
    assert rows("pays_off", "three-users: oracle: mean turnaround")[0]["value"] > 0
    assert len(rows("pays_off", "three-users: fair: mean turnaround, ratio to")) == 2


@pytest.mark.parametrize(("asked", "possible"), [("--only", "three-users"), ("--policy", "pwma-fpsma")])
def test_a_scenario_or_policy_that_is_none_is_named_with_those_there_are(
    asked: str, possible: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    pays_off.arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([asked, f"{possible},wrong"])
    said = capsys.readouterr().err.splitlines()[-1]
    assert "'wrong' is none of" in said
    assert possible in said
    given = vars(parser.parse_args([asked, possible, asked, possible]))
    assert given[asked.removeprefix("--")] == [possible] * 2


def _run_of(**turnarounds_s: float) -> dict[str, Served]:
    return {
        name: Served(user=name, name=name, at_s=1.0, submitted_s=1.0, end_s=1.0 + took_s, results=())
        for name, took_s in turnarounds_s.items()
    }


def test_pays_off_compares_medians_and_the_worst_round() -> None:
    alone_s = {"long": 10.0, "short": 0.1}
    runs = pays_off.Runs(
        arrivals=(),
        by_way={
            "stock": [_run_of(long=10, short=10), _run_of(long=12, short=8), _run_of(long=20, short=20)],
            "fair": [_run_of(long=12, short=2), _run_of(long=10, short=2), _run_of(long=18, short=6)],
        },
        alone_s=alone_s,
    )

    mean, makespan, worst = [
        *runs.against("fair", "stock", pays_off.mean_turnaround_s, "mean", 0.5),
        *runs.against("fair", "stock", pays_off.makespan_s, "makespan", 1.0, each=1.05),
    ]

    # medians 7 of 7, 6, 12 and 10 of 10, 10, 20
    assert (mean.value, mean.low, mean.high, mean.verdict) == (0.7, 0.6, 0.7, "fail")
    assert (makespan.value, makespan.verdict) == (1.0, "ok")
    # the pairs 12 of 10, 10 of 12 and 18 of 20: a round may be long with stock, too
    assert (worst.value, worst.verdict) == (12 / 10, "fail")
    # a job that takes less than a second alone is held against a second
    assert runs.figures("fair", pays_off.worst_slowdown(alone_s)) == [2.0, 2.0, 6.0]


def _rounds_of(hangs: Sequence[tuple[str, int]], number: int = 3) -> list[list[harness.Row]]:
    """The rows of a scenario after each of its rounds; (way, run of it) that `hangs` names do not end."""
    runs: Counter[str] = Counter()

    def one(way: str, jobs: Any) -> dict[str, Served]:
        runs[way] += 1
        if (way, runs[way]) in hangs:
            raise TimeoutError("not finished after 300 s: job")
        return _run_of(**{job.name: float(runs[way]) for job in jobs})

    jobs = [Arrival(user="u", name=name, at_s=0.0, shape=shapes.sleeps, tasks=1, task_s=1.0) for name in "ab"]
    scenario = pays_off.Scenario(arrivals=jobs, rows=pays_off.pattern(), oracle=True)
    options = harness.Options("full", False, argparse.Namespace(rounds=number, nodes=rounds.NODES))
    ways = ["stock", "oracle", "fair"]
    told = rounds.measure(jobs, True, options, ways, one)
    return [pays_off.found_in(scenario, so_far, ways, ["fair"]) for so_far in told]


def _named(found: Sequence[harness.Row], text: str) -> harness.Row:
    (row,) = [row for row in found if row.name == text]
    return row


def test_a_round_in_which_a_way_hangs_is_left_out_and_named_and_the_others_are_kept() -> None:
    # stock's first two runs are those of the jobs alone: it hangs in the second round
    after = _rounds_of([("stock", 4)])
    assert len(after) == 3
    mean = "fair: mean turnaround, ratio to stock"
    assert [_named(found, mean).note for found in after] == [
        f"medians of {count}, in brackets the rounds" for count in (1, 1, 2)
    ]
    hung = _named(after[-1], "stock: runs that hung")
    assert (hung.value, hung.verdict) == (1, "info")
    assert hung.note == "round 2 of 3; left out of the figures of every way"
    assert not [row for row in after[0] if "hung" in row.name]


def test_a_way_of_ours_that_hangs_misses_its_bar() -> None:
    # ours has done each job once when the rounds begin, as stock has
    (*_, last) = _rounds_of([("fair", 3), ("fair", 4)])
    hung = _named(last, "fair: runs that hung")
    assert (hung.value, hung.verdict) == (2, "fail")
    assert _named(last, "fair: mean turnaround, ratio to stock").note.startswith("medians of 1,")


def test_a_job_alone_that_hangs_is_tried_again_and_without_it_there_are_no_figures() -> None:
    (*_, last) = _rounds_of([("stock", 1)])
    assert _named(last, "stock: runs that hung").note.startswith("a alone;")
    assert _named(last, "stock: mean turnaround").value > 0
    ((only,),) = _rounds_of([("stock", 1), ("stock", 2)])
    assert (only.name, only.value) == ("stock: runs that hung", 2)
    # every round hung: nothing to compare
    (*_, (only,)) = _rounds_of([("fair", number) for number in (3, 4, 5)])
    assert (only.name, only.value) == ("fair: runs that hung", 3)


def test_jobs_have_as_many_tasks_for_each_node_and_all_clusters_have_done_them_when_rounds_begin() -> None:
    ran: list[tuple[str, int]] = []

    def one(way: str, jobs: Any) -> dict[str, Served]:
        ran.extend((way, job.tasks) for job in jobs)
        return _run_of(**{job.name: 1.0 for job in jobs})

    job = Arrival(user="u", name="a", at_s=0.0, shape=shapes.sleeps, tasks=24, task_s=1.0)
    options = harness.Options("full", False, argparse.Namespace(rounds=1, nodes=2))
    assert len(list(rounds.measure([job], True, options, ["stock", "fair"], one))) == 1
    assert ran[:2] == [("stock", 8), ("fair", 8)]
    assert sorted(ran[2:]) == [("fair", 8), ("stock", 8)]


@pytest.mark.parametrize("text", ["0", "-1", "2.5", "two", ""])
def test_a_number_that_cannot_be_is_refused_before_anything_is_started(text: str) -> None:
    assert harness.counted("2") == 2
    with pytest.raises(argparse.ArgumentTypeError, match="no whole number from 1 on"):
        harness.counted(text)


def test_what_has_been_found_is_kept_as_the_parts_end_and_never_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "found.json"

    def run(options: harness.Options) -> list[harness.Row]:
        found = [harness.Row(name="first", value=1.0, unit="s")]
        options.write(found)
        assert [row["name"] for row in json.loads(kept.read_text())["rows"]] == ["first"]
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["it.py", "--write", str(kept)])
    with pytest.raises(KeyboardInterrupt):
        harness.main("it", "of two parts", run)
    assert json.loads(kept.read_text())["rows"][0]["value"] == 1.0
    # a report that cannot be written leaves the one before
    with pytest.raises(TypeError):
        harness.keep(kept, {"rows": object()})
    assert json.loads(kept.read_text())["rows"][0]["value"] == 1.0
    assert list(tmp_path.iterdir()) == [kept]


SHAPES = [
    shapes.sleeps, shapes.chain, shapes.pairs, shapes.tree, shapes.array, shapes.dataframe, shapes.learning,
    shapes.computing, shapes.wide_with_data,
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_users_who_submit_the_same_shape_share_no_task(shape: Any) -> None:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        cluster.get_client() as client,
    ):
        first = shape(client, 12, 0.0)
        client.gather(first)
        known = set(cluster.scheduler.tasks)
        second = shape(client, 12, 0.0)
        client.gather(second)
        assert known
        assert len(cluster.scheduler.tasks) >= 2 * len(known)
