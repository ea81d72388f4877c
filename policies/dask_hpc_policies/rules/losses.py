"""What has failed when workers are gone: a process, a host, a domain, or several at once.

Failures of systems are told apart by what fails together (Moody et al. 2010, section 2: most failures disable
one node or a part of the system that is known in advance, and few more than that), because that says which
copies of data are still there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

#: ``process``: one worker, others of its host are there, or it had the host for itself. ``host``, ``domain``:
#: all that was there. ``several``: anything more.
Severity = Literal["process", "host", "domain", "several"]
SEVERITIES: tuple[Severity, ...] = ("process", "host", "domain", "several")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a worker is or was."""

    #: Node, by its name.
    node: str
    #: Who shares its memory, and who fails together; None: not known.
    host: str | None = None
    domain: str | None = None


def severity(lost: Collection[Place], left: Collection[Place]) -> Severity:
    """The least class of failure that explains why these workers were lost together.

    Parameters
    ----------
    lost
        Where the workers were that were lost together, a place for each worker.
    left
        Where there are workers still.

    Raises
    ------
    ValueError
        When nothing was lost.
    """
    if not lost:
        raise ValueError("lost is empty; a loss has one worker at least")
    if len(lost) == 1:
        return "process"
    if _all_of({place.host for place in lost}, {place.host for place in left}):
        return "host"
    if _all_of({place.domain for place in lost}, {place.domain for place in left}):
        return "domain"
    return "several"


def _all_of(lost: set[str | None], left: set[str | None]) -> bool:
    """Whether one label was lost, with all that has it."""
    return len(lost) == 1 and None not in lost and not lost & left
