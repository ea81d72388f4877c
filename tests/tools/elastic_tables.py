"""The loss matrix as text: one line a cell, and one line a row in markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from elastic_cells import Cell

HEAD = tuple("row kind cluster lost-computed lost-scattered twice actor right release".split())
_WIDTHS = (22, 13, 8, 14, 15, 6, 9, 6, 8)


def line(row: tuple[object, ...]) -> str:
    """A line of the table of cells."""
    return "".join(f"{item!s:<{width}}" for item, width in zip(row, _WIDTHS, strict=True))


def row_of(cell: Cell) -> str:
    """The line of a cell, with what it said."""
    row = (
        cell.row,
        cell.kind,
        "ours" if cell.ours else "stock",
        cell.lost_computed,
        cell.lost_scattered,
        len(cell.twice),
        _actor([cell]),
        "yes" if cell.right else "NO",
        "-" if cell.release_s is None else f"{cell.release_s:.1f} s",
    )
    if cell.error:
        return f"{line((*row[:3], *('' for _ in row[3:])))} not run: {cell.error}"
    notes = [f"{node} stays: {why}" for node, why in cell.refused.items()]
    if cell.announced:
        notes.append(f"announced: {', '.join(cell.announced)}")
    if cell.cut:
        notes.append(f"cut short: {', '.join(cell.cut)}")
    if cell.ours and cell.twice:
        notes.append(f"twice: {', '.join(cell.twice)}")
    return f"{line(row)} {'; '.join(notes)}".rstrip()


def markdown(cells: Sequence[Cell]) -> str:
    """One line a row, all kinds together."""
    head = "lost twice actor".split()
    titles = ["made smaller by", *(f"stock: {text}" for text in head), *(f"ours: {text}" for text in head)]
    lines = ["| " + " | ".join([*titles, "released in"]) + " |", "|---" * (len(titles) + 1) + "|"]
    for name in dict.fromkeys(cell.row for cell in cells):
        shown = [name]
        for ours in (False, True):
            of_row = [cell for cell in cells if cell.row == name and cell.ours == ours]
            shown += _figures(of_row)
        times = [cell.release_s for cell in cells if cell.row == name and cell.ours]
        known = [seconds for seconds in times if seconds is not None]
        shown.append(f"{statistics.median(known):.1f} s" if known else "-")
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _figures(cells: Sequence[Cell]) -> list[str]:
    if not cells or any(cell.error for cell in cells):
        return ["?"] * 3
    lost = f"{sum(c.lost_computed for c in cells)} + {sum(c.lost_scattered for c in cells)}"
    return [lost, str(sum(len(c.twice) for c in cells)), _actor(cells)]


def _actor(cells: Sequence[Cell]) -> str:
    """What became of the actor; of several, the worst."""
    with_actor = [cell for cell in cells if cell.actor_alive is not None]
    dead = [cell for cell in with_actor if not cell.actor_alive]
    if not with_actor:
        return "-"
    if not dead:
        return "alive"
    return "named" if all("ledger" in cell.announced for cell in dead) else "LOST"
