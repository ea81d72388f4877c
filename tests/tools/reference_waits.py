"""Does every job wait as long as a reference scheduler makes it wait?

    python tests/tools/reference_waits.py TRACE [WAITS] --nodes 100 [--raise-estimates]

WAITS is what the reference says: an SWF file whose third column is the wait, or lines of a job's number and
its wait; without it, the third column of TRACE. Our side is EASY asked about one event at a time. The exit
code is 1 when a job waits otherwise, and the first ones that do are shown. The last line is the digest of the
reference's waits, by which tests know them without keeping them.

pyss, which gave the digests in the tests, has no job that outlives its estimate or that takes no time:
``--raise-estimates`` makes run times one second at least and estimates as long as the run, as it does when it
reads such a trace, and all times whole seconds. (It also cuts such a run at the time requested; here it runs
on.)
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dask_hpc.sim import load, simulate
from dask_hpc.sim.model.workload import Workload, fitted
from dask_hpc_policies import registry

#: Differing jobs that are shown.
_SHOWN = 10


def our_waits(work: Workload, nodes: int) -> dict[str, float]:
    """What each job waits under EASY, one event at a time."""
    result = simulate(work, registry.create("easy", events="single"), nodes=nodes)
    return {one.id: one.wait_s for one in result.runs if one.wait_s is not None}


def read_waits(path: Path) -> dict[str, float]:
    """Waits by job of an SWF file, or of lines of two numbers."""
    content = path.read_bytes()
    text = gzip.decompress(content) if path.suffix == ".gz" else content
    rows = [row.split() for row in text.decode().splitlines() if row.strip() and not row.startswith(";")]
    return {row[0]: float(row[2 if len(row) > 2 else 1]) for row in rows}


def raised(work: Workload) -> Workload:
    """Whole seconds, runs of one at least, and estimates that hold."""
    jobs = []
    for job in work.jobs:
        runtime_s = max(1.0, float(int(job.runtime_s)))
        walltime_s = max(runtime_s, float(int(job.walltime_s or 0.0)))
        submit_s = float(int(job.submit_s))
        jobs.append(replace(job, submit_s=submit_s, runtime_s=runtime_s, walltime_s=walltime_s))
    return replace(work, jobs=tuple(jobs))


def squeezed(work: Workload, factor: float) -> Workload:
    """The same jobs in less time, at whole seconds: a higher load."""
    jobs = [replace(job, submit_s=float(int(job.submit_s * factor))) for job in work.jobs]
    return replace(work, jobs=tuple(jobs))


def digest(waits: Mapping[str, float]) -> str:
    """One short word for all the waits: of the lines of job number and wait in whole seconds, by number."""
    lines = [f"{id} {wait_s:.0f}\n" for id, wait_s in sorted(waits.items(), key=lambda item: int(item[0]))]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def differences(ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[str]:
    """A line for each job that waits otherwise, or is in one of them alone."""
    return [
        f"job {id}: {ours.get(id, 'absent')} here, {theirs.get(id, 'absent')} there"
        for id in sorted(ours.keys() | theirs.keys(), key=int)
        if ours.get(id) != theirs.get(id)
    ]


def main(args: list[str] | None = None) -> int:
    """Compare and say so; 1 when a job waits otherwise."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument(
        "waits", type=Path, nargs="?", help="of the reference; default: column 3 of the trace"
    )
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--raise-estimates", action="store_true")
    given = parser.parse_args(args)
    work = fitted(load(given.trace), given.nodes, "clip")
    ours = our_waits(raised(work) if given.raise_estimates else work, given.nodes)
    theirs = read_waits(given.waits or given.trace)
    found = differences(ours, theirs)
    print(f"{len(theirs)} jobs, mean wait {sum(theirs.values()) / len(theirs):.4f} s there", end=", ")
    print(f"{sum(ours.values()) / len(ours):.4f} s here, {len(found)} jobs differ")
    for line in found[:_SHOWN]:
        print(line)
    print(digest(theirs))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
