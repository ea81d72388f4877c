"""Our YAML workloads: what the documented example means, and one error with file, line and field."""

from __future__ import annotations

import gzip
import inspect
import textwrap
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.errors import WorkloadError
from dask_hpc.sim import simulate
from dask_hpc.sim.formats import trace_file, yaml_file
from dask_hpc.sim.formats.yaml_file import parse
from dask_hpc.sim.model.job import (
    Compute,
    Delay,
    Job,
    Repeat,
    Request,
    SchedulingPoint,
    Transfer,
    amdahl,
    amount,
    computing_s,
    power_law,
)
from dask_hpc.trace.files import read_trace
from dask_hpc_policies.jobs.jobspec import job_spec_from_mapping
from dask_hpc_policies.model import JobFacts
from dask_hpc_policies.views import values_of


def documented() -> str:
    """The example in the documentation of the format."""
    doc = inspect.getdoc(yaml_file) or ""
    block = doc.split(".. code-block:: yaml", 1)[1].split("Further keys", 1)[0]
    return textwrap.dedent(block)


def one(text: str) -> Job:
    (job,) = parse("machine: {nodes: 16}\njobs:\n- {name: a, " + text + "}", "w.yaml").jobs
    return job


def test_the_documented_example() -> None:
    workload = parse(documented(), "example.yaml")
    assert (workload.name, len(workload.jobs)) == ("two-applications", 4)
    assert workload.machine is not None
    assert (workload.machine.nodes, workload.machine.file_system_bytes_s) == (16, 48e9)
    assert [(job.id, job.submit_s) for job in workload.jobs] == [
        ("solver", 0), ("heat", 60), ("heat-2", 160), ("heat-3", 260),
    ]  # fmt: skip
    heat = workload.jobs[1]
    assert (heat.kind, heat.nodes, heat.min_nodes, heat.max_nodes) == ("malleable", 4, 2, 8)
    assert (heat.walltime_s, heat.application, heat.data_bytes) == (1800, "heat", 8e9)
    assert heat.speed == amdahl(0.05)
    assert computing_s(heat, 4) == 700
    assert computing_s(heat, 8) == pytest.approx(700 * (0.05 + 0.95 / 8) / (0.05 + 0.95 / 4))
    solver = workload.jobs[0].program
    assert solver is not None
    assert solver.resize == "points"
    (repeat,) = solver.stages
    assert isinstance(repeat, Repeat)
    compute, write, point = repeat.stages
    assert isinstance(compute, Compute)
    assert isinstance(write, Transfer)
    assert isinstance(point, SchedulingPoint)
    assert (repeat.times, compute.work, write.purpose) == (10, 400, "checkpoint")
    assert [amount(write.size_bytes, n) for n in (1, 4)] == [2e9, 8e9]


def test_kinds_of_jobs() -> None:
    table = {
        "nodes: 4, runtime: 9": ("rigid", 4, 4, 4),
        "nodes: 4, min_nodes: 2, runtime: 9": ("malleable", 4, 2, 16),
        "nodes: 4, min_nodes: 2, max_nodes: 8, rigid: true, runtime: 9": ("rigid", 4, 4, 4),
        "max_nodes: 8, runtime: 9, reference_nodes: 2": ("malleable", None, 1, 8),
        "max_nodes: 9, constraint: pof2, runtime: 9, reference_nodes: 2": ("malleable", None, 1, 8),
        "rigid: true, runtime: 9, reference_nodes: 2": ("moldable", None, 1, 16),
        "min_nodes: 2, max_nodes: 8, evolving: true, stages: [{compute: 1}, {request: 4}]": (
            "evolving", None, 2, 8,
        ),
        # too wide for the machine: refused when it is simulated
        "nodes: 99, runtime: 9": ("rigid", 99, 99, 99),
    }  # fmt: skip
    for text, expected in table.items():
        job = one(text)
        assert (job.kind, job.nodes, job.min_nodes, job.max_nodes) == expected, text


def test_speed_ups() -> None:
    assert one("nodes: 2, runtime: 8, speedup: {power-law: 0.5}").speed == power_law(0.5)
    assert computing_s(one("nodes: 2, runtime: 8"), 4) == 4
    table = one("nodes: 4, min_nodes: 1, speedup: {runtimes: {1: 100 s, 4: 40, 8: 1 min}}")
    assert [computing_s(table, n) for n in (1, 4, 8)] == pytest.approx([100, 40, 60])
    assert one("max_nodes: 4, runtime: 8, reference_nodes: 2").reference_nodes == 2


