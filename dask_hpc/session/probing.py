"""Whether a session can write its next version, and whether another store is configured by now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dask

from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.store_threads import SilentStoreError
from dask_hpc.checkpoint.versions import numbers
from dask_hpc.session.in_store import asked
from dask_hpc_policies.params import AbsolutePath

#: What names the store.
SETTING = "hpc.checkpoint.store"
_FOLDER = AbsolutePath(SETTING, None)


@dataclass(frozen=True, slots=True)
class Probe:
    """What `CheckpointSession.probe_agents` has found."""

    #: Whether the next version goes to other places than those before.
    changed: bool
    #: Folder of the store that it goes to; None: there is none.
    store: str | None
    #: Why that cannot be, or why the store that is configured now is not taken, or why the memories of hosts
    #: cannot be had; None: nothing is wrong.
    problem: str | None
    #: Whether it goes to the memories of hosts.
    memory: bool = False


def configured() -> Any:
    """The store that files and the environment name now; text that says so when they cannot be read."""
    try:
        return dask.config.get(SETTING, "", config=dask.config.collect())
    except Exception as error:  # whatever there may be in a file of a user
        return f"in files that cannot be read: {error}"


def probe(store: Store | None, name: str, changed_to: Any) -> Probe:
    """Look at a store, and at the one that is configured now; None: there is no other."""
    here = None if store is None else str(store.folder)
    if changed_to is None:
        return Probe(False, here, None if store is None else _problem(store))
    try:
        other = Store(_FOLDER.validate(changed_to))
    except ValueError as error:
        return Probe(False, here, str(error))
    problem = _problem(other, name)
    return Probe(problem is None, here if problem else str(other.folder), problem)


def _problem(store: Store, name: str | None = None) -> str | None:
    """Why nothing can be written to a store; of one that is new for a name, also that it has some."""

    def look() -> str | None:
        problem = store.problem()
        if problem is None and name is not None and numbers(store.folder / name):
            return f"{store.folder} has versions of {name!r} already; remove them, or set another {SETTING}"
        return problem

    try:
        return asked(store)(look)
    except SilentStoreError as error:
        return str(error)
