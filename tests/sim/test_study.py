"""Studies: what is run, what is compared with what, what is refused; the same whatever the processes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from study_files import SMALL, write

from dask_hpc.errors import WorkloadError
from dask_hpc.sim import Machine, Options, load, simulate
from dask_hpc.sim.model.machine import PUBLISHED
from dask_hpc.sim.model.workload import with_malleable_share
from dask_hpc.sim.study.figure import study_figure
from dask_hpc.sim.study.metrics import jobs_per_node
from dask_hpc.sim.study.results import Pair, sign_changes
from dask_hpc.sim.study.runs import scenarios
from dask_hpc.sim.study.study import StudyResult, load_study, run_study
from dask_hpc.sim.study.study import write as write_results
from dask_hpc_policies.metrics import JobRun
from dask_hpc_policies.registry import create


def run(folder: Path, text: str = SMALL, jobs: int = 1, **options: Any) -> StudyResult:
    return run_study(load_study(write(folder, text), **options), jobs=jobs)


def test_every_run_is_what_the_simulator_gives_for_it(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert [(row.policy, dict(row.factors), len(row.runs)) for row in found.rows] == [
        ("fcfs", {}, 3),
        ("pwma", {"malleable_share": 0.0}, 3),
        ("pwma", {"malleable_share": 0.5}, 3),
        ("pwma", {"malleable_share": 1.0}, 3),
    ]
    for run_ in found.runs:
        share, seed = run_.scenario.settings["malleable_share"], run_.scenario.settings["seed"]
        work = with_malleable_share(load("builtin:esp-10", seed=seed), share, seed, 16)
        policy = "fcfs" if run_.scenario.policy == "fcfs" else "pwma-fpsma"
        metrics = simulate(work, policy).metrics(jobs=False)
        assert run_.values == {name: metrics[name] for name in ("makespan_s", "mean_wait_s")}


def test_rows_are_medians_and_changes_are_run_by_run(tmp_path: Path) -> None:
    found = run(tmp_path)
    fcfs, _, half, whole = found.rows
    values = sorted(one.values["makespan_s"] for one in half.runs)
    assert half.statistic("makespan_s") == values[1]
    assert half.statistic("makespan_s", "lowest") == values[0]
    assert half.statistic("makespan_s", "highest") == values[2]
    assert half.statistic("makespan_s", "mean") == pytest.approx(sum(values) / 3)
    assert half.statistic("makespan_s", "change") == pytest.approx(100 * (values[1] / 2871 - 1))
    assert whole.statistic("makespan_s", "better") == 100.0
    assert f"  {values[0]:.2f} {values[2]:.0f}  " in found.table(), "from the lowest to the highest"
    assert fcfs.pairs == ()
    assert fcfs.statistic("makespan_s", "change") is None
    beside = found.published[0]
    assert beside.published == 38 * 60
    assert beside.ours == whole.statistic("makespan_s")


def test_the_number_of_processes_changes_nothing(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    study = load_study(write(tmp_path, SMALL))
    alone = run_study(study, jobs=1)
    others = run_study(study, jobs=3, progress=lambda done, all: steps.append((done, all)))
    assert json.dumps(alone.to_json()) == json.dumps(others.to_json())
    assert alone.table() == others.table()
    assert steps == [(number, 12) for number in range(1, 13)]


#: The second run would go on for longer than any test may take.
ENDLESS = """
workloads:
  short: builtin:figure-5-1
  endless: {source: builtin:poisson, set: {option.jobs: 1000000, option.load: 5, option.nodes: 1000}}
policies: {conservative: conservative}
"""


def processes() -> set[psutil.Process]:
    there = [one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE]
    return {one for one in there if "dask_hpc.processes" in one.cmdline()}


def test_an_interrupt_ends_the_processes(tmp_path: Path) -> None:
    seen: list[set[psutil.Process]] = []

    def interrupt(done: int, all: int) -> None:
        seen.append(processes())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(load_study(write(tmp_path, ENDLESS)), jobs=2, progress=interrupt)
    assert seen[0]
    assert processes() == set()


FAILING = """
workloads:
  fits: builtin:figure-5-1
  wide: {source: builtin:figure-5-1, set: {nodes: 4}}
