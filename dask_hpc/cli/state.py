"""States to go on from: a running cluster's present one, or that of a recorded trace at some time."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dask_hpc_policies.model import ClusterSnapshot

_TIMEOUT_S = 10.0
#: As Dask takes it, with or without its protocol.
_ADDRESS = re.compile(r"[a-z]+://\S+|[\w.-]+:[0-9]+")
#: A scheduler file is short.
_LONGEST_BYTES = 100_000


def state_of(
    source: str, at_s: float | None, default_s: float | None, others: Sequence[str]
) -> ClusterSnapshot | None:
    """The state that `source` names; None when it names a workload.

    Parameters
    ----------
    source
        Address or scheduler file of a running cluster, or a recorded trace.
    at_s
        Time in the trace; None: `source` is no trace to go on from.
    default_s
        How long a job takes when nobody knows.
    others
        Options that were given and are for workloads alone.

    Raises
    ------
    click.ClickException, DaskHPCError
        When no scheduler answers, the trace cannot be read, or options are given that mean nothing here.
    """
    address = source if _ADDRESS.fullmatch(source) else None
    file = None if address else _scheduler_file(source)
    if address is None and file is None and at_s is None:
        if default_s is not None:
            raise click.UsageError("--default-time is for the state of a running cluster, or of --at")
        return None
    wrong = [*others, *(["--at"] if at_s is not None and (address or file) else ())]
    if wrong:
        raise click.UsageError(f"{', '.join(wrong)} cannot be used with the state of a cluster")
    if default_s is not None and default_s <= 0:
        raise click.UsageError("--default-time must be above 0 s")
    if at_s is not None:
        if not source.lower().endswith((".jsonl", ".jsonl.gz")):
            raise click.UsageError(f"--at is for a recorded trace (.jsonl, or .jsonl.gz), not {source}")
        from dask_hpc.trace.files import read_trace
        from dask_hpc.trace.state import snapshot_at

        return snapshot_at(read_trace(source), at_s)
    return _present(address, file)


def _present(address: str | None, file: Path | None) -> ClusterSnapshot:
    import dask_hpc
    from dask_hpc.cli.connection import connected

    with connected(address, file, _TIMEOUT_S) as client:
        found: ClusterSnapshot = dask_hpc.runtime(client).snapshot()
    return found


def _scheduler_file(source: str) -> Path | None:
    """The file when it is one in which a scheduler has written its address."""
    path = Path(source)
    try:
        if path.suffix != ".json" or path.stat().st_size > _LONGEST_BYTES:
            return None
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None  # whatever it is, the reader of workloads says what is wrong with it
    return path if isinstance(data, dict) and data.get("type") == "Scheduler" and "address" in data else None
