"""The trace: what was seen, decided and done, as JSON lines.

The scheduler plugin and the simulator write the same records. The first line is a `Header`; every
other line is one of the records below, told apart by its ``kind``. Fields are only ever added, with
defaults, so that recorded traces load for ever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

from dask_hpc_policies import codec
from dask_hpc_policies.decision import Decision, Outcome
from dask_hpc_policies.model import ClusterSnapshot

#: Version of the record layout, written into every header.
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """First line of a trace."""

    TAG: ClassVar[str] = "header"
    schema: int = SCHEMA
    #: ``live`` or ``simulated``.
    source: str = "live"
    #: Wall-clock time of `t_s` = 0, ISO 8601 with zone; empty for a simulation.
    started: str = ""
    #: Versions of what wrote it, e.g. ``{"dask_hpc": "0.1.0", "distributed": "2026.8.0"}``.
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One call of the policy: its input, its state before and its answer."""

    TAG: ClassVar[str] = "pass"
    WRITTEN: ClassVar[tuple[str, ...]] = ("policy", "state", "snapshot", "decision", "decide_s")
    #: ``registry.spec_of(policy)``: enough to make the policy again.
    policy: Mapping[str, Any]
    #: The policy's state before the call, encoded; None for a policy without state.
    state: Any = None
    snapshot: ClusterSnapshot
    decision: Decision
    #: Seconds that `decide` took.
    decide_s: float = 0.0
    #: What guards have let through of it, when that is not all.
    arbitrated: Decision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one action."""

    TAG: ClassVar[str] = "outcome"
    t_s: float
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """A job entered a state (the first event of a job is ``pending``: its submission)."""

    TAG: ClassVar[str] = "job"
    t_s: float
    job: str
    name: str = ""
    state: str
    #: Nodes it holds from now on.
    nodes: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvent:
    """Nodes came, went or changed hands together."""

    TAG: ClassVar[str] = "nodes"
    t_s: float
    nodes: tuple[str, ...]
    #: Job that holds them from now on; None when no named job does.
    job: str | None = None
    #: ``up``, ``draining``, ``lost`` or ``removed``.
    state: str = "up"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossEvent:
    """Workers went together: they failed, or left as planned."""

    TAG: ClassVar[str] = "loss"
    #: When the first of them had gone.
    t_s: float
    #: What failed (`rules.losses.Severity`), or ``planned``.
    severity: str
    #: Nodes that had them, and how many workers there were.
    nodes: tuple[str, ...]
    workers: int = 1
    #: Computed results and scattered data that were nowhere else, and tasks that executed.
    results: int = 0
    scattered: int = 0
    interrupted: int = 0
    #: Node-seconds that had been watched by then, since the runtime was installed.
    exposure_node_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferEvent:
    """Bytes that are moved while their job computes: they began to be, or are no longer."""

    TAG: ClassVar[str] = "transfer"
    t_s: float
    #: Name of the transfer, unique in the trace.
    id: str
    job: str
    #: ``file-system``, or ``link`` (to another node).
    path: str
    #: ``begun``, ``ended`` or ``cut``: a failure, or the end of its job, came before.
    state: str
    size_bytes: float
    #: Of which moved by now.
    moved_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """A record of a kind that only those who wrote it know; it is kept as it is."""

    TAG: ClassVar[str] = "other"
    kind: str
    data: Mapping[str, Any]


#: Kind of others that tell what a job that ends has lent and borrowed: tasks, their seconds, why at last.
LENDING = "lending"
#: Kinds of others that tell what was drawn, and the bounds of the power corridor.
POWER_KINDS = DRAW, CORRIDOR = "draw", "corridor"
#: Kind of others that tell what a step of a flow has taken: ``t_s``, ``flow``, its figures (`trace.steps`).
STEP = "step"

Record = Header | Pass | Result | JobEvent | NodeEvent | LossEvent | TransferEvent | Other

#: The class of each ``kind`` of line that is known.
RECORDS: Mapping[str, type[Record]] = {
    kind.TAG: kind for kind in (Header, Pass, Result, JobEvent, NodeEvent, LossEvent, TransferEvent)
}


def encode_line(record: Record) -> str:
    """One line of a trace, without the line break.

    What JSON cannot hold (a float that is not finite, an object) is text where parts and policies tell it.

    Raises
    ------
    ValueError
        When another field of the record holds that: nobody could read the line.
    """
    other = {"kind": record.kind, **record.data} if isinstance(record, Other) else None
    try:
        return json.dumps(other or codec.encode(record), separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError):
        try:
            line = json.dumps(codec.encode(other or record, str), separators=(",", ":"), default=str)
        except RecursionError:
            raise ValueError("what it holds is nested too deeply, or without end") from None
        decode_line(line)
        return line


def decode_line(line: str) -> Record:
    """The record that one line holds.

    Raises
    ------
    ValueError
        When it is not JSON, says no kind, or does not fit its kind; the message says what was expected.
    """
    try:
        data = _read(line)
    except RecursionError:
        raise ValueError("expected a record, got JSON that is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"expected one JSON object, got {_short(line)} ({error})") from None
    if not isinstance(data, dict):
        raise ValueError(f"expected one JSON object, got {_short(line)}")
    kind = data.get("kind")
    if not isinstance(kind, str) or not kind:
        raise ValueError(f"expected a kind of {', '.join(RECORDS)} or another; got {_short(repr(kind))}")
    if kind not in RECORDS:
        return Other(kind=kind, data={name: value for name, value in data.items() if name != "kind"})
    try:
        return codec.decode(RECORDS[kind], data)
    except ValueError as error:
        # the value may be a whole snapshot
        raise ValueError(_short(str(error), 300)) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# made once: lines are read by the hundred thousand
_read = json.JSONDecoder(parse_constant=_refuse_constant).decode


def _short(text: str, longest: int = 60) -> str:
    text = text.strip()
    return text if len(text) <= longest else text[: longest - 3] + "..."
