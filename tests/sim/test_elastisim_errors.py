"""ElastiSim's files: one clear error, with file and field, for whatever is wrong."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from elastisim_files import CLUSTER, CPU, WRITE, flexible, job, one_phase, write

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.formats import elastisim


def changed(path: str, value: Any) -> dict[str, Any]:
    """A good model with one thing changed; the path is of keys and indexes."""
    model: Any = copy.deepcopy(one_phase(dict(CPU), dict(WRITE), iterations=2))
    *way, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    place = model
    for key in way:
        place = place[key]
    place[last] = value
    return model  # type: ignore[no-any-return]


BAD_MODELS = [
    ("phases/0/tasks/0/type", "gpu", "phases[0].tasks[0].type: tasks of type 'gpu' are not simulated"),
    ("phases/0/tasks/0/type", "cpuu", "'cpuu' is none of cpu, pfs_read, pfs_write"),
    ("phases/0/tasks/0/type", None, "phases[0].tasks[0]: 'type' is missing"),
    ("phases/0/tasks/0/type", 7, "phases[0].tasks[0].type: expected one of cpu"),
    ("phases/0/tasks/0/flops", "flop / 2", "phases[0].tasks[0].flops: 'flop / 2': unknown name 'flop'"),
    ("phases/0/tasks/0/flops", "1/(num_nodes-3)^2", "divides by zero for num_nodes = 3"),
    ("phases/0/tasks/0/flops", "2 - num_nodes", "'2 - num_nodes' is -1 on 3 nodes"),
    ("phases/0/tasks/0/flops", "1 +", "expected a number, a name or (, got the end at column 4"),
    ("phases/0/tasks/0/flops", "__import__('os')", "unexpected"),
    ("phases/0/tasks/0/flops", -1, "expected a number from 0 to 1e+24, got -1"),
    ("phases/0/tasks/0/flops", 10**400, "got a number of over 40 digits"),
    ("phases/0/tasks/0/flops", [1], "expected a number"),
    ("phases/0/tasks/0/computation_pattern", "unifrom", "did you mean 'uniform'"),
    ("phases/0/tasks/0/computation_pattern", None, "'computation_pattern' is missing"),
    ("phases/0/tasks/0/computation_pattern", "vector", "for rigid jobs only"),
    ("phases/0/tasks/1/bytes", None, "phases[0].tasks[1]: 'bytes' is missing"),
    ("phases/0/tasks/1/byte", 7, "phases[0].tasks[1].byte: unknown key"),
    ("phases/0/tasks/1/async", "no", "phases[0].tasks[1].async: expected true or false"),
    ("phases/0/tasks/1/iterations", 1e7, "1e+07 iterations; at most 1000000"),
    ("phases/0/tasks", {}, "phases[0].tasks: expected a list"),
    ("phases/0/tasks", [], "no phase has a task that is executed"),
    ("phases/0/iterations", "num_nodes", "iterations of a phase cannot depend on num_nodes"),
    ("phases/0/iterations", 999_999, None),
    ("phases/0/evolving_request", "phase_iteration + x", "unknown name 'x'"),
    ("phases/0", 3, "phases[0]: expected a mapping"),
    ("phases", "many", "phases: expected a list"),
    ("on_init", {}, "on_init: 'tasks' is missing"),
    ("phasess", [], "unknown key; known keys: on_init, on_reconfiguration, on_expansion, phases; did you"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "said"), BAD_MODELS)
def test_a_bad_model_is_one_error_with_file_and_field(
    tmp_path: Path, path: str, value: Any, said: str | None
) -> None:
    file = write(tmp_path, changed(path, value), flexible(low=2, high=5))
    if said is None:
        elastisim.read(file)
        return
    with pytest.raises(WorkloadError) as error:
        elastisim.read(file)
    assert said in str(error.value)
    assert str(tmp_path / "model.json") in str(error.value)
    assert "as the application of jobs[0]" in str(error.value)
    assert len(str(error.value)) < 900


BAD_JOBS: list[tuple[dict[str, Any], str]] = [
    (job(type="riged"), "jobs[0].type: 'riged' is none of rigid, moldable, malleable, evolving, adaptive"),
    (job(num_nodes=0), "jobs[0].num_nodes: expected a whole number from 1 to 10000000, got 0"),
    (job(num_nodes=2.5), "got 2.5"),
    (job(num_nodes="4"), "got '4'"),
    (job(num_nodes=True), "got True"),
    (job(num_nodes=10**30), "jobs[0].num_nodes: expected a whole number"),
    (job(submit_time=-1), "jobs[0].submit_time: expected a number from 0"),
    (job(submit_time=None), "jobs[0]: 'submit_time' is missing"),
    (job(walltime="1 h"), "jobs[0].walltime: expected a number"),
    (job(num_node=3), "jobs[0].num_node: unknown key"),
    (job(num_gpus_per_node=4), "jobs with GPUs are not simulated"),
    (job(application_model="other.json"), "jobs[0].application_model: no file 'other.json' beside jobs.json"),
    (job(application_model="a\0b"), "no file"),
    (
        job(arguments={"x": ["big"]}),
        "jobs[0].arguments.x: expected a number from -1e+24 to 1e+24, got a list",
    ),
    (job(arguments={"x y": 1}), "the name of an argument"),
    (job(arguments=[1]), "jobs[0].arguments: expected a mapping"),
    (job(attributes={"priority": "high"}), "jobs[0].attributes.priority: expected a whole number"),
    (job(attributes={"io_intensity": 2}), "jobs[0].attributes.io_intensity: expected a number from 0 to 1"),
    (flexible(low=9, high=8), "jobs[0].num_nodes_min: 9 is above num_nodes_max = 8"),
    (flexible(low=1, high=9_000_000), "jobs[0].num_nodes_max: 9000000 sizes; a job may have at most 100000"),
]


@pytest.mark.parametrize(("row", "said"), BAD_JOBS)
def test_a_bad_job_is_one_error_with_file_and_field(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    flops = {"type": "cpu", "flops": "1e9 / num_nodes", "computation_pattern": "uniform"}
    with pytest.raises(WorkloadError) as error:
        elastisim.read(write(tmp_path, one_phase(flops), row))
    assert said in str(error.value)
    assert str(tmp_path) in str(error.value)


GOOD = json.dumps({"jobs": [job()]}).encode()
BAD_FILES: list[tuple[bytes, str]] = [
    (GOOD[:40], "line 1, column"),
    (GOOD[:-3], "the file may be cut off"),
    (gzip.compress(GOOD, mtime=0)[:-12], "the gzip file is cut off"),
    (gzip.compress(GOOD, mtime=0)[:20] + b"xxxx" + gzip.compress(GOOD, mtime=0)[24:], "the gzip file is"),
    (GOOD.decode().encode("utf-16"), "the text is UTF-16; save it as UTF-8"),
    (GOOD.decode().encode("utf-16-le"), "UTF-16 text"),
    (GOOD.replace(b"rigid", b"r\xffgid"), "byte 0xff is no UTF-8"),
    (b"", "the file is empty"),
    (b"[1, 2]", "expected an object with the key jobs or jobs_file"),
    (b'{"jobs": []}', "jobs: no jobs"),
    (b'{"jobs": {}}', "jobs: expected a list"),
    (b'{"phases": []}', "is an application model"),
    (b"{}", "has neither jobs"),
    (b'{"jobs": [NaN]}', "NaN is no number of JSON"),
    (b'{"jobs": [], "jobs": []}', "the key 'jobs' is given twice"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"jobs_file": "jobs.json"}', "'platform_file' is missing"),
]


@pytest.mark.parametrize(("data", "said"), BAD_FILES)
def test_a_bad_file_is_one_error_with_its_name(tmp_path: Path, data: bytes, said: str) -> None:
    write(tmp_path, one_phase(CPU))
    path = tmp_path / "bad.json"
    path.write_bytes(data)
    with pytest.raises(WorkloadError) as error:
        elastisim.read(path)
    assert str(path) in str(error.value)
    assert said in str(error.value)


BAD_PLATFORMS = [
    ("<platform>", "no XML"),
    ("<platform/>", "no <cluster>"),
    (CLUSTER.replace("100Gf", "fast"), "speed='fast'; expected such as 100Gf"),
    (CLUSTER.replace("100Gf", "0Gf"), "must be above 0"),
    (CLUSTER.replace("0-127", "9-1"), "radical='9-1'"),
    (CLUSTER.replace("0-127", "0-999999999"), "it must be from 1 to 1000000"),
    (CLUSTER.replace("PFS_write", "other"), "no link 'PFS_write'"),
    (CLUSTER.replace("<platform ", "<!DOCTYPE platform [<!ENTITY a 'b'>]><platform "), "entities"),
    pytest.param("<a>" * 1_500_000, "the text is longer than 4 MiB", id="deep"),
]


@pytest.mark.parametrize(("text", "said"), BAD_PLATFORMS)
def test_a_bad_platform_is_one_error(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, one_phase(CPU), platform=True)
    (tmp_path / "platform.xml").write_text(text)
    with pytest.raises(WorkloadError) as error:
        elastisim.read(path)
    assert said in str(error.value)
    assert str(tmp_path / "platform.xml") in str(error.value)
