"""What a view is: a name, a heading, and a function from what is known of the cluster to HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What the runtime answered at one moment."""

    #: `Runtime.status`, `Runtime.jobs` and the last of `Runtime.decisions`.
    status: Mapping[str, Any]
    jobs: Sequence[Mapping[str, Any]] = ()
    decisions: Sequence[Mapping[str, Any]] = ()
    #: Jobs that have ended and are remembered; `jobs` may hold the last of them alone.
    ended_jobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One part of the panel. It has no state: what it shows live is what it shows in an exported notebook."""

    #: Stable and short: what users and tests choose it by.
    name: str
    title: str
    #: Pure. Gives the markup below the title (`dask_hpc_widgets.base.markup`); must escape what it is given.
    html: Callable[[Picture], str]