policies: {fcfs: fcfs, easy: easy}
metrics: [makespan_s]
expect:
  - {that: makespan_s == 12}
  - {at: {policy: easy}, that: [makespan_s < 12, makespan_s == makespan_s of fcfs]}
"""


def test_a_run_that_fails_is_named_and_the_others_are_done(tmp_path: Path) -> None:
    found = run(tmp_path, FAILING)
    rows = [(row.workload, row.policy, len(row.runs)) for row in found.rows]
    assert rows == [("fits", "fcfs", 1), ("fits", "easy", 1), ("wide", "fcfs", 0), ("wide", "easy", 0)]
    failures = found.failures
    assert len(failures) == 2
    assert failures[0].startswith("run failed: fcfs on wide: builtin:figure-5-1: job 'J1' needs")
    assert failures[0].endswith("(1 more for the same reason)")
    assert (
        "study.yaml, line 9: does not hold for fits, easy: makespan_s < 12 (makespan_s is 12)" in failures[1]
    )
    assert {one.ok for one in found.conditions if one.place["workload"] == "wide"} == {None}
    assert "error" in found.to_json()["runs"][2]


def test_parameters_vary_for_the_policies_that_have_them(tmp_path: Path) -> None:
    text = """
workload: builtin:io-aware
policies: {base: fcfs-malleable, aware: {policy: io-aware, params: {unfitting: skip}}}
set: {option.jobs: 30}
vary: {param.reordering: [0.2, 0.8]}
baseline: base
metrics: [mean_checkpoint_s]
"""
    found = run(tmp_path, text)
    assert [(row.policy, dict(row.factors)) for row in found.rows] == [
        ("base", {}),
        ("aware", {"param.reordering": 0.2}),
        ("aware", {"param.reordering": 0.8}),
    ]
    for row in found.rows[1:]:
        policy = create("io-aware", unfitting="skip", reordering=row.factors["param.reordering"])
        metrics = simulate(load("builtin:io-aware", jobs=30), policy).metrics(jobs=False)
        assert row.statistic("mean_checkpoint_s") == metrics["mean_checkpoint_s"]
        assert row.pairs[0].baseline == found.rows[0].runs[0].values


@pytest.mark.parametrize(
    ("policy", "decision_latency", "matter"),
    [
        # a policy that waits for a second pass before it resizes is the one that ticks are for
        ("calm", 3, {"tick"}),
        ("pwma-egs", 3, {"malleable_share", "adaptation", "decision_latency", "nodes", "seed"}),
        # while an answer is on its way nothing else is decided, so that locks hardly matter
        ("pwma-egs", 0, {"lock"}),
    ],
)
def test_settings_reach_the_run(tmp_path: Path, policy: str, decision_latency: int, matter: set[str]) -> None:
    settings = {
        "malleable_share": "0.8", "tick": "45 s", "adaptation": "published", "lock": "system",
        "decision_latency": f"{decision_latency} s", "nodes": "20", "seed": "1",
    }  # fmt: skip

    def measured(given: dict[str, str]) -> dict[str, Any]:
        lines = ", ".join(f"{name}: {value}" for name, value in given.items())
        text = f"workload: builtin:esp-10\npolicies: {{a: {policy}}}\nset: {{{lines}}}\n"
        return dict(run(tmp_path, text + "metrics: [resize_s, mean_wait_s, makespan_s]").runs[0].values)

    found = measured(settings)
    work = with_malleable_share(load("builtin:esp-10"), 0.8, 1, 20)
    machine = Machine(nodes=20, adaptation=PUBLISHED)
    options = Options(seed=1, tick_s=45.0, decision_s=decision_latency, lock="system")
    metrics = simulate(work, policy, machine=machine, options=options).metrics(jobs=False)
    assert found == {name: metrics[name] for name in found}
    for name in matter:
        fewer = {key: value for key, value in settings.items() if key != name}
        assert measured(fewer) != found, name


def test_overrides_and_the_short_form_take_the_place_of_values(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    short = load_study(path, fast=True, overrides={"malleable_share": [0.5], "option.time_scale": 2})
    todo = scenarios(short, ("makespan_s",))
    assert [(one.policy, dict(one.settings)) for one in todo] == [
        ("fcfs", {"malleable_share": 0.0, "seed": 0, "option.time_scale": 2.0}),
        ("pwma", {"malleable_share": 0.5, "seed": 0, "option.time_scale": 2.0}),
    ]
    assert set(short.changed) == {"seed", "malleable_share", "option.time_scale"}
    # what only a workload has is changed there
    ten = load_study("builtin:esp-10", overrides={"option.which": range(2, 4)})
    assert [one.vary.get("option.which") for one in ten.workloads] == [None, (2, 3), None, None]
    assert "option.which" not in ten.vary
    todo = scenarios(ten, ())
    assert {one.settings.get("option.which") for one in todo if one.workload == "one"} == {2, 3}
    assert {one.settings.get("option.which") for one in todo if one.workload != "one"} == {None}


def test_an_override_wins_over_what_is_fixed_and_loses_to_what_a_policy_fixes(tmp_path: Path) -> None:
    text = SMALL.replace("vary: {", "set: {option.time_scale: 3, nodes: 20}\nvary: {")
    study = load_study(write(tmp_path, text), overrides={"option.time_scale": 2, "malleable_share": 0.25})
    settings = [one.settings for one in scenarios(study, ())]
    assert {one["option.time_scale"] for one in settings} == {2.0}
    assert {one["nodes"] for one in settings} == {20}
    assert [one["malleable_share"] for one in settings] == [0.0] * 3 + [0.25] * 3


def test_the_short_form_may_have_conditions_of_its_own(tmp_path: Path) -> None:
    path = write(
        tmp_path, SMALL.replace("  set: {seed: 0}", "  set: {seed: 0}\n  expect: [{that: makespan_s > 1}]")
    )
    assert [one.that[0].text for one in load_study(path, fast=True).expect] == ["makespan_s > 1"]
    assert [one.that[0].text for one in load_study(path).expect] == ["makespan_s == 2871"]


def test_a_policy_that_fixes_a_factor_is_compared_at_that_value(tmp_path: Path) -> None:
    text = """
