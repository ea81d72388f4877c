"""I/O: what each file system gave, how many may be at it, and how much of its time each job spends there."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from dask.utils import format_bytes

from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.markup import Column, Markup
from dask_hpc_widgets.views.table import EVERY, Cell, Search, Table, bounded, named, text
from dask_hpc_widgets.views.view import Picture, View

#: Targets and jobs beyond these are counted and not shown, of jobs the oldest.
_MAX_ROWS = 50
_EMPTY = (
    "Nothing is measured. dask_hpc.metered(store) measures a Zarr store, measure_io=True of a job its files."
)
_TARGETS: tuple[Column, ...] = (
    ("Target", False),
    ("Kind", False),
    ("Read", True),
    ("Written", True),
    ("One task gets", True),
    ("Tasks at it", True),
    ("Tokens", True),
)
_JOBS: tuple[Column, ...] = (
    ("Job", False),
    ("Read", True),
    ("Written", True),
    ("In I/O", True),
    ("Of its time", False),
    ("Measured", False),
)


def html(picture: Picture) -> Markup:
    """A row a file system, and a row a job, the latest first."""
    return table(picture).html(0.0)


def table(picture: Picture, search: Search = EVERY) -> Table:
    """The same as data."""
    told = picture.section("io")
    if not told:
        return Table(caption="I/O", cells=list, note=_EMPTY)
    targets = bounded(told["targets"], _MAX_ROWS, "rt.io()", itemgetter("target"))
    jobs = bounded(told["jobs"][::-1], _MAX_ROWS, "rt.io()", itemgetter("id"))
    by_job = Table(caption="I/O by job", columns=_JOBS, cells=_job, **jobs)
    return Table(
        caption="I/O by file system",
        columns=_TARGETS,
        cells=_target,
        more=(by_job,) if by_job.rows else (),
        **targets,
    )


def _target(row: Mapping[str, Any]) -> list[Cell]:
    rate, tokens = row["bandwidth_bytes_s"], row["tokens"]
    return [
        [text(row["target"])],
        [text(row["kind"])],
        [format_bytes(row["read_bytes"])],
        [format_bytes(row["write_bytes"])],
        ["" if rate is None else f"{format_bytes(int(rate))}/s"],
        [str(row["writers"])],
        ["any" if tokens is None else str(tokens)],
    ]


def _job(row: Mapping[str, Any]) -> list[Cell]:
    share = row["intensity"]
    return [
        named(row["name"], row["id"]),
        [format_bytes(row["read_bytes"])],
        [format_bytes(row["write_bytes"])],
        [markup.seconds(row["io_s"])],
        ["" if share is None else f"{share:.0%}"],
        [text(row["quality"])],
    ]


VIEW = View(name="io", title="I/O", section="io", html=html, table=table)
