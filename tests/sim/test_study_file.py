"""Files of studies: what is wrong in them is named with file, line and field."""

from __future__ import annotations

import textwrap
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from study_files import SMALL, write

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.study import file
from dask_hpc.sim.study.study import builtin_studies, load_study, run_study


def test_the_example_of_the_format_is_a_study(tmp_path: Path) -> None:
    text = str(file.__doc__).partition(".. code-block:: yaml\n\n")[2]
    example = load_study(write(tmp_path, textwrap.dedent(text)))
    assert example.name == "esp"
    assert example.sign_change == "malleable_share"


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
        (change("seed: [2, 3, 4]", "sed: [0]"), "line 7: vary.sed", "did you mean 'seed'"),
        (change("seed: [2, 3, 4]", "seed: {from: 3, to: 1}"), "line 7: vary.seed", "'to' at or above"),
        (change("seed: [2, 3, 4]", "option.jobs: [1]"), "line 7: vary.option.jobs", "no 'jobs' here"),
        (change("seed: [2, 3, 4]", "param.step: [far]"), "line 7: vary.param.step", "one of"),
        (change("baseline: fcfs", "baseline: easy"), "line 8: baseline", "none of fcfs, pwma"),
        (
            change("[makespan_s, mean_wait_s]", "[makespan]"),
            "line 9: metrics[0]",
            "did you mean 'makespan_s'",
        ),
        (change("paired: [makespan_s]", "paired: [commits]"), "paired[0]", "neither is the better"),
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


JUNK = (None, [], {}, 0, -1, float("nan"), float("inf"), "", "x", [1], {"a": 1}, True, 10**30, [None], [[]])


@pytest.mark.parametrize("name", builtin_studies())
def test_any_value_anywhere_is_read_or_refused(tmp_path: Path, name: str) -> None:
    whole = yaml.safe_load((files("dask_hpc.sim") / "studies" / f"{name}.yaml").read_text(encoding="utf-8"))
    path = tmp_path / "study.yaml"
    messages: list[str] = []
    for number, key in enumerate(whole):
        for shift in range(3):
            junk = JUNK[(5 * number + shift) % len(JUNK)]
            path.write_text(yaml.safe_dump({**whole, key: junk}), encoding="utf-8")
            try:
                load_study(path)
            except WorkloadError as error:
                messages.append(str(error))
    assert len(messages) > len(whole)
    assert all(message.startswith(str(path)) for message in messages)


def test_files_and_policies_lie_beside_the_study(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text("jobs: [{name: a, nodes: 2, runtime: 10 s}]\n", encoding="utf-8")
    (tmp_path / "own.yaml").write_text("policy: easy\nparams: {pick: front}\n", encoding="utf-8")
    text = "workload: jobs.yaml\npolicies: {own: own.yaml}\nset: {nodes: 4}\nmetrics: [makespan_s]\n"
    found = run_study(load_study(write(tmp_path, text)), jobs=1)
    assert found.study.name == "study"
    assert found.rows[0].workload == "jobs"
    assert found.rows[0].statistic("makespan_s") == 10
    assert found.runs[0].scenario.spec["params"]["pick"] == "front"
