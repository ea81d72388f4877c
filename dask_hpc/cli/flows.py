"""``dask hpc flows``: the flows of coupled programs, asked from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from dask_hpc.cli.connection import connected, connection_options
from dask_hpc.terminal import echo_json, echo_table, json_option

_COLUMNS = {
    "name": "NAME",
    "state": "STATE",
    "sources": "SOURCES",
    "steps": "STEPS",
    "in_flight": "IN FLIGHT",
    "queue": "QUEUE",
    "when_full": "WHEN FULL",
    "bytes": "BYTES",
    "analyses": "ANALYSES",
    "reason": "REASON",
}


@click.command()
@connection_options
@json_option
def flows(as_json: bool, **where: Any) -> None:
    """List the flows of coupled programs.

    SOURCES of a program on the cluster are 0: it is one of its jobs.
    """
    import dask_hpc

    with connected(**where) as client:
        found = dask_hpc.runtime(client).flows()
    if as_json:
        echo_json(found)
    else:
        rows = [{**row, "analyses": _shown(row["split"])} for row in found]
        echo_table(rows, _COLUMNS, "no flow is open: rt.couple declares one")


def _shown(split: Mapping[str, str]) -> str:
    """Analyses, and where each runs."""
    return ", ".join([f"{name} ({where})" for name, where in split.items()])
