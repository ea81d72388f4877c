"""Files that are odd: each is read rightly or refused in one line, soon and in little memory."""

import csv
import gzip
import json
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dask_hpc.cli import hpc
from dask_hpc.errors import WorkloadError
from dask_hpc.sim.formats import text_file, yaml_file
from dask_hpc.sim.run import simulate
from dask_hpc.sim.workloads.sources import load

ROW = "{id} 0 0 {runtime} 2 -1 -1 2 200 -1 1 1 1 1 1 1 -1 -1\n"
SWF = "; MaxProcs: 8\n" + ROW.format(id=1, runtime=100)
YAML = "machine: {nodes: 8}\njobs:\n- {name: a, nodes: 2, runtime: 100 s}\n"
SACCT = "JobID|State|NNodes|Submit|ElapsedRaw\n1|COMPLETED|2|2024-01-01T00:00:00|100\n"
MODEL = {"phases": [{"tasks": [{"type": "cpu", "flops": "1e12", "computation_pattern": "all_ranks"}]}]}
LIVE = Path(__file__).parents[1] / "traces" / "live-0.1.0.jsonl.gz"


def elastisim(**more: Any) -> str:
    job = {"type": "rigid", "submit_time": 0, "num_nodes": 2, "application_model": "model.app"}
    return json.dumps({"jobs": [{**job, **more}]})


def good() -> dict[str, bytes]:
    """A file of each kind, by the ending of its name."""
    texts = {"swf": SWF, "yaml": YAML, "json": elastisim(), "sacct": SACCT}
    return {
        **{kind: text.encode() for kind, text in texts.items()},
        "jsonl": gzip.decompress(LIVE.read_bytes()),
    }


def put(folder: Path, name: str, data: bytes | str) -> Path:
    (folder / "model.app").write_text(json.dumps(MODEL))
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize("kind", good())
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_byte_order_mark_is_passed_over(tmp_path: Path, kind: str, packed: bool) -> None:
    data = b"\xef\xbb\xbf" + good()[kind]
    path = put(tmp_path, f"a.{kind}" + ".gz" * packed, gzip.compress(data) if packed else data)
    assert load(path).jobs == load(put(tmp_path, f"b.{kind}", good()[kind])).jobs


@pytest.mark.skipif(sys.platform == "darwin", reason="names of files are text there")
@pytest.mark.parametrize("kind", good())
def test_a_file_whose_name_is_no_text_is_a_workload_like_any_other(tmp_path: Path, kind: str) -> None:
    path = put(tmp_path, os.fsdecode(b"j\xff." + kind.encode()), good()[kind])
    runner = CliRunner()
    folder, out = tmp_path / os.fsdecode(b"o\xff"), tmp_path / os.fsdecode(b"c\xff.yaml")
    for arguments in (
        ["simulate", str(path), "--policy", "easy", "--nodes", "8", "--output", str(folder)],
        ["convert", str(path), str(out), "--nodes", "8"],
        ["simulate", str(out), "--policy", "easy", "--json"],
    ):
        result = runner.invoke(hpc, arguments)
        assert result.exit_code == 0, (arguments, result.output)
    assert len(list(csv.DictReader((folder / "jobs.csv").open(encoding="utf-8")))) == len(load(path).jobs)
    assert load(path).name == rf"j\udcff.{kind}"


