"""Tables as data: rows by key, whose cells a browser changes one by one, and which a page has as markup.

Rules of the file: pure. A cell is a list of pieces, plain data for JSON: text, or a list of which the first
tells what it is: ``["strong", text]``, ``["badge", text]``, ``["soft", text]``, ``["alert", text]``,
``["svg", markup]`` of a template of ours, ``["letter", letter, colour]``, ``["bar", percent]``, a duration
``["for", seconds]``, the times ``["since", t_s]`` (how long that is ago), ``["ago", t_s]`` and
``["left", t_s]``, and sizes over time ``["steps", name, colour, end_s, [passed, nodes, passed, nodes, ...]]``
with what has passed since the time before, in tenths of a second. Other times are sent as such, so that a
cell in which only time passes is not sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from dask_hpc.report.looks import look, printable
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.markup import Column, Markup

Cell = list[Any]
#: Letters of a piece.
_LETTERS = 300


@dataclass(frozen=True, slots=True)
class Search:
    """What a person looks for among the jobs: words anywhere in them, and a state (empty: every one)."""

    text: str = ""
    state: str = ""


#: Every job.
EVERY = Search()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What a view shows, in order.

    Attributes
    ----------
    rows
        What each row is made of, by its key; a row is made anew when that is no longer equal.
    cells
        Makes the cells of a row of that. Pure.
    note
        A sentence below.
    kind
        ``table``; ``text`` for lines, each a row of one cell; or ``map`` or ``heat`` for tiles, of which the
        cells are id, state, colour, letter, holder and more lines.
    search
        Whether a person can search and filter.
    more
        Tables that follow in the same view.
    """

    caption: str
    columns: Sequence[Column] = ()
    rows: Mapping[Hashable, Any] = field(default_factory=dict)
    cells: Callable[[Any], list[Cell]]
    note: str = ""
    kind: str = "table"
    search: bool = False
    more: Sequence[Table] = ()

    def html(self, now_s: float) -> Markup:
        """The same for a page without widgets."""
        rows = ([cell_html(cell, now_s) for cell in self.cells(row)] for row in self.rows.values())
        found = Markup()
        if self.kind == "text":
            found += Markup().join(markup.element("div", *line) for line in rows)
        elif self.rows:
            found += markup.table(self.columns, rows, self.caption)
        found += markup.soft(self.note) if self.note else ""
        return found + Markup().join(one.html(now_s) for one in self.more)


def text(value: object) -> str:
    """`value` as a piece of a cell: for reading, and not too long."""
    found = printable(value)
    return found if len(found) <= _LETTERS else f"{found[: _LETTERS - 1]}…"


def letter(job: str) -> list[str]:
    """The letter of a job over its colour."""
    found = look(job)
    return ["letter", found.letter, found.color]


def named(name: str, id: str) -> Cell:
    """What a job is called: its letter, the user's name for it if there is one, and its id."""
    return [*_named(name, id)]


# a page is told of the same jobs twice a second
@lru_cache(maxsize=10_000)
def _named(name: str, id: str) -> tuple[Any, ...]:
    own = name if name and name != id else ""
    return letter(id), " ", ["strong", text(own or id)], *([f" {text(id)}"] if own else [])


def bounded(rows: Sequence[Any], most: int, all_in: str, key: Callable[[Any], Hashable]) -> dict[str, Any]:
    """The first `most` rows by their key, and the note that says where all are, as a `Table` takes them."""
    found: dict[Hashable, Any] = {}
    for row in rows[:most]:
        own = key(row)
        while own in found:
            # a namesake is a row of its own
            own = (own,)
        found[own] = row
    hidden = len(rows) - most
    return {"rows": found, "note": f"{hidden} more not shown; {all_in} has all." if hidden > 0 else ""}


def cell_html(cell: Cell, now_s: float) -> Markup:
    """A cell of a page at time `now_s`."""
    return Markup().join(_piece(piece, now_s) for piece in cell)


def _piece(piece: Any, now_s: float) -> str:
    if isinstance(piece, str):
        return piece
    kind, value, *more = piece
    if kind == "letter":
        return markup.letter("", markup.Look(value, more[0], "", 0, ""))
    if kind == "bar":
        return markup.bar(value / 100)
    if kind == "soft":
        return markup.element("span", value)
    if kind == "alert":
        return markup.alert(value)
    if kind == "svg":
        return Markup(value)
    if kind in ("strong", "badge"):
        return markup.strong(value) if kind == "strong" else markup.badge(value)
    passed_s = {"for": value, "since": now_s - value, "ago": now_s - value, "left": value - now_s}[kind]
    return markup.roughly(max(0.0, passed_s)) + (" ago" if kind == "ago" else "")
