"""What other installed packages add to ours: objects behind entry points.

Groups are ``dask_hpc.policies`` (read by `dask_hpc_policies.registry`), ``dask_hpc.views`` (views of the
panel), ``dask_hpc.commands`` (of ``dask hpc``) and ``dask_hpc.checks`` (of ``dask hpc doctor``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any


def load(group: str, check: Callable[[Any], object]) -> dict[str, Any]:
    """The objects of a group by the names of their entry points, in order of these.

    One that does not load, or for which `check` raises, is left out with a warning: what somebody else has
    installed must not keep ours from working.
    """
    found: dict[str, Any] = {}
    for point in sorted(entry_points(group=group)):
        try:
            made = point.load()
            check(made)
        except Exception as error:  # whatever another package raises
            warnings.warn(
                f"{group} {point.name!r} of entry point {point.value!r} is skipped: {error!r}", stacklevel=2
            )
        else:
            found[point.name] = made
    return found
