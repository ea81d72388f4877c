"""``dask hpc chaos``: what checkpoints promise, tried by failures on purpose."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from dask_hpc.cli.connection import connected, connection_options
from dask_hpc.cli.types import FOLDER
from dask_hpc.terminal import echo_table, progress_bar

_COLUMNS = {
    "seed": "SEED",
    "faults": "FAULTS",
    "wrong": "WRONG",
    "lost": "LOST",
    "recomputed": "RECOMPUTED",
    "restored": "RESTORED",
    "killed": "KILLED",
    "why": "WHY",
}


@click.command()
@click.option(
    "--runs", metavar="N", type=click.IntRange(1), default=8, show_default=True, help="How many runs."
)
@click.option("--seed", metavar="N", type=click.IntRange(0), default=0, show_default=True,
              help="Seed of the first run; the others follow.")  # fmt: skip
@click.option("--faults", metavar="NAME,...", default=None,
              help="What may fail: worker, host, cluster, store, delay, manager, partition, agent, "
                   "controller, hang.  [default: all of them]")  # fmt: skip
@click.option("--folder", type=FOLDER, default=None,
              help="Where stores are made, and removed again; all workers have to see it.  [default: a new "
              "folder for temporary files]")  # fmt: skip
@connection_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON line for each run.")
def chaos(runs: int, seed: int, faults: str | None, folder: Path | None, as_json: bool, **where: Any) -> None:
    """Kill workers on purpose and check that all comes back.

    Every run protects scattered and computed results, has something fail while they are computed, written or
    read back, and compares all values. Where workers may fail, most runs also lose scattered data or an actor
    a moment before protected results that hang on it. Without --address it runs on a cluster of its own on
    this machine.
    With it, workers of that cluster are killed: they have to come back (nannies, a batch system), and what
    others do there suffers. Exits with 1 when something was wrong, lost or computed again.
    """
    from dask_hpc.chaos.plan import FAULTS

    chosen = FAULTS if faults is None else tuple(name.strip() for name in faults.split(","))
    unknown = [name for name in chosen if name not in FAULTS]
    if unknown:
        raise click.UsageError(f"--faults is {faults!r}; allowed: {', '.join(FAULTS)}, with commas between")
    rows = []
    try:
        made = tempfile.TemporaryDirectory(prefix="dask-hpc-chaos-", dir=folder)
    except OSError as error:
        at = "the folder for temporary files" if folder is None else str(folder)
        raise click.UsageError(
            f"no store can be made in {at}: {error.strerror}; give a --folder that can be written to"
        ) from error
    with made as base, progress_bar("runs") as show:
        for row in _rows(range(seed, seed + runs), chosen, Path(base), where):
            rows.append(row)
            if show is not None:
                show(len(rows), runs)
            if as_json:
                click.echo(json.dumps(row))
    if not as_json:
        echo_table(rows, _COLUMNS, "no run")
        bad = sum(not row["good"] for row in rows)
        click.echo(f"{len(rows)} runs, seeds {seed} to {seed + runs - 1}: {bad} with a fault")
    if any(not row["good"] for row in rows):
        raise click.exceptions.Exit(1)


def _rows(seeds: range, faults: tuple[str, ...], base: Path, where: dict[str, Any]) -> Any:
    from dask_hpc.chaos.session import rows, rows_on_own

    if where.get("address") or where.get("scheduler_file"):
        with connected(**where) as client:
            yield from rows(client, seeds, faults, base)
    else:
        yield from rows_on_own(seeds, faults, base)
