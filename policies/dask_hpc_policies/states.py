"""Life of a job, of a reconfiguration and of a checkpoint session, as tables.

Job (Chadha 2019, section 5.3, made explicit)::

    pending -> running <-> adapting -interrupted-> pending
       |          |           |
       |          +--close----+--> completing --complete--> completed
       +--cancel, fail (from every state above)--> cancelled, failed

Reconfiguration::

    steady -begin-> preparing -ready-> redistributing -moved-> committing -commit-> steady
                        +----------- abort or timeout ------------+--> aborting -restored-> steady

Checkpoint session (iCheck, section 7.4.3; its CONF, CP, REDIS and RESTORE are configuring and closing,
committing, redistributing, restoring; its IDLE before the first and after the last call are new and ended)::

    new -init-> configuring -restart-> restoring [-resize-> redistributing] -done-> idle
    idle -commit-> committing -done-> idle      idle -probe_agents-> redistributing -done-> idle
    idle -finalize-> closing -done-> ended

Its events are what a program calls, and `resize` and `done`, which follow from it. A program that goes on
computing says so by none of them: what is legal in idle is legal where only idle may follow.
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

#: Events of a session that no program calls.
SESSION_INNER: Final = frozenset({"resize", "done"})
_GO_ON = {"commit": "committing", "probe_agents": "redistributing", "finalize": "closing"}


def _also(state: str, events: Mapping[str, str]) -> Mapping[str, str]:
    """Events of a session between two calls, where what it is made of may be changed."""
    return {"add": state, "enable_async": state, **events, **_GO_ON}


#: Next state of a checkpoint session by state and event.
SESSION_STATES: Final[Mapping[str, Mapping[str, str]]] = {
    "new": {"init": "configuring"},
    "configuring": _also("configuring", {"restart": "restoring", "restart_all": "restoring"}),
    "restoring": _also("restoring", {"restore": "restoring", "resize": "redistributing", "done": "idle"}),
    "redistributing": _also("redistributing", {"restore": "redistributing", "done": "idle"}),
    "idle": _also("idle", {}),
    "committing": {"done": "idle"},
    "closing": {"done": "ended"},
    "ended": {},
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


def session_step(state: str, event: str) -> str:
    """State of a checkpoint session in `state` after `event`.

    Raises
    ------
    IllegalTransition
        Naming the state, the event and what a program may call.
    """
    try:
        return _step(SESSION_STATES, "session", state, event)
    except IllegalTransition:
        if state not in SESSION_STATES:
            raise
        legal = ", ".join(each for each in SESSION_STATES[state] if each not in SESSION_INNER)
        raise IllegalTransition(
            f"a session that is {state} cannot {event!r}; legal now: {legal or 'nothing'}"
        ) from None


def _step(table: Mapping[str, Mapping[str, str]], what: str, state: str, event: str) -> str:
    if state not in table:
        raise IllegalTransition(f"{state!r} is no {what} state; states are {', '.join(table)}")
    events = table[state]
    if event not in events:
        legal = ", ".join(events) or "nothing: it is an end state"
        raise IllegalTransition(f"a {what} that is {state} cannot {event!r}; legal events: {legal}")
    return events[event]