def test_further_keys() -> None:
    job = one(
        "id: x, nodes: 2, runtime: 1e2, user: u, application: app, io_intensity: 0.5, priority: 3, "
        "io_by_nodes: {4: 0.6, 2: 0.5}, checkpoint_interval: 10 min, data_bytes: 1e9, submit: 2 min"
    )
    assert (job.id, job.user, job.application, job.priority) == ("x", "u", "app", 3)
    assert (job.runtime_s, job.submit_s, job.data_bytes) == (100, 120, 1e9)
    assert (job.io_intensity, job.io_by_nodes) == (0.5, ((2, 0.5), (4, 0.6)))
    assert job.checkpoint_interval_s == 600
    assert (
        one("min_nodes: 1, max_nodes: 4, preferred_nodes: 3, runtime: 9, reference_nodes: 1").preferred_nodes
        == 3
    )


def test_stages() -> None:
    program = one(
        "min_nodes: 2, max_nodes: 4, stages: [{compute: 100 / nodes^0.5}, {read: 5e9, participants: 1}, "
        "{delay: 1 min}, {delay: nodes * 2}, {request: 2 * nodes}, {point: }]"
    ).program
    assert program is not None
    assert program.resize == "anytime"
    compute, read, minute, delay, request, point = program.stages
    assert isinstance(compute, Compute)
    assert isinstance(read, Transfer)
    assert isinstance(minute, Delay)
    assert isinstance(delay, Delay)
    assert isinstance(request, Request)
    assert isinstance(point, SchedulingPoint)
    assert amount(compute.work, 4) == 50
    assert (read.direction, read.participants, minute.seconds) == ("read", 1, 60)
    assert [amount(delay.seconds, n) for n in (2, 4)] == [4, 8]
    # cut to the sizes of the job
    assert [amount(request.nodes, n) for n in (2, 3, 4)] == [4, 4, 4]


def test_a_job_overrides_its_application() -> None:
    text = """
        machine: {nodes: 8}
        applications:
          a: {runtime: 10, speedup: {amdahl: 0.5}, checkpoint_interval: 5}
        jobs:
        - {name: x, nodes: 2, application: a}
        - {name: x, nodes: 2, application: a, runtime: 20, speedup: linear}
    """
    first, second = parse(textwrap.dedent(text), "w").jobs
    assert (first.id, first.runtime_s, first.speed.kind, first.checkpoint_interval_s) == (
        "x",
        10,
        "amdahl",
        5,
    )
    assert (second.id, second.runtime_s, second.speed.kind) == ("x-2", 20, "linear")


