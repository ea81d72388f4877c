"""Whether two versions of the simulator give the same outputs to the byte.

    python tests/tools/same_outputs.py write before      # with the Python environment of one version
    python tests/tools/same_outputs.py write after       # with that of the other
    python tests/tools/same_outputs.py compare before after

Written are all builtin studies, simulated runs with their traces (builtin workloads under every policy,
random worlds of `random_worlds`, and the real workloads in $DASK_HPC_DATA when it is given), runs that go on
from a moment of a trace, forks, and replays of the traces in tests/traces. Left out are, by name, what tells
the version and what a clock measured: see `VOLATILE`.
Rules of the file: only names of the package that are public in every version are used.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from click.testing import CliRunner
from random_worlds import DETERMINED, FAIR, POLICIES, UNSTEADY, options_of, policy_of, world

from dask_hpc import sim
from dask_hpc.cli import hpc
from dask_hpc.sim.run import Engine, finished
from dask_hpc_policies import registry

TRACES = Path(__file__).resolve().parents[1] / "traces"
#: Keys that are left out wherever they are: versions, and seconds that a clock measured.
VOLATILE = frozenset({"dask_hpc", "versions", "started", "run_s", "policy_s"})
#: Builtin studies; the names stay, whatever the version has beside them.
STUDIES = (
    "node-stealing", "figure-5-1", "five-jobs", "esp-10", "esp", "io-aware", "mebf", "sfsj", "sfsj-victims",
)  # fmt: skip
#: Builtin workloads with the options and settings that they are run with.
WORKLOADS: dict[str, dict[str, Any]] = {
    "figure-5-1": {},
    "five-jobs": {},
    "esp-10": {"malleable": 0.5},
    "esp": {"malleable": 0.6},
    "io-aware": {"jobs": 60},
    "mebf-mixed": {"jobs": 60, "nodes": 200},
    "node-stealing": {},
    "poisson": {"jobs": 80, "nodes": 32, "malleable": 0.5, "load": 1.1},
    "node-failures": {"malleable": 0.5},
    "synthetic": {"enable_ichk": True},
}
#: Random worlds with a library policy, and with one that also asks for what cannot be done.
LIBRARY_RUNS, FAIR_RUNS, RESTLESS_RUNS, WILD_RUNS, FORKS = 300, 150, 150, 150, 40


# ---------------------------------------------------------------------- cases


def cases() -> dict[str, tuple[str, tuple[Any, ...]]]:
    """Name of each case, with the function that writes its files and that function's arguments."""
    found: dict[str, tuple[str, tuple[Any, ...]]] = {f"study/{name}": ("study", (name,)) for name in STUDIES}
    for name, given in WORKLOADS.items():
        for label, policy in POLICIES.items():
            found[f"builtin/{name}/{label}"] = ("builtin", (name, given, policy))
    for seed in range(LIBRARY_RUNS):
        found[f"random/{seed:03}"] = ("random", (seed, DETERMINED))
    for seed in range(FAIR_RUNS):
        found[f"fair/{seed:03}"] = ("random", (40_000 + seed, FAIR))
    for seed in range(RESTLESS_RUNS):
        found[f"restless/{seed:03}"] = ("random", (10_000 + seed, UNSTEADY[:1]))
    for seed in range(WILD_RUNS):
        found[f"wild/{seed:03}"] = ("random", (20_000 + seed, UNSTEADY[1:]))
    for seed in range(FORKS):
        found[f"fork/{seed:03}"] = ("fork", (30_000 + seed,))
    for path in sorted(TRACES.glob("*.jsonl.gz")):
        stem = path.name.removesuffix(".jsonl.gz")
        found[f"replay/{stem}"] = ("command", ("replay", str(path)))
        for policy in ("easy", "pwma-fpsma", "sfsj", "equipartition"):
            found[f"replay/{stem}/{policy}"] = ("command", ("replay", str(path), "--policy", policy))
            found[f"what-if/{stem}/{policy}"] = ("what_if", (str(path), policy))
    data = os.environ.get("DASK_HPC_DATA")
    for path in sorted(Path(data).glob("*.swf.gz")) if data else ():
        for label in ("fcfs", "easy", "easy-single", "easy-shortest", "conservative"):
            found[f"recorded/{path.name}/{label}"] = ("recorded", (str(path), POLICIES[label]))
    return found


def study(to: Path, name: str) -> None:
    """All runs of a builtin study."""
    command(to, "study", f"builtin:{name}", "--jobs", "1")


def command(to: Path, *arguments: str) -> None:
    """What a command prints as JSON, and its exit code."""
    result = CliRunner().invoke(hpc, [*arguments, "--json"])
    try:
        printed = json.loads(result.stdout)
    except ValueError:
        printed = result.stdout
    _write(to, [{"exit": result.exit_code, "printed": printed}])


