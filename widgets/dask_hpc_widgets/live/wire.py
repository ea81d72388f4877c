"""What a browser has been told of a table, and what it is told next: changed cells of changed rows alone.

Rules of the file: pure; bounded in memory by the table that is shown, and on the wire by what the caller
allows. What does not fit waits for the next time, those rows first that wait already.

A piece of news is plain data for JSON: ``new`` (forget what was there; with ``head``: title, caption,
columns, kind, whether there is a search), ``note``, ``order`` (numbers of rows) or ``moved`` (place and count
of rows that went, by the places before; then place, first number and count of rows that came, from above),
``rows`` (cells of new rows, by number; 0, in the place of a cell, is that of the new row with the number
before) and ``cells`` (by number of row and of cell; an object, in the place of a cell, tells how the steps
that were there go on).
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import compress
from operator import ne
from typing import Any, NamedTuple

from dask_hpc_widgets.views.table import Cell, Table

News = dict[str, Any]
#: Bytes that tell of a stretch of rows that came or went.
_STRETCH_BYTES = 24
#: Rows that are measured together: each alone takes longer to measure than to make.
_TOGETHER = 8


class _Row(NamedTuple):
    """A row as it is now; of which kind its news are, and these: None when there are none."""

    key: Hashable
    number: str
    cells: list[Cell]
    kind: str
    news: Any


class Told:
    """The browser's copy of one table.

    Parameters
    ----------
    title
        Of the view.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._begin([])

    def _begin(self, head: list[Any]) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._next = 0
        self._made_of: dict[Hashable, Any] = {}
        self._cells: dict[Hashable, list[Cell]] = {}
        #: Rows, in the order in which they are shown.
        self._keys: list[Hashable] = []
        self._note = ""
        self._head = head
        #: The row that is looked at first the next time.
        self._first: Hashable = None

    @property
    def begun(self) -> bool:
        """Whether the browser knows its columns."""
        return bool(self._head)

    def news(self, table: Table, allowed_bytes: int) -> tuple[News, int]:
        """What the browser does not know of `table`, in about so many bytes, and how many it is.

        Empty: it knows everything, or nothing is allowed.
        """
        if allowed_bytes <= 0:
            return {}, 0
        found: News = {}
        head = [self._title, table.caption, [*map(list, table.columns)], table.kind, table.search]
        if self._head != head:
            self._begin(head)
            found.update(new=True, head=head)
        keys = list(table.rows)
        if keys != self._keys:
            self._order(keys, max(1, allowed_bytes // _STRETCH_BYTES), found)
        if table.note != self._note:
            self._note = found["note"] = table.note
        used = _bytes(found) if found else 0
        changed = list(self._changed(table))
        done, together = 0, _TOGETHER
        while done < len(changed):
            if used >= allowed_bytes:
                self._first = changed[done]
                break
            rows = [self._row(key, table) for key in changed[done : done + together]]
            size = _size(rows)
            if len(rows) > 1 and used + size >= allowed_bytes:
                # which of them have room is seen one by one
                together = 1
                continue
            for row in rows:
                self._made_of[row.key], self._cells[row.key] = table.rows[row.key], row.cells
                if row.news is not None:
                    found.setdefault(row.kind, {})[row.number] = row.news
            used += size
            done += len(rows)
        if "rows" in found:
            found["rows"] = _shorter(found["rows"])
        return found, used

    def whole(self) -> News:
        """All that was told, for a page that begins with it."""
        rows = {str(self._numbers[key]): cells for key, cells in self._cells.items()}
        return {
            "new": True,
            "head": self._head,
            "note": self._note,
            "order": [self._numbers[key] for key in self._keys],
            "rows": _shorter(rows),
        }

    def _order(self, keys: list[Hashable], most: int, found: News) -> None:
        """Put into the news which rows are shown now; of those that came and went `most` stretches."""
        new, old = dict.fromkeys(keys), dict.fromkeys(self._keys)
        if [key for key in keys if key in old] != [key for key in self._keys if key in new]:
            self._forget(old.keys() - new.keys())
            self._count(keys)
            self._keys = keys
            found["order"] = [self._numbers[key] for key in keys]
            return
        all_gone = _stretches([place for place, key in enumerate(self._keys) if key not in new])
        gone = all_gone[:most]
        # the last first: those before stay where they are
        for place, count in reversed(gone):
            self._forget(self._keys[place : place + count])
            del self._keys[place : place + count]
        came = []
        # places of those that come are told when none is shown any more that is gone
        if len(gone) == len(all_gone):
            places = [place for place, key in enumerate(keys) if key not in old]
            for place, count in _stretches(places)[:most]:
                came.append([place, self._next, count])
                self._count(keys[place : place + count])
                self._keys[place:place] = keys[place : place + count]
        found["moved"] = [gone, came]

    def _forget(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            del self._numbers[key]
            self._made_of.pop(key, None)
            self._cells.pop(key, None)

    def _count(self, keys: Iterable[Hashable]) -> None:
        """Give numbers to those that have none."""
        for key in keys:
            if key not in self._numbers:
                self._numbers[key] = self._next
                self._next += 1

    def _changed(self, table: Table) -> Iterator[Hashable]:
        """Rows that are made of something else than before."""
        # thousands of rows, of which few have changed: no line of Python for each
        before = map(self._made_of.get, table.rows)
        changed = [
            key
            for key in compress(table.rows, map(ne, table.rows.values(), before))
            # others are told of later
            if key in self._numbers
        ]
        begin = changed.index(self._first) if self._first in changed else 0
        yield from changed[begin:]
        yield from changed[:begin]

    def _row(self, key: Hashable, table: Table) -> _Row:
        """What is new of a row."""
        before, cells = self._cells.get(key), table.cells(table.rows[key])
        number = str(self._numbers[key])
        if before is None or len(before) != len(cells):
            return _Row(key, number, cells, "rows", cells)
        changed = {str(i): _step(before[i], cell) for i, cell in enumerate(cells) if before[i] != cell}
        return _Row(key, number, cells, "cells", changed or None)


def _stretches(places: Sequence[int]) -> list[tuple[int, int]]:
    """First and count of each stretch of places one after the other."""
    found: list[tuple[int, int]] = []
    for place in places:
        if found and sum(found[-1]) == place:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((place, 1))
    return found


def _shorter(rows: dict[str, list[Cell]]) -> dict[str, list[Any]]:
    """New rows by number, in that order; a cell that is as in the row before is 0."""
    found: dict[str, list[Any]] = {}
    before: list[Cell] = []
    for number in sorted(rows, key=int):
        cells = rows[number]
        found[number] = [0 if before[i : i + 1] == [cell] else cell for i, cell in enumerate(cells)]
        before = cells
    return found


def _step(before: Cell, cell: Cell) -> Cell | dict[str, Any]:
    """A cell, or only how its steps go on."""
    if cell and before and cell[0][:1] == ["steps"] == before[0][:1]:
        old, new = before[0], cell[0]
        if old[1:3] == new[1:3] and new[4][: len(old[4])] == old[4]:
            return {"end": new[3], "steps": new[4][len(old[4]) :]}
    return cell


# nothing that is told holds itself
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


def _size(rows: Sequence[_Row]) -> int:
    """Bytes that the news of these rows take, each with its number."""
    told = {row.number: row.news for row in rows if row.news is not None}
    # less the braces; with a comma for each
    return _bytes(told) - 1 if told else 0


def _bytes(value: Any) -> int:
    return len(_encode(value).encode())
