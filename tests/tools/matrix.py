"""The loss matrix: what is lost when a cluster shrinks, with stock Dask and with ours in the same run.

``python tests/tools/matrix.py`` makes clusters smaller in every way, each with everything that can be
lost, once with stock's cluster class and once with ours, the same work on both: on this machine and, where
Debian's ``slurm-wlm`` and ``munge`` are installed, on a private Slurm. Exits with 1 when something was lost,
or executed twice, on ours, or when a cell could not be run.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from elastic_cells import Cell, run_cell
from elastic_places import ROWS
from elastic_stakes import KINDS
from elastic_tables import HEAD, line, markdown, row_of
from private_slurm import PrivateSlurm, missing

#: Seconds from SIGTERM to SIGKILL: the default of Slurm, which `hpc.kill-delay` is made for.
KILL_WAIT_S = 30


def main() -> int:
    options = _options()
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    rows = [name for name in options.rows if ROWS[name].where in options.where]
    skipped = {}
    if why := missing():
        skipped = {name: why for name in rows if ROWS[name].where == "slurm"}
    classes = [ours for ours in (False, True) if not (ours and options.stock or not ours and options.ours)]
    wanted = [
        (name, kind, ours)
        for name in rows
        if name not in skipped
        for kind in options.kinds
        for ours in classes
    ]
    out = sys.stderr if options.json or options.markdown else sys.stdout
    print(f"seed {options.seed}, {len(wanted)} cells", file=out)
    for name, text in skipped.items():
        print(f"skipped: {name}: {text}", file=out)
    print(line(HEAD), file=out, flush=True)
    cells = []
    with _slurm(any(ROWS[name].where == "slurm" for name, _, _ in wanted)) as slurm:
        for name, kind, ours in wanted:
            cell = _run(name, kind, ours, options, slurm)
            cells.append(cell)
            print(row_of(cell), file=out, flush=True)
    if options.json:
        shown = [cell.as_dict() for cell in cells]
        print(json.dumps({"seed": options.seed, "skipped": skipped, "cells": shown}))
    if options.markdown:
        print(markdown(cells))
    return int(any(cell.error or cell.ours and not cell.holds for cell in cells))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What is lost when a cluster shrinks.")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help="triggers")
    parser.add_argument(
        "--where",
        nargs="+",
        choices=("local", "shell", "slurm"),
        default=("local", "shell", "slurm"),
        help="on a LocalCluster, on workers that were started from a shell, on Slurm (default: all)",
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=(*KINDS, "all"),
        default=KINDS,
        help="all: computed, scattered, actor and p2p in one cluster",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--stock", action="store_true", help="stock Dask only")
    which.add_argument("--ours", action="store_true", help="dask_hpc only")
    parser.add_argument("--threads", action="store_true", help="workers of a LocalCluster as threads: faster")
    parser.add_argument("--seed", type=int, default=0, help="of durations (default 0)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print JSON; progress goes to stderr")
    how.add_argument("--markdown", action="store_true", help="print one line a row; progress goes to stderr")
    return parser.parse_args()


@contextmanager
def _slurm(wanted: bool) -> Iterator[Any]:
    if not wanted:
        yield None
        return
    with PrivateSlurm(nodes=6, staging_nodes=1, kill_wait_s=KILL_WAIT_S) as slurm:
        yield slurm


def _run(name: str, kind: str, ours: bool, options: argparse.Namespace, slurm: Any) -> Cell:
    began_s = time.monotonic()
    try:
        return run_cell(name, kind, ours=ours, processes=not options.threads, seed=options.seed, slurm=slurm)
    except Exception as error:
        text = f"{type(error).__name__}: {error} (after {time.monotonic() - began_s:.0f} s)"
        return Cell(name, kind, ours, options.seed, error=text)


if __name__ == "__main__":
    sys.exit(main())