def builtin(to: Path, name: str, given: dict[str, Any], policy: dict[str, Any]) -> None:
    """A builtin workload under one policy, asked as it likes best, and with a trace."""
    work = sim.load(f"builtin:{name}", seed=7, **given)
    plain = _run(work, registry.create(policy), sim.Options(seed=7, file_system_series=True), None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        traced = _run(work, registry.create(policy), sim.Options(seed=7), path)
        _write(to, [plain, traced, *_lines(path)])


def random(to: Path, seed: int, choice: tuple[str, ...]) -> None:
    """A random workload on a random machine; with a trace, and without one."""
    with tempfile.TemporaryDirectory() as folder:
        source, path = Path(folder) / "world.yaml", Path(folder) / "t.jsonl"
        source.write_text(world(seed), encoding="utf-8")
        work = sim.load(source)
        options = options_of(seed)
        plain = _run(work, policy_of(seed, choice), options, None)
        traced = _run(work, policy_of(seed, choice), options, path)
        _write(to, [plain, traced, *_lines(path)])


def fork(to: Path, seed: int) -> None:
    """A run, a copy of it from some moment on, and a copy that goes on with another policy."""
    draw = Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "world.yaml"
        source.write_text(world(seed), encoding="utf-8")
        work = sim.load(source)
    assert work.machine is not None
    engine = Engine(work, policy_of(seed, DETERMINED), work.machine, options_of(seed))
    engine.run_until(draw.uniform(0.0, 60.0))
    other = registry.create(POLICIES[draw.choice(("easy", "pwma-egs", "easy-single", "sfsj"))])
    forks = [engine, engine.fork(), engine.fork(other)]
    _write(to, [_tried(lambda one=one: finished(one)) for one in forks])


def what_if(to: Path, trace: str, policy: str) -> None:
    """From several moments of a recorded trace on."""
    records = [json.loads(line) for line in gzip.decompress(Path(trace).read_bytes()).splitlines()]
    times = sorted({record["snapshot"]["now_s"] for record in records if record["kind"] == "pass"})
    found = []
    for t_s in times[:: max(1, len(times) // 8)]:
        given = ("--at", str(t_s), "--default-time", "30", "--policy", policy, "--json")
        result = CliRunner().invoke(hpc, ["simulate", trace, *given])
        found.append(json.loads(result.stdout) if result.exit_code == 0 else result.output)
    _write(to, found)


def recorded(to: Path, path: str, policy: dict[str, Any]) -> None:
    """A real workload, which is not kept here: see $DASK_HPC_DATA."""
    _write(to, [_tried(lambda: sim.simulate(sim.load(path), registry.create(policy)))])


def _run(work: Any, policy: Any, options: Any, trace: Path | None) -> Any:
    return _tried(lambda: sim.simulate(work, policy, options=options, trace=trace))


def _tried(run: Callable[[], sim.Result]) -> Any:
    """What a run came to, or why it ended."""
    try:
        return _result(run())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _result(result: sim.Result) -> Any:
    found = result.to_json()
    del found["workload"]["source"]
    return found | {
        "rows": [row._asdict() for row in result.rows],
        "counts": asdict(result.counts),
        "node_log": result.node_log,
        "file_system": result.file_system,
    }


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def _write(to: Path, lines: Iterable[Any]) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(_steady(line)) + "\n" for line in lines)
    with gzip.GzipFile(f"{to}.jsonl.gz", "wb", mtime=0) as file:
        file.write(text.encode())


def _steady(value: Any) -> Any:
    """`value` without what is volatile."""
    if isinstance(value, dict):
        return {key: _steady(one) for key, one in value.items() if key not in VOLATILE}
    return [_steady(one) for one in value] if isinstance(value, (list, tuple)) else value


# ------------------------------------------------------------------- commands


def write(folder: Path, only: str, jobs: int) -> None:
    """Run all cases whose names match `only`, in `jobs` processes."""
    todo = {name: case for name, case in cases().items() if fnmatch.fnmatch(name, only)}
    began_s = time.perf_counter()
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(_one, folder / name, *case): name for name, case in todo.items()}
        for number, future in enumerate(as_completed(waiting), 1):
            cpu_s = future.result()
            if cpu_s > 10 or number % 100 == 0:
                print(f"{number} of {len(todo)}: {waiting[future]} took {cpu_s:.0f} s of CPU", flush=True)
    print(f"{len(todo)} outputs in {folder}, {time.perf_counter() - began_s:.0f} s")


def _one(to: Path, function: str, arguments: tuple[Any, ...]) -> float:
    began_s = time.process_time()
    globals()[function](to, *arguments)
    return time.process_time() - began_s


def compare(before: Path, after: Path) -> int:
    """Say which outputs differ, and where first; returns how many."""
    names = [
        {str(path.relative_to(folder)) for path in folder.rglob("*.jsonl.gz")} for folder in (before, after)
    ]
    differing = 0
    for name in sorted(names[0] | names[1]):
        if name not in names[0] or name not in names[1]:
            print(f"{name}: only in {before if name in names[0] else after}")
            differing += 1
            continue
        one, two = (gzip.decompress((folder / name).read_bytes()) for folder in (before, after))
        if one != two:
            differing += 1
            print(f"{name}: {_first_difference(one.decode(), two.decode())}")
    print(f"{len(names[0] | names[1])} outputs, {differing} differ")
    return differing


def _first_difference(one: str, two: str) -> str:
    for number, (a, b) in enumerate(zip(one.splitlines(), two.splitlines(), strict=False), 1):
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
            return f"line {number}\n    {a[max(0, at - 60) : at + 160]}\n    {b[max(0, at - 60) : at + 160]}"
    return "one has more lines"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="write all outputs of this version")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--only", default="*", help="pattern of names, such as 'study/*'")
    writing.add_argument("--jobs", type=int, default=2, help="processes")
    comparing = commands.add_parser("compare", help="exit code 1 when any output differs")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "compare":
        return 1 if compare(given.before, given.after) else 0
    write(given.folder, given.only, given.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
