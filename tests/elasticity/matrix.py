"""The loss matrix on one machine: what is lost when a cluster shrinks, with stock Dask and with ours.

``python tests/elasticity/matrix.py`` runs every trigger with everything that can be lost, each on a
`distributed.LocalCluster` and on a `dask_hpc.LocalCluster` with the same work, and prints a table. Exits
with 1 when something was lost, or executed twice, on ours.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys

from elastic_cells import KINDS, TRIGGERS, Cell, run_cell

_HEAD = tuple("trigger kind cluster lost-computed lost-scattered twice actor right release".split())
_WIDTHS = (13, 10, 8, 14, 15, 6, 9, 6, 8)


def main() -> int:
    parser = argparse.ArgumentParser(description="What is lost when a cluster on one machine shrinks.")
    parser.add_argument("--triggers", nargs="+", choices=TRIGGERS, default=TRIGGERS, metavar="TRIGGER")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--stock", action="store_true", help="stock Dask only")
    which.add_argument("--ours", action="store_true", help="dask_hpc only")
    parser.add_argument("--threads", action="store_true", help="workers in this process: faster")
    parser.add_argument("--seed", type=int, default=0, help="of durations (default 0)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    classes = [ours for ours in (False, True) if not (ours and options.stock or not ours and options.ours)]
    if not options.json:
        print(f"seed {options.seed}")
        print(_line(_HEAD))
    cells = []
    for trigger in options.triggers:
        for kind in options.kinds:
            for ours in classes:
                cell = run_cell(trigger, kind, ours=ours, processes=not options.threads, seed=options.seed)
                cells.append(cell)
                if not options.json:
                    _show(cell)
    if options.json:
        print(json.dumps([cell.as_dict() for cell in cells]))
    return int(any(cell.ours and not holds(cell) for cell in cells))


def holds(cell: Cell) -> bool:
    """Whether nothing was lost and nothing executed twice."""
    named = cell.actor_alive is False and cell.announced == ["ledger"]
    return not (cell.lost_computed or cell.lost_scattered or cell.twice) and (cell.right or named)


def _show(cell: Cell) -> None:
    actor = "-" if cell.actor_alive is None else "alive" if cell.actor_alive else "LOST"
    release = "-" if cell.release_s is None else f"{cell.release_s:.1f} s"
    row = (
        cell.trigger,
        cell.kind,
        "ours" if cell.ours else "stock",
        cell.lost_computed,
        cell.lost_scattered,
        len(cell.twice),
        actor,
        "yes" if cell.right else "NO",
        release,
    )
    stays = "; ".join(f"{node} stays: {why}" for node, why in cell.refused.items())
    said = f"announced: {', '.join(cell.announced)}" if cell.announced else ""
    print(_line(row), stays, said, flush=True)


def _line(row: tuple[object, ...]) -> str:
    return "".join(f"{item!s:<{width}}" for item, width in zip(row, _WIDTHS, strict=True))


if __name__ == "__main__":
    sys.exit(main())
