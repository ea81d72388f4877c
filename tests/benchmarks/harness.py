"""What the benchmarks share: rows with bars, the command line, and paired measurements.

Configurations take turns within a repetition, in a shuffled order, and each repetition gives one
difference between ours and stock; a row shows the median of those differences and their quartiles.
Times are CPU seconds of the loop's thread: on a machine that others use too, that leaves out what is
not ours.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import logging
import os
import platform
import pstats
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import dask
import distributed
from dask.utils import key_split
from distributed import Client, LocalCluster
from machine import SEED, Graph, Machine

import dask_hpc
from dask_hpc.checkpoint.plan import Array, Written
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.worker.saved import Copy

# what benchmarks share with tests, for a script that imports this module first
sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))

# ------------------------------------------------------------------------- rows


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure: median and quartiles over the repetitions, and what it is held against."""

    name: str
    value: float
    unit: str
    #: First and third quartile of the repetitions.
    low: float | None = None
    high: float | None = None
    bar: float | None = None
    #: Up to this it is short of the bar: missed, but by little, or by what a busy machine does to times.
    limit: float | None = None
    #: The same figure for stock Dask in the same run.
    stock: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """``ok``, ``short`` (above the bar, below the limit), ``fail``, or ``info`` when there is no bar."""
        if self.bar is None:
            return "info"
        if self.value <= self.bar:
            return "ok"
        return "short" if self.limit is not None and self.value <= self.limit else "fail"


def row(
    name: str,
    samples: list[float],
    unit: str,
    *,
    bar: float | None = None,
    limit: float | None = None,
    stock: float | None = None,
    note: str = "",
) -> Row:
    """Median of `samples`, with their quartiles."""
    value = statistics.median(samples)
    low, high = quartiles(samples)
    return Row(
        name=name,
        value=value,
        unit=unit,
        low=low,
        high=high,
        bar=bar,
        limit=limit,
        stock=stock,
        note=note,
    )


def timed(call: Callable[[], None]) -> float:
    """Seconds that a call takes."""
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def quartiles(samples: list[float]) -> tuple[float, float]:
    """First and third quartile; the value itself when there is but one."""
    if len(samples) < 2:
        return samples[0], samples[0]
    cuts = statistics.quantiles(samples, n=4, method="inclusive")
    return cuts[0], cuts[2]


def percentile(samples: list[float], share: float) -> float:
    """The smallest sample that at least `share` of them do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def environment() -> dict[str, Any]:
    """Machine and versions that the figures belong to."""
    return {
        "cpu": _cpu_model(),
        "cores": len(_affinity()),
        "load_1_min": round(_load(), 2),
        "python": platform.python_version(),
        "dask": dask.__version__,
        "distributed": distributed.__version__,
        "dask_hpc": dask_hpc.__version__,
        "worker_saturation": dask.config.get("distributed.scheduler.worker-saturation"),
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _load() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")


# ------------------------------------------------------------------ command line


@dataclass(frozen=True)
class Options:
    """How much to measure: ``full``, ``fast`` (about a third), ``tiny`` (only whether it works)."""

    size: str
    profile: bool
    #: All that was said on the command line, a benchmark's own arguments included.
    given: argparse.Namespace = field(default_factory=argparse.Namespace)
    #: Writes what has been found so far where ``--write`` says: for benchmarks of many parts.
    write: Callable[[list[Row]], None] = lambda rows: None

    def pick(self, full: Any, fast: Any, tiny: Any) -> Any:
        """The one of three values that belongs to the size asked for."""
        return {"full": full, "fast": fast, "tiny": tiny}[self.size]


def main(
    name: str,
    description: str,
    run: Callable[[Options], list[Row]],
    arguments: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """Parse the command line, run, print, and exit with 1 when a row misses its bar, also where it is short.

    `arguments` adds those of the benchmark alone.
    """
    parser = argparse.ArgumentParser(prog=f"{name}.py", description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--fast", dest="size", action="store_const", const="fast", help="fewer repetitions")
    sizes.add_argument("--tiny", dest="size", action="store_const", const="tiny", help="see that it works")
    parser.add_argument("--profile", action="store_true", help="show where our time goes (hooks, jobs)")
    parser.add_argument("--bar", type=float, help="in place of every bar: an impossible one must fail")
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="keep the JSON object there, too, part after part as they end",
    )
    parser.set_defaults(size="full")
    if arguments is not None:
        arguments(parser)
    given = parser.parse_args()
    logging.getLogger("distributed").setLevel(logging.ERROR)
    began_s = time.perf_counter()

    def report(rows: list[Row]) -> dict[str, Any]:
        return {
            "benchmark": name,
            "size": given.size,
            "seed": SEED,
            "environment": environment(),
            "took_s": round(time.perf_counter() - began_s, 1),
            "ok": not any(r.verdict in ("short", "fail") for r in rows),
            "rows": [{**asdict(r), "verdict": r.verdict} for r in rows],
        }

    def write(rows: list[Row]) -> None:
        if given.write is not None:
            keep(given.write, report(rows))

    with tempfile.TemporaryDirectory() as scratch, dask.config.set(temporary_directory=scratch):
        rows = run(Options(given.size, given.profile, given, write))
    if given.bar is not None:
        rows = [r if r.bar is None else replace(r, bar=given.bar, limit=None) for r in rows]
    write(rows)
    found = report(rows)
    print(json.dumps(found) if given.json else _table(description, found, rows))
    sys.exit(0 if found["ok"] else 1)


def keep(path: Path, report: Mapping[str, Any]) -> None:
    """Write a report whole or not at all, whenever the process ends."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(report) + "\n")
    os.replace(part, path)


