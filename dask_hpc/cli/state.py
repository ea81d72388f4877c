"""States to go on from: a running cluster's present one, or that of a recorded trace at some time."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dask_hpc.cli.workload_options import Setup
    from dask_hpc_policies.model import ClusterSnapshot

_TIMEOUT_S = 10.0
_ADDRESS = re.compile(r"[a-z]+://\S+")
#: A scheduler file is short.
_LONGEST_BYTES = 100_000


def state_of(setup: Setup) -> ClusterSnapshot | None:
    """The state that `setup` names; None when it names a workload.

    Raises
    ------
    click.ClickException, DaskHPCError
        When no scheduler answers, the trace cannot be read, or options are given that mean nothing here.
    """
    address = setup.source if _ADDRESS.fullmatch(setup.source) else None
    file = None if address else _scheduler_file(setup.source)
    if address is None and file is None and setup.at_s is None:
        if setup.default_s is not None:
            raise click.UsageError("--default-time is for the state of a running cluster, or of --at")
        return None
    given = {
        "--option": setup.options,
        "--malleable-share": setup.malleable_share is not None,
        "--wide": setup.wide != "refuse",
        "--recorded": setup.recorded is not None,
        "--at": setup.at_s is not None and (address or file),
    }
    if wrong := [name for name, is_given in given.items() if is_given]:
        raise click.UsageError(f"{', '.join(wrong)} cannot be used with the state of a cluster")
    if setup.default_s is not None and setup.default_s <= 0:
        raise click.UsageError("--default-time must be above 0 s")
    if setup.at_s is not None:
        if not setup.source.lower().endswith((".jsonl", ".jsonl.gz")):
            raise click.UsageError(f"--at is for a recorded trace (.jsonl, or .jsonl.gz), not {setup.source}")
        from dask_hpc.sim.trace_state import snapshot_at
        from dask_hpc.trace_io import read_trace

        return snapshot_at(read_trace(setup.source), setup.at_s)
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
