"""Life of a job and of a reconfiguration, as tables.

Job (Chadha 2019, section 5.3, made explicit)::

    pending -> running <-> adapting -interrupted-> pending
       |          |           |
       |          +--close----+--> completing --complete--> completed
       +--cancel, fail (from every state above)--> cancelled, failed

Reconfiguration::

    steady -begin-> preparing -ready-> redistributing -moved-> committing -commit-> steady
                        +----------- abort or timeout ------------+--> aborting -restored-> steady
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_END = {"cancel": "cancelled", "fail": "failed"}
#: Next state of a job by state and event. A state without events is the end.
JOB_STATES: Final[Mapping[str, Mapping[str, str]]] = {
    "pending": {"start": "running", "close": "completing", **_END},
    "running": {"adapt": "adapting", "close": "completing", **_END},
    "adapting": {"adapted": "running", "interrupted": "pending", "close": "completing", **_END},
    "completing": {"complete": "completed", **_END},
    "completed": {},
    "failed": {},
    "cancelled": {},
}

_STOP = {"abort": "aborting", "timeout": "aborting"}
#: Next state of a reconfiguration by state and event.
RECONFIG_STATES: Final[Mapping[str, Mapping[str, str]]] = {
    "steady": {"begin": "preparing"},
    "preparing": {"drained": "redistributing", "ready": "redistributing", **_STOP},
    "redistributing": {"moved": "committing", **_STOP},
    "committing": {"commit": "steady", **_STOP},
    "aborting": {"restored": "steady"},
}


class IllegalTransition(ValueError):
    """An event that the present state does not allow."""


def job_step(state: str, event: str) -> str:
    """State of a job in `state` after `event`.

    Raises
    ------
    IllegalTransition
        Naming the state, the event and what would be legal.
    """
    return _step(JOB_STATES, "job", state, event)


def reconfig_step(state: str, event: str) -> str:
    """State of a reconfiguration in `state` after `event`.

    Raises
    ------
    IllegalTransition
        Naming the state, the event and what would be legal.
    """
    return _step(RECONFIG_STATES, "reconfiguration", state, event)


def _step(table: Mapping[str, Mapping[str, str]], what: str, state: str, event: str) -> str:
    if state not in table:
        raise IllegalTransition(f"{state!r} is no {what} state; states are {', '.join(table)}")
    events = table[state]
    if event not in events:
        legal = ", ".join(events) or "nothing: it is an end state"
        raise IllegalTransition(f"a {what} that is {state} cannot {event!r}; legal events: {legal}")
    return events[event]