def listed(names: Collection[str]) -> Callable[[str], list[str]]:
    """The type of an argument that takes some of these names, with commas between them.

    The function raises `argparse.ArgumentTypeError` for another name; the command line then ends with 2.
    """

    def parse(text: str) -> list[str]:
        found = text.split(",")
        for name in found:
            if name not in names:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(names)}")
        return found

    return parse


def counted(text: str) -> int:
    """The type of an argument that is a whole number from 1 on; else raises `argparse.ArgumentTypeError`."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _table(description: str, report: Mapping[str, Any], rows: list[Row]) -> str:
    facts = ", ".join(f"{k} {v}" for k, v in report["environment"].items())
    width = max(len(r.name) for r in rows)
    lines = [description, f"{facts}; took {report['took_s']} s", ""]
    for r in rows:
        spread = "" if r.low is None or r.low == r.high else f" [{r.low:.2f}, {r.high:.2f}]"
        stock = "" if r.stock is None else f"  stock {r.stock:.2f}"
        bar = "" if r.bar is None else f"  bar {r.bar:g}"
        note = f"  {r.note}" if r.note else ""
        lines.append(f"{r.verdict:5} {r.name:{width}} {r.value:9.2f} {r.unit}{spread}{stock}{bar}{note}")
    return "\n".join(lines)


# ------------------------------------------------------------------- what is run


@contextmanager
def local_cluster(workers: int) -> Iterator[Client]:
    """A client of stock Dask's local cluster with one-thread worker processes that can import us."""
    here = Path(__file__).resolve().parents[2]
    roots = [str(here / part) for part in (".", "policies", "widgets")]
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*roots, *filter(None, (before,))])
    try:
        with (
            LocalCluster(
                n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0"
            ) as cluster,
            Client(cluster) as client,
        ):
            yield client
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


Measure = Callable[[Machine], Awaitable[float]]


def interleave(
    configurations: Mapping[str, Measure], repetitions: int, workers: int, nthreads: int
) -> dict[str, list[float]]:
    """One sample of each configuration a repetition, each on a fresh scheduler, in shuffled order.

    One more repetition before the first warms caches and is dropped.
    """
    chance = random.Random(SEED)
    samples: dict[str, list[float]] = {name: [] for name in configurations}

    async def one(measure: Measure) -> float:
        async with Machine(workers, nthreads) as machine:
            return await measure(machine)

    for repetition in range(repetitions + 1):
        order = list(configurations)
        chance.shuffle(order)
        for name in order:
            sample = asyncio.run(one(configurations[name]))
            if repetition:
                samples[name].append(sample)
    return samples


#: Results in memory that a version of a checkpoint has.
PROTECTED = 5000


async def protect(machine: Machine, kept: int) -> None:
    """Have so many results in memory that a version of a checkpoint has."""
    wanted = await machine.submit(Graph("roots", kept, "kept"))
    await machine.compute(wanted)
    array = Array("data", "opaque", None, (kept,), ((1,) * kept,))
    written = Written(0, 1, 0)
    copies = {key: (Copy("", array, number, written), "int") for number, key in enumerate(wanted)}
    protected = of(machine.scheduler).commits.protected
    protected.add(copies)
    assert len(protected) == kept


def gated(machine: Machine, job: JobRecord, graph: Graph, tokens: int) -> None:
    """Have each task of a job's graph need one of so many tokens, as if that had been learned."""
    target, gate = ("store", "shared"), machine.engine.admission.gate
    gate.needs |= {(job.name, name): (target,) for name in set(map(key_split, graph._layer()))}
    gate.limits[target] = tokens
    job.gate = gate


def differences(samples: Mapping[str, list[float]], name: str, base: str = "stock") -> list[float]:
    """Difference to `base` of every repetition."""
    return [ours - stock for ours, stock in zip(samples[name], samples[base], strict=True)]


def our_cost(measure: Measure, workers: int, nthreads: int, tasks: int) -> list[tuple[str, float]]:
    """Our functions by the time spent in each alone, microseconds a task under a profiler."""
    profile = cProfile.Profile()

    async def one() -> None:
        async with Machine(workers, nthreads) as machine:
            profile.enable()
            await measure(machine)
            profile.disable()

    asyncio.run(one())
    table: Any = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    ours = [
        (f"{Path(file).stem}.{function}", own_s * 1e6 / tasks)
        for (file, _, function), (_, _, own_s, _, _) in table.items()
        if "dask_hpc" in Path(file).parts or "dask_hpc_policies" in Path(file).parts
    ]
    return sorted(ours, key=lambda item: -item[1])
