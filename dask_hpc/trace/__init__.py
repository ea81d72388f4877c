"""The trace: what was seen, decided and carried out, as JSON lines, live and simulated."""

from __future__ import annotations

from dask_hpc.trace.files import Trace, TraceFile, TraceWarning, parse_trace, read_trace, write_trace
from dask_hpc.trace.records import (
    SCHEMA,
    Header,
    JobEvent,
    LossEvent,
    NodeEvent,
    Other,
    Pass,
    Record,
    Result,
    TransferEvent,
    decode_line,
    encode_line,
)
from dask_hpc.trace.runs import job_runs, pool_steps

__all__ = [
    "SCHEMA",
    "Header",
    "JobEvent",
    "LossEvent",
    "NodeEvent",
    "Other",
    "Pass",
    "Record",
    "Result",
    "Trace",
    "TraceFile",
    "TraceWarning",
    "TransferEvent",
    "decode_line",
    "encode_line",
    "job_runs",
    "parse_trace",
    "pool_steps",
    "read_trace",
    "write_trace",
]
