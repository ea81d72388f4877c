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


Record = Header | Pass | Result | JobEvent | NodeEvent

#: The class of each ``kind`` of line.
RECORDS: Mapping[str, type[Record]] = {kind.TAG: kind for kind in (Header, Pass, Result, JobEvent, NodeEvent)}


def encode_line(record: Record) -> str:
    """One line of a trace, without the line break.

    Raises
    ------
    ValueError, TypeError
        When the record holds what JSON cannot (a float that is not finite, an object).
    """
    return json.dumps(codec.encode(record), separators=(",", ":"), allow_nan=False)


def decode_line(line: str) -> Record:
    """The record that one line holds.

    Raises
    ------
    ValueError
        When it is not JSON, not a known kind of record, or does not fit its kind; the message says
        what was expected.
    """
    try:
        data = json.loads(line, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("expected a record, got JSON that is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"expected one JSON object, got {_short(line)} ({error})") from None
    if not isinstance(data, dict):
        raise ValueError(f"expected one JSON object, got {_short(line)}")
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in RECORDS:
        raise ValueError(f"expected a kind of {', '.join(RECORDS)}; got {_short(repr(kind))}")
    try:
        return codec.decode(RECORDS[kind], data)
    except ValueError as error:
        # the value may be a whole snapshot
        raise ValueError(_short(str(error), 300)) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _short(text: str, longest: int = 60) -> str:
    text = text.strip()
    return text if len(text) <= longest else text[: longest - 3] + "..."
