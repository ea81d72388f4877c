"""What the demo prints at its end: as text for people, as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dask_hpc.demo.parts import DemoRun, Verdict
from dask_hpc.terminal import echo_table
from dask_hpc.trace.runs import job_runs, pool_steps
from dask_hpc_policies.metrics import summarize


def as_json(
    policy: str, run: DemoRun, found: Sequence[Verdict], wall_s: float, report: Path, trace: Path | None
) -> dict[str, Any]:
    """The run as JSON data: what every part has found, the table, and the metrics of the last trace."""
    return {
        "policy": policy,
        "rounds": len(run.managed),
        **summarize(job_runs(run.records), pool_steps(run.records)),
        **{name: value for part in found for name, value in part.summary.items()},
        "table": [row.cells() for part in found for row in part.table],
        "unpaid": [text for part in found for text in part.unpaid],
        "wall_s": wall_s,
        "report": str(report),
        "trace": None if trace is None else str(trace),
    }


def print_text(run: DemoRun, found: Sequence[Verdict], wall_s: float, report: Path) -> None:
    """Print the results, the table with the sentence that a newcomer quotes, and last what did not pay."""
    rounds = len(run.managed)
    print("\nResults" + (" of the last round" if rounds > 1 else ""))
    results = [row for part in found for row in part.results.items()]
    width = max((len(name) for name, _ in results), default=0)
    for name, text in results:
        print(f"  {name:<{width}}  {text}")
    print(f"\nReport: {report} (whole demo {wall_s:.0f} s)")
    print()
    echo_table(
        [row.cells() for part in found for row in part.table],
        {
            "what": f"median of {rounds} (spread)" if rounds > 1 else "",
            "stock": "stock Dask",
            "ours": "dask-hpc",
        },
        empty="nothing was compared",
    )
    quotes = [part.quote for part in found if part.quote]
    if quotes:
        print(f"\n{', '.join(quotes)}")
    unpaid = [text for part in found for text in part.unpaid]
    if unpaid:
        print("\nDid not pay on this machine:")
        for text in unpaid:
            print(f"  {text}")
