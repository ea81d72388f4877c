"""What the scheduler side answers to a worker, or to its nanny."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_hpc.errors import DaskHPCError, InstallError


def answered(answer: Mapping[str, Any] | None) -> Any:
    """The result in an answer; a scheduler without the runtime gives None.

    Raises
    ------
    InstallError
        When there is no runtime.
    DaskHPCError
        When the scheduler side has refused; in its words.
    """
    if answer is None:
        raise InstallError("the scheduler has no dask_hpc; install it there (--preload dask_hpc.preload)")
    if "error" in answer:
        raise DaskHPCError(answer["error"][1])
    return answer["result"]
