"""Studies: what is run, what is compared with what, what is refused; the same whatever the processes."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.errors import WorkloadError
from dask_hpc.sim import Machine, Options, load, simulate
from dask_hpc.sim.machine import PUBLISHED
from dask_hpc.sim.study import StudyResult, load_study, run_study
from dask_hpc.sim.study_runs import scenarios
from dask_hpc.sim.study_turns import sign_changes
from dask_hpc.sim.workload import with_malleable_share
from dask_hpc_policies.registry import create

SMALL = """
name: small
workload: builtin:esp-10
policies:
  fcfs: {policy: fcfs, set: {malleable_share: 0}}
  pwma: pwma-fpsma
vary: {malleable_share: [0, 0.5, 1], seed: [0, 1, 2]}
baseline: fcfs
metrics: [makespan_s, mean_wait_s]
paired: [makespan_s]
sign_change: malleable_share
published:
  - {of: makespan_s, value: 38 min, at: {policy: pwma, malleable_share: 1}, source: somebody}
expect:
  - {at: {policy: fcfs}, that: makespan_s == 2871}
fast:
  set: {seed: 0}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return path


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


def test_an_interrupt_ends_the_processes(tmp_path: Path) -> None:
    before = set(multiprocessing.active_children())

    def interrupt(done: int, all: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(load_study(write(tmp_path, SMALL)), jobs=2, progress=interrupt)
    assert set(multiprocessing.active_children()) <= before


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
    assert [(row.workload, row.policy) for row in found.rows] == [("fits", "fcfs"), ("fits", "easy")]
    failures = found.failures
    assert len(failures) == 3
    assert failures[0].startswith(
        "run failed: fcfs on wide: WorkloadError: builtin:figure-5-1: job 'J1' needs"
    )
    assert failures[1].startswith("run failed: easy on wide")
    assert (
        "study.yaml, line 9: does not hold for fits, easy: makespan_s < 12 (makespan_s is 12)" in failures[2]
    )
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


def change(old: str, new: str) -> str:
    assert old in SMALL
    return SMALL.replace(old, new)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (change("metrics:", "metric:"), "line 9: metric", "unknown key"),
        (change("builtin:esp-10", "builtin:esp-11"), "line 3: workload", "did you mean 'esp-10'"),
        (change("builtin:esp-10", "jobs.swf"), "line 3: workload", "no such file"),
        (change("pwma-fpsma", "pwma-fspma"), "line 6: policies.pwma", "unknown policy 'pwma-fspma'"),
        (change("pwma-fpsma", "{policy: easy, params: {pick: last}}"), "policies.pwma.params", "first-fit"),
        (change("0.5, 1]", "0.5, 2]"), "line 7: vary.malleable_share[2]", "a number from 0 to 1"),
        (change("0.5, 1]", "0.5, 0.5]"), "line 7: vary.malleable_share", "given twice"),
        (change("seed: [0, 1, 2]", "sed: [0]"), "line 7: vary.sed", "did you mean 'seed'"),
        (change("seed: [0, 1, 2]", "seed: {from: 3, to: 1}"), "line 7: vary.seed", "'to' at or above"),
        (change("seed: [0, 1, 2]", "option.jobs: [1]"), "line 7: vary.option.jobs", "no 'jobs' here"),
        (change("seed: [0, 1, 2]", "param.step: [far]"), "line 7: vary.param.step", "one of"),
        (change("baseline: fcfs", "baseline: easy"), "line 8: baseline", "none of fcfs, pwma"),
        (
            change("[makespan_s, mean_wait_s]", "[makespan]"),
            "line 9: metrics[0]",
            "did you mean 'makespan_s'",
        ),
        (change("38 min", "soon"), "line 13: published[0].value", "expected a number"),
        (change("source: somebody", "source: "), "line 13: published[0]", "'source' is missing"),
        (change("== 2871", "= 2871"), "line 15: expect[0].that", "not understood"),
        (change("makespan_s == 2871", "makespan_s == 2 * makespan_s of easy"), "expect[0].that", "'easy'"),
        (change("at: {policy: fcfs}", "at: {polixy: fcfs}"), "expect[0].at.polixy", "no such factor"),
        (change("at: {policy: fcfs}", "at: {policy: easy}"), "expect[0].at.policy", "none of fcfs, pwma"),
        (change("name: small", "workloads: {a: builtin:esp}"), "study.yaml", "'workload' or 'workloads'"),
        (change("pwma: pwma", "'1 x': pwma"), "line 6: policies.1 x", "is no name"),
        (change("set: {malleable_share: 0}", "set: {param.pick: front}"), "set.param.pick", "no 'pick' here"),
        (change("vary:", "set: {seed: 1}\nvary:"), "vary.seed", "also under 'set'"),
        ("name: [", "line 1", "no YAML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_line_and_field(
    tmp_path: Path, text: str, place: str, message: str
) -> None:
    with pytest.raises(WorkloadError) as error:
        load_study(write(tmp_path, text))
    assert str(error.value).startswith(str(tmp_path / "study.yaml"))
    assert place in str(error.value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_overrides_are_checked_too(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"^--set: seed: expected a whole number from 0"):
        load_study(write(tmp_path, SMALL), overrides={"seed": -1})


def test_too_many_runs_are_refused(tmp_path: Path) -> None:
    overrides = {"seed": range(1000), "option.time_scale": range(1, 1000)}
    with pytest.raises(WorkloadError, match="has 999000 runs or more; at most 100000"):
        run_study(load_study(write(tmp_path, SMALL), overrides=overrides))


def test_files_and_policies_lie_beside_the_study(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text("jobs: [{name: a, nodes: 2, runtime: 10 s}]\n", encoding="utf-8")
    (tmp_path / "own.yaml").write_text("policy: easy\nparams: {pick: front}\n", encoding="utf-8")
    text = "workload: jobs.yaml\npolicies: {own: own.yaml}\nset: {nodes: 4}\nmetrics: [makespan_s]\n"
    found = run(tmp_path, text)
    assert found.study.name == "study"
    assert found.rows[0].workload == "jobs"
    assert found.rows[0].statistic("makespan_s") == 10
    assert found.runs[0].scenario.spec["params"]["pick"] == "front"