ODD: list[tuple[str, str, str]] = [
    # what Python takes for a number and the format does not
    ("a.swf", SWF.replace(" 100 ", " 1_000 "), "line 2, field 4 (run time): '1_000' is not a number"),
    ("a.json", elastisim().replace(": 2,", ": 2_0,"), "line 1, column"),
    ("a.json", elastisim(attributes={"priority": "1_0"}), "priority: expected a whole number"),
    ("a.sacct", SACCT.replace("|100", "|1_000"), "line 2: ElapsedRaw: '1_000' is no number"),
    ("a.yaml", YAML.replace("100 s", "'1_000'"), "line 3: jobs[0].runtime: '1_000' is not a duration"),
    ("a.yaml", YAML.replace("100 s", "0b_"), "line 3: jobs[0].runtime: '0b_' is no int"),
    ("a.yaml", YAML.replace("100 s", "9" * 6000), "line 3: jobs[0].runtime: '999"),
    ("a.yaml", YAML.replace("100 s", "!!int ''"), "line 3: jobs[0].runtime: '' is no int"),
    ("a.yaml", YAML.replace("100 s", "!!bool x"), "line 3: jobs[0].runtime: 'x' is no bool"),
    # texts that are no valid Unicode
    ("a.json", elastisim(attributes={"name": "\ud800x"}), r"jobs[0].attributes.name: '\ud800x' is no valid"),
    ("a.json", elastisim(attributes={"\udfff": "x"}), r"jobs[0].attributes: the key '\udfff' is no valid"),
    ("a.json", elastisim(application_model="\ud800"), r"application_model: '\ud800' is no valid Unicode"),
    ("a.yaml", YAML.replace("name: a", r'name: "\udc00"'), r"line 3: jobs[0].name: '\udc00' is no valid"),
    ("a.yaml", YAML.replace("- {", "- {\x07"), "line 3: no YAML: the character '\\x07' is not allowed"),
    # nested deeply
    ("a.json", "[" * 100_000 + "]" * 100_000, "nested too deeply"),
    ("a.json", elastisim(attributes={"name": 1}).replace("1}", "[" * 900 + "]" * 900 + "}"), "expected a"),
    ("a.yaml", "jobs: " + "[" * 100_000, "line 1: no YAML that can be read: it is nested too deeply"),
    ("a.yaml", "".join(" " * i + "a:\n" for i in range(1500)), "it is nested too deeply"),
    ("a.yaml", "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 200)), "100 deep"),
    # little that stands for much
    ("a.yaml", "a: &a [*a, *a]\njobs: *a", "line 1: an anchor holds an alias of itself"),
    (
        "a.yaml",
        "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [{f'*a{i - 1},' * 10}]\n" for i in range(1, 9)) + "jobs: *a8",
        "line 7: aliases repeat more than 1000000 values",
    ),
    ("a.yaml", f"? {'k' * 100_000}\n: [{'1,' * 20_000}1]\n", "unknown key"),
    ("a.json", "{" + ",".join(f'"{i}":1' for i in range(50_000)) + ',"49999":1}', "'49999' is given twice"),
    ("a.json", "[" + "[]," * 2_500_001 + "[]]", "more than 5000000 values"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "said"), ODD, ids=range(len(ODD)))
def test_an_odd_file_is_one_short_line_soon(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = put(tmp_path, name, text)
    began_s = time.process_time()
    result = CliRunner().invoke(hpc, ["simulate", str(path), "--policy", "easy", "--nodes", "8"])
    assert time.process_time() - began_s < 5
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"Error: {path}")
    assert said in line
    assert len(line) < len(str(path)) + 500


def test_a_job_of_a_trace_whose_name_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    name = next(json.loads(row)["name"] for row in good()["jsonl"].splitlines() if b'"kind":"job"' in row)
    path = put(tmp_path, "a.jsonl", good()["jsonl"].replace(f'"{name}"'.encode(), rb'"\ud800"'))
    with pytest.raises(WorkloadError, match=r"a\.jsonl: the name of a job, .*half a pair"):
        load(path)


def test_escapes_of_json_in_yaml_are_one_character() -> None:
    (job,) = yaml_file.parse(YAML.replace("name: a", r'name: "\ud83d\ude00"'), "a.yaml").jobs
    assert job.name == "\U0001f600"


def test_underscores_are_numbers_in_yaml_which_says_so() -> None:
    (job,) = yaml_file.parse(YAML.replace("100 s", "1_000"), "a.yaml").jobs
    assert job.runtime_s == 1000


@pytest.mark.parametrize("name", ["a\0.swf", "\ud800.swf", "a\0.jsonl", "\ud800.yaml", "\ud800.sacct"])
def test_a_name_that_no_file_can_have_is_an_error(name: str) -> None:
    with pytest.raises(WorkloadError, match=r"cannot (be )?read"):
        load(name)


def test_comments_of_yaml_are_passed_over_and_counted() -> None:
    text = "# x\n\n  # y \r\njobs: # z\n # 1\n\n- name: a # one\n# 2\n  nodes: 2\n  text: |\n    # kept\n"
    with pytest.raises(WorkloadError, match=r"line 10: jobs\[0\]\.text: unknown key"):
        yaml_file.parse(text, "a.yaml")
    with pytest.raises(WorkloadError, match="line 3, column 2: no YAML"):
        yaml_file.parse("# x\n\n ]", "a.yaml")
    (job,) = yaml_file.parse(text[: text.index("  text")] + "  runtime: 5 # five", "a.yaml").jobs
    assert job.runtime_s == 5


def test_comments_of_yaml_cost_what_reading_them_does() -> None:
    began_s = time.process_time()
    (job,) = yaml_file.parse("# nothing is said here\n" * 1_000_000 + YAML, "a.yaml").jobs
    assert time.process_time() - began_s < 2
    assert job.runtime_s == 100


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("piece_bytes", [5, 7, 64, 2**20])
def test_lines_are_those_of_the_file_however_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, end: str
) -> None:
    monkeypatch.setattr(text_file, "_PIECE_BYTES", piece_bytes)
    rows = ["; Note: x", "", ROW.format(id=1, runtime=5).strip(), "; MaxNodes: 16", ";", " ", "1 2"]
    path = put(tmp_path, "a.swf", "\ufeff" + end.join(rows))
    with pytest.raises(WorkloadError, match="line 7, field 3"):
        load(path)
    workload = load(put(tmp_path, "b.swf", end.join(rows[:-1])))
    assert [job.runtime_s for job in workload.jobs] == [5]
    assert workload.machine is not None
    assert workload.machine.nodes == 16