workload: builtin:esp-10
policies: {pwma: pwma-fpsma, egs: {policy: pwma-egs, set: {malleable_share: 1}}}
vary: {malleable_share: [0, 1]}
baseline: pwma
metrics: [mean_wait_s]
"""
    none, whole, egs = run(tmp_path, text).rows
    assert none.statistic("mean_wait_s") != whole.statistic("mean_wait_s")
    assert [pair.baseline["mean_wait_s"] for pair in egs.pairs] == [whole.statistic("mean_wait_s")]


def test_conditions_on_rows_that_an_override_took_away_are_not_checked(tmp_path: Path) -> None:
    text = SMALL.replace("{policy: fcfs}, that", "{policy: pwma, malleable_share: 1}, that")
    assert run(tmp_path, text).conditions[0].ok is False
    found = run(tmp_path, text, overrides={"malleable_share": 0.5})
    assert [one.ok for one in found.conditions] == [None]
    assert found.failures == []
    assert "1 not checked" in found.table()
    nobody = SMALL.replace("{policy: fcfs}, that", "{policy: fcfs, malleable_share: 0}, that")
    assert "no row for fcfs, malleable_share 0" in run(tmp_path, nobody).failures[0]


def test_the_sign_turns_where_the_line_crosses_zero() -> None:
    assert sign_changes([(0.0, 10.0), (0.5, 5.0), (1.0, -15.0)]) == [0.625]
    assert sign_changes([(0.0, 1.0), (1.0, 0.0), (2.0, 0.0), (3.0, -1.0)]) == [1.0]
    assert sign_changes([(0.0, 1.0), (1.0, 0.0), (2.0, 1.0)]) == []
    assert sign_changes([(0.0, -1.0), (1.0, 1.0), (2.0, -1.0)]) == [0.5, 1.5]
    assert sign_changes([]) == []


@given(st.lists(st.floats(-100, 100).filter(lambda y: abs(y) > 1e-3), min_size=2, max_size=8))
def test_there_is_a_turn_between_any_two_neighbours_of_unlike_sign(values: list[float]) -> None:
    found = sign_changes(list(enumerate(values)))
    expected = [i for i in range(len(values) - 1) if (values[i] < 0) != (values[i + 1] < 0)]
    assert [int(at) for at in found] == expected


def test_turns_are_found_per_policy_and_metric(tmp_path: Path) -> None:
    found = run(tmp_path)
    by = {turn.metric: turn for turn in found.turns}
    assert set(by) == {"makespan_s", "mean_wait_s"}
    assert by["makespan_s"].first == 0
    assert by["makespan_s"].last == pytest.approx(-21.8, abs=0.1)
    assert dict(by["makespan_s"].place) == {"workload": "esp-10", "policy": "pwma"}


def test_too_many_runs_are_refused(tmp_path: Path) -> None:
    overrides = {"seed": range(1000), "option.time_scale": range(1, 1000)}
    with pytest.raises(WorkloadError, match="has 999000 runs or more; at most 100000"):
        run_study(load_study(write(tmp_path, SMALL), overrides=overrides))


def test_a_process_that_dies_is_said_to_have(tmp_path: Path) -> None:
    def kill(done: int, all: int) -> None:
        for process in processes():
            process.kill()

    found = run_study(load_study(write(tmp_path, ENDLESS)), jobs=2, progress=kill)
    assert [bool(one.error) for one in found.runs] == [False, True]
    assert "was there enough memory" in found.failures[0]
    assert "--jobs 1" in found.failures[0]
    assert [row.workload for row in found.rows if row.runs] == ["short"]


def test_jobs_per_node_counts_how_often_a_node_is_given() -> None:
    steps = ((0.0, 4), (5.0, 2), (8.0, 6), (9.0, 0))
    runs = (
        JobRun(id="a", submit_s=0.0, nodes=steps),
        JobRun(id="b", submit_s=0.0, nodes=((1.0, 3), (2.0, 0))),
    )
    assert jobs_per_node(runs, 4) == (4 + 4 + 3) / 4


def test_a_run_without_a_metric_has_no_value(tmp_path: Path) -> None:
    text = SMALL.replace("[makespan_s, mean_wait_s]", "[mean_checkpoint_s, jobs_per_node, restarts]")
    found = run(tmp_path, text)
    assert found.rows[1].statistic("mean_checkpoint_s") is None
    assert found.rows[1].statistic("mean_checkpoint_s", "change") is None
    assert found.rows[1].statistic("mean_checkpoint_s", "better") is None
    # nothing restarts: there is no change against 0
    assert found.rows[1].statistic("restarts", "change") is None
    assert (found.rows[1].statistic("jobs_per_node") or 0) > 1
    assert found.table()


def test_more_of_some_metrics_is_better() -> None:
    def verdict(metric: str, value: float, baseline: float) -> str | None:
        return Pair(factors={}, values={metric: value}, baseline={metric: baseline}).verdict(metric)

    assert verdict("makespan_s", 1.0, 2.0) == verdict("utilization", 2.0, 1.0) == "better"
    assert verdict("makespan_s", 2.0, 1.0) == verdict("utilization", 1.0, 2.0) == "worse"
    assert verdict("makespan_s", 1.0, 1.0) == verdict("utilization", 1.0, 1.0) == "equal"


def test_pairs_that_are_not_better_are_listed(tmp_path: Path) -> None:
    text = run(tmp_path).table()
    assert "pwma, malleable_share 0, equal in: malleable_share 0, seed 2; malleable_share 0, seed 3" in text
    assert "pwma, malleable_share 1" in text
    assert "pwma, malleable_share 1, worse in" not in text


def test_figures_along_a_factor_mark_what_was_published(tmp_path: Path) -> None:
    study_figure(run(tmp_path), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "<!-- published -->" in text
    assert "<!-- malleable_share -->" in text
    with pytest.raises(WorkloadError, match="cannot be written"):
        write_results(run(tmp_path), tmp_path / "a.svg")


def test_a_study_of_any_name_is_drawn(tmp_path: Path) -> None:
    found = run(tmp_path)
    named = replace(found, study=replace(found.study, name="cost $5_{a$ and $6$"))
    study_figure(named, tmp_path / "a.png")
    assert (tmp_path / "a.png").exists()