HEAD = "machine:\n  nodes: 16\njobs:\n- name: a\n  nodes: 4\n"
BAD = [
    ("  runtime: soon\n", "line 6: jobs[0].runtime: 'soon' is not a duration"),
    ("  runtime: -3\n", "line 6: jobs[0].runtime"),
    ("  runtime: .inf\n", "line 6: jobs[0].runtime"),
    ("  runtime: 1e30\n", "line 6: jobs[0].runtime: expected a duration of at least 0 s"),
    ("", "line 4: jobs[0]: a job needs a runtime, stages"),
    ("  runtime: 9\n  nodse: 3\n", "line 7: jobs[0].nodse: unknown key; known keys: name"),
    ("  runtime: 9\n  nodes: 4\n", "line 7: jobs[0].nodes: the key is given twice"),
    ("  runtime: 9\n  min_nodes: 5\n", "line 5: jobs[0].nodes: job 'a': nodes=4 must be at least"),
    ("  runtime: 9\n  max_nodes: 0\n", "line 7: jobs[0].max_nodes: job 'a': max_nodes=0 must be"),
    ("  runtime: 9\n  constraint: oddd\n", "line 7: jobs[0].constraint: job 'a': constraint='oddd'"),
    ("  runtime: 9\n  constraint: odd\n", "line 5: jobs[0].nodes: job 'a': nodes=4 is not legal under"),
    ("  runtime: 9\n  walltime: 0\n", "line 7: jobs[0].walltime: job 'a': walltime"),
    ("  runtime: 9\n  walltime: 1e300\n", "line 7: jobs[0].walltime: expected a duration of at most"),
    ("  runtime: 9\n  priority: high\n", "line 7: jobs[0].priority: job 'a': priority='high'"),
    ("  runtime: 9\n  submit: 2020-01-01\n", "line 7: jobs[0].submit: '2020-01-01' is a timestamp, which"),
    ("  runtime: 9\n  speedup: {amdal: 1}\n", "line 7: jobs[0].speedup.amdal: unknown key"),
    ("  runtime: 9\n  speedup: {amdahl: 2}\n", "line 7: jobs[0].speedup.amdahl: expected a number"),
    ("  runtime: 9\n  speedup: fast\n", "line 7: jobs[0].speedup: expected linear, {amdahl"),
    ("  speedup: {runtimes: {0: 1}}\n", "the key '0' is no number of nodes"),
    ("  speedup: {runtimes: {}}\n", "line 6: jobs[0].speedup.runtimes: is empty"),
    ("  runtime: 9\n  count: 2000000\n", "line 7: jobs[0].count: expected a whole number from 1"),
    ("  runtime: 9\n  count: 2\n  id: x\n", "line 8: jobs[0].id: an id is of one job"),
    ("  runtime: 9\n  evolving: true\n", "line 7: jobs[0].evolving: an evolving job needs min_nodes"),
    ("  runtime: 9\n  resize: points\n", "line 7: jobs[0].resize: is for jobs with stages"),
    ("  runtime: 9\n  stages: [{compute: 1}]\n", "line 6: jobs[0].runtime: a job has a runtime or stages"),
    ("  stages:\n  - compute: 1\n  - wrote: 2\n", "line 8: jobs[0].stages[1]: a stage has one of the keys"),
    ("  stages:\n  - {compute: 1, write: 2}\n", "line 7: jobs[0].stages[0]: a stage has one of"),
    ("  stages:\n  - {compute: 1, purpose: x}\n", "line 7: jobs[0].stages[0].purpose: unknown key"),
    ("  stages:\n  - compute: nods\n", "line 7: jobs[0].stages[0].compute: 'nods': unknown name 'nods'"),
    ("  stages:\n  - compute: 1/(nodes-4)\n", "divides by zero for nodes = 4"),
    ("  stages:\n  - point: 3\n  - compute: 1\n", "line 7: jobs[0].stages[0].point: expected nothing"),
    ("  stages:\n  - point:\n", "line 6: jobs[0].stages: no stage takes any time"),
    ("  stages:\n  - repeat: 1e9\n    stages: [{delay: 1}]\n", "may have 1e+09 steps; at most 10000000"),
    ("  stages:\n  - write: 1\n    participants: 5\n", "participants: 5 of 4 nodes; it must"),
    ("  runtime: 9\n- 3\n", "line 7: jobs[1]: expected a mapping"),
    ("  runtime: 9\n  id: x\n- {id: x, name: b, nodes: 1, runtime: 1}\n", "'x' is also the id of jobs[0].id"),
    ("  runtime: 9\n  tag: !!python/object:os.system x\n", "which is not read"),
    ("  runtime: [9\n", "line 7, column 1: no YAML"),
    ("  runtime: 9\n  ? [a]\n  : 1\n", "line 7: jobs[0]: the key"),
    ("  runtime: 9\nmachines: 3\n", "line 7: machines: unknown key; known keys: name, machine"),
]  # fmt: skip


@pytest.mark.parametrize(("rest", "said"), BAD)
def test_a_bad_file_is_one_error_with_line_and_field(rest: str, said: str) -> None:
    with pytest.raises(WorkloadError) as error:
        parse(HEAD + rest, "w.yaml")
    assert str(error.value).startswith("w.yaml")
    assert said in str(error.value)
    assert len(str(error.value)) < 900


