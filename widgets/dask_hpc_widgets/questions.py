"""What the panel asks a cluster. The one module of the package that calls the runtime's coroutines.

Each runs in the loop of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dask_hpc.client import Runtime
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_widgets.views import Picture

#: Ended jobs and decisions of a picture.
_ENDED, _DECISIONS = 12, 30


async def picture(runtime: Runtime) -> Picture:
    """What is shown over and over."""
    found = await runtime._ask("picture", ended=_ENDED, decisions=_DECISIONS)
    return Picture(**found)


async def state(runtime: Runtime) -> tuple[ClusterSnapshot, list[dict[str, Any]]]:
    """What a simulation goes on from: the snapshot, and the rows of jobs, of one moment."""
    snapshot, found = await asyncio.gather(runtime._snapshot(), runtime._ask("picture", ended=0, decisions=0))
    return snapshot, found["jobs"]


async def update(runtime: Runtime, policy: Mapping[str, Any]) -> dict[str, Any]:
    """Have the cluster decide by `policy`, a specification; gives what it says it runs."""
    status = await runtime._update(dict(policy), {})
    found: dict[str, Any] = status["policy"]
    return found
