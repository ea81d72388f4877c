"""I/O: what each file system gave, how many may be at it, and how much of its time each job spends there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask.utils import format_bytes

from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.markup import Column, Markup
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
    told = picture.section("io")
    if not told:
        return markup.soft(_EMPTY)
    targets, jobs = told["targets"], told["jobs"][::-1]
    parts = [markup.table(_TARGETS, [_target(row) for row in targets[:_MAX_ROWS]], "I/O by file system")]
    if jobs:
        parts.append(markup.table(_JOBS, [_job(row) for row in jobs[:_MAX_ROWS]], "I/O by job"))
    if (hidden := max(0, len(targets) - _MAX_ROWS) + max(0, len(jobs) - _MAX_ROWS)) > 0:
        parts.append(markup.soft(f"{hidden} more are not shown; rt.io() has all."))
    return Markup().join(parts)


def _target(row: Mapping[str, Any]) -> list[str]:
    rate, tokens = row["bandwidth_bytes_s"], row["tokens"]
    return [
        row["target"],
        row["kind"],
        format_bytes(row["read_bytes"]),
        format_bytes(row["write_bytes"]),
        "" if rate is None else f"{format_bytes(int(rate))}/s",
        str(row["writers"]),
        "any" if tokens is None else str(tokens),
    ]


def _job(row: Mapping[str, Any]) -> list[str]:
    share = row["intensity"]
    return [
        markup.named(row["name"], row["id"]),
        format_bytes(row["read_bytes"]),
        format_bytes(row["write_bytes"]),
        markup.seconds(row["io_s"]),
        "" if share is None else f"{share:.0%}",
        row["quality"],
    ]


VIEW = View(name="io", title="I/O", section="io", html=html)