#: Each line ten times the one before.
LAUGHS = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{new}: &{new} [{','.join(['*' + old] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)

MORE_BAD = [
    ("jobs: []", "line 1: jobs: no jobs"),
    ("3", "line 1: expected a mapping"),
    ("jobs: [{name: a, runtime: 3}]", "line 1: jobs[0]: max_nodes is missing"),
    ("jobs: [{name: a, max_nodes: 4, runtime: 3}]", "on how many nodes? give reference_nodes"),
    ("jobs: [{nodes: 4, runtime: 3}]", "a job needs a name"),
    ("machine: {nodes: 0}\njobs: []", "line 1: machine.nodes: expected a whole number from 1"),
    ("machine: {nodes: 4, link_bytes_s: 0}\njobs: []", "machine.link_bytes_s: expected a number above 0"),
    ("applications: {a: {runtme: 3}}\njobs: []", "applications.a.runtme: unknown key"),
    ("applications: {a: {}}\njobs: [{name: x, application: b}]", "jobs[0].application: 'b' is none of a"),
    ("a: &a [1, 1]\njobs: [*b]", "no YAML"),
    ("jobs: " + "[" * 5000, "no YAML"),
    ("jobs: " + "[" * 200 + "]" * 200, "nested more than 100 deep"),
    (LAUGHS, "aliases repeat more than 1000000 values"),
    ("jobs: [{name: a, nodes: 1, runtime: 1, submit: 2e12}]", "at least 0 s and at most 1e+12 s"),
    ("jobs: [{name: a, nodes: 1, runtime: 2e12}]", "at least 0 s and at most 1e+12 s"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), MORE_BAD)
def test_a_text_that_is_no_workload(text: str, said: str) -> None:
    with pytest.raises(WorkloadError) as error:
        parse(text, "w.yaml")
    assert said in str(error.value)


def test_a_file_may_have_as_many_jobs_as_are_allowed_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_file, "_MOST_JOBS", 3)
    text = "machine: {nodes: 4}\njobs:\n" + "- {name: a, nodes: 1, runtime: 1}\n" * 3
    assert len(parse(text, "w.yaml").jobs) == 3
    with pytest.raises(WorkloadError, match="more than 3 jobs"):
        parse(text + "- {name: a, nodes: 1, runtime: 1}\n", "w.yaml")


def test_many_jobs_of_a_name_are_numbered_past_ids_that_are_given_soon() -> None:
    began_s = time.process_time()
    jobs = parse(
        "machine: {nodes: 4}\njobs:\n- {id: a-2, name: b, nodes: 1, runtime: 1}\n"
        "- {name: a, nodes: 1, runtime: 1, count: 20000}\n- {name: a, nodes: 1, runtime: 1}\n",
        "w.yaml",
    ).jobs
    assert time.process_time() - began_s < 8
    assert [job.id for job in jobs[:4]] == ["a-2", "a", "a-3", "a-4"]
    assert jobs[-1].id == "a-20002"


@given(st.text(max_size=80) | st.binary(max_size=80).map(lambda data: data.decode("latin-1")))
def test_any_text_is_a_workload_or_one_error(text: str) -> None:
    with pytest.raises(WorkloadError):
        parse(text, "w.yaml")


def test_files_are_read_packed_and_refused_cut(tmp_path: Path) -> None:
    data = (HEAD + "  runtime: 9\n").encode()
    plain, packed, cut, wide = (tmp_path / name for name in ("a.yaml", "b.yaml.gz", "c.yaml.gz", "d.yaml"))
    plain.write_bytes(data)
    packed.write_bytes(gzip.compress(data))
    cut.write_bytes(gzip.compress(data)[:-9])
    wide.write_bytes(data.decode().encode("utf-16"))
    assert yaml_file.read(plain).jobs == yaml_file.read(packed).jobs
    for path, said in ((cut, "cut off"), (wide, "UTF-16"), (tmp_path / "no.yaml", "No such file")):
        with pytest.raises(WorkloadError, match=said):
            yaml_file.read(path)


def test_power_bounds_are_taken_and_counted() -> None:
    workload = parse("jobs: [{name: a, nodes: 1, runtime: 3, min_power_w: 100 W, max_power_w: 200}]", "w")
    assert workload.notes == ("1 jobs whose watts are not used: nobody says what nodes draw",)


DECLARED = (
    "deadline: 2 h, soft_deadline: 90 min, value: 7.5, protect: field, resilience: ml, min_power_w: 100 W, "
    "priority: 2, io_intensity: 0.5, constraint: even, walltime: 1 h, user: ada, weight: 2.5"
)


def test_all_that_is_declared_reaches_the_policy(tmp_path: Path) -> None:
    text = (
        "machine: {nodes: 4}\njobs: [{name: a, min_nodes: 2, max_nodes: 4, runtime: 3, reference_nodes: 2, "
    )
    workload = parse(f"{text}{DECLARED}}}]", "w")
    declared = values_of(JobFacts, job_spec_from_mapping({"name": "a", **yaml.safe_load(f"{{{DECLARED}}}")}))
    assert values_of(JobFacts, workload.jobs[0]) == declared
    trace = tmp_path / "t.jsonl"
    simulate(workload, "pwma-fpsma", trace=trace)
    seen = [job for item in read_trace(trace).passes for job in item.snapshot.jobs]
    assert {job.state for job in seen} >= {"pending", "running"}
    assert all(values_of(JobFacts, job) == declared for job in seen)
    assert all(values_of(JobFacts, job) == declared for job in trace_file.read(trace).jobs)
