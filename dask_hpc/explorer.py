"""``dask_hpc.explore()``: the simulation explorer, for people without a cluster."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dask_hpc.errors import InstallError


def explore(
    workload: str | Path = "builtin:five-jobs", policies: Sequence[Any] = ("easy", "pwma-fpsma")
) -> Any:
    """A Jupyter panel that compares policies on a workload in the simulator; no cluster is needed.

    Parameters
    ----------
    workload
        What is chosen at first: ``builtin:NAME``, or the path of a file (SWF, ElastiSim JSON, YAML, output of
        ``sacct``, a recorded trace).
    policies
        Likewise, two to six: names, YAML files or specifications. The first is the measure of the others.

    Returns
    -------
    dask_hpc_widgets.explorer.Explorer
        A widget; ``close()`` ends it.

    Raises
    ------
    InstallError
        When ipywidgets is not installed.
    ValueError
        When there is no such builtin workload or policy, or the policies are too few or too many.
    """
    try:
        # by name: the layer above this one, which needs what is not installed everywhere
        above = importlib.import_module("dask_hpc_widgets.explorer")
    except ImportError as error:
        raise InstallError(
            f"the explorer needs ipywidgets ({error}): pip install 'dask-hpc[widgets]'"
        ) from error
    return above.Explorer(workload, policies)