def test_the_size_of_the_machine_is_digits(tmp_path: Path) -> None:
    path = put(tmp_path, "a.swf", SWF.encode().replace(b"MaxProcs: 8", b"MaxProcs: \xb2"))
    assert load(path).machine is None


NOTHING = {"swf": b"; nothing is said here\n", "yaml": b"# nothing is said here\n"}
#: What becomes of 500 MB of comments before a job, or of blanks where a format has none.
ANSWERS = {
    "swf": "1 jobs",
    "sacct": "1 jobs",
    "yaml": "longer than 64 MiB",
    "json": "longer than 128 MiB",
    "jsonl": "line 1: expected one JSON object",
}


def padded(path: Path, megabytes: int) -> Path:
    """A small archive of so much that says nothing, and then a job."""
    kind = path.suffixes[0][1:]
    line = NOTHING.get(kind, b" " * 22 + b"\n")
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(megabytes):
            file.write(line * (1_000_000 // len(line)))
        file.write(good()[kind])
    return path


@pytest.mark.parametrize("kind", ["swf", "sacct", "jsonl"])
def test_what_has_lines_is_never_held_whole(tmp_path: Path, kind: str) -> None:
    path = padded(tmp_path / f"a.{kind}.gz", 40)
    tracemalloc.start()
    try:
        if kind == "jsonl":
            with pytest.raises(WorkloadError, match=ANSWERS[kind]):
                load(path)
        else:
            assert len(load(path).jobs) == 1
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


def test_what_has_none_is_unpacked_no_further_than_its_bound(tmp_path: Path) -> None:
    path = padded(tmp_path / "a.json.gz", 40)
    tracemalloc.start()
    try:
        with pytest.raises(WorkloadError, match=r"a\.json\.gz: the text is longer than 2 MiB"):
            text_file.read_text(path, 2**21)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


def test_one_endless_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.swf.gz"
    path.write_bytes(gzip.compress(SWF.encode() + b"; " + b"x" * 20_000_000, 1))
    with pytest.raises(WorkloadError, match=r"a\.swf\.gz, line 3: the line is longer than 16 MiB"):
        load(path)


def test_more_lines_than_jobs_can_have_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.swf.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(80):
            file.write(b";\n" * 500_000)
    with pytest.raises(WorkloadError, match=r"a\.swf\.gz: the text has more than 33554432 lines"):
        load(path)


READ = """
import gzip, re, sys, time
from itertools import islice
from pathlib import Path
from dask_hpc.errors import WorkloadError
from dask_hpc.sim.workloads.sources import load
began_s = time.process_time()
with gzip.open(sys.argv[1]) as text:
    for line in islice(text, int(sys.argv[2])):
        pass
plain_s = time.process_time() - began_s
began_s = time.process_time()
try:
    said = f"{len(load(sys.argv[1]).jobs)} jobs"
except WorkloadError as error:
    said = str(error)
peak_kib = re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]
print(said, time.process_time() - began_s, plain_s, int(peak_kib) / 1024, sep="|")
"""
#: Of the 500 MB, how many lines tell what the machine takes for all: a fifth.
SOME_LINES = 4_347_826


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of its memory from /proc")
@pytest.mark.parametrize("kind", ANSWERS)
def test_half_a_gigabyte_of_nothing_is_answered_within_5_s_and_1_gb(tmp_path: Path, kind: str) -> None:
    path = padded(tmp_path / f"a.{kind}.gz", 500)
    assert path.stat().st_size < 10e6
    command = [sys.executable, "-c", READ, str(path), str(SOME_LINES)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    said, cpu_s, plain_s, peak_mib = found.stdout.strip().rsplit("|", 3)
    assert ANSWERS[kind] in said
    # where even a bare loop over the lines takes longer than 5 s, that is what it may take
    assert float(cpu_s) < max(5, 5 * float(plain_s)), (cpu_s, plain_s)
    assert float(peak_mib) < 1000


def test_the_name_of_a_workload_is_to_be_loaded_first() -> None:
    name: Any = "builtin:esp-10"
    with pytest.raises(TypeError, match=r"workload is 'builtin:esp-10'; needed: .*sim\.load"):
        simulate(name, "fcfs")
