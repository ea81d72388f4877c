"""What a check is, and the table of all checks. Another one is one `register`.

Rules of the file: a check looks and tells; it changes nothing. One that fails is told of as one that found
something, and keeps no other from telling.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dask_hpc import capabilities
from dask_hpc.errors import DaskHPCError

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    name: str
    #: ``ok``; ``warn``: a part will not work; ``fail``: nothing will.
    verdict: Literal["ok", "warn", "fail"]
    text: str
    #: What to do about it; empty when nothing is to be done.
    remedy: str = ""


#: A check of this machine; one of a running cluster, which gets a client of it.
Check = Callable[[], Finding | Sequence[Finding]]
ClusterCheck = Callable[["Client"], Sequence[Finding]]

#: In the order they are told.
_checks: list[Check] = []
_cluster_checks: list[ClusterCheck] = []


def register(*checks: Check) -> None:
    """Have ``dask hpc doctor`` tell what `checks` find on this machine, after what it tells already."""
    _checks.extend(checks)


def register_cluster(*checks: ClusterCheck) -> None:
    """Have it tell what `checks` find on a running cluster."""
    _cluster_checks.extend(checks)


def examine(checks: Iterable[Check] | None = None) -> list[Finding]:
    """Findings of `checks`, all that are registered when None; the first tells what was examined."""
    try:
        version = importlib.metadata.version("dask-hpc")
    except importlib.metadata.PackageNotFoundError:
        version = "from a source tree"
    about = Finding("dask-hpc", "ok", f"{version}, {platform.system()} {platform.machine()}")
    if checks is None:
        # these register theirs
        capabilities.load()
        checks = tuple(_checks)
    return [about, *(one for check in checks for one in _found(check))]


def examine_cluster(client: Client) -> list[Finding]:
    """Findings of all checks about the cluster of `client`.

    Raises
    ------
    OSError, DaskHPCError
        When it does not answer, or refuses to.
    """
    capabilities.load()
    return [one for check in _cluster_checks for one in _found(check, client)]


def _found(check: Callable[..., Finding | Sequence[Finding]], *cluster: Client) -> Sequence[Finding]:
    try:
        found = check(*cluster)
    except Exception as error:  # whatever a capability's check raises
        if cluster and isinstance(error, (OSError, DaskHPCError)):
            # it is gone: there is nothing to be told of it
            raise
        name = getattr(check, "__name__", repr(check)).removeprefix("check_").replace("_", " ")
        return [Finding(name, "warn", f"the check failed: {type(error).__name__}: {error}")]
    return [found] if isinstance(found, Finding) else found
