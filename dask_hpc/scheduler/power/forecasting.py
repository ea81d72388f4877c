"""The forecast of the draw in a process of its own: what that process does.

Rules of the file: it is imported there, and imports no cluster.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any

from dask_hpc.processes import Tell
from dask_hpc_policies.power.forecast import forecast, load_models

#: For `processes.Process.call`.
EXPECTED = f"{__name__}:expected"


def expected(arguments: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Called in the process: what is expected of the next samples, as JSON.

    Parameters
    ----------
    arguments
        ``t_s`` (seconds, rising), ``watts``, as many, and ``steps``, samples ahead.

    Raises
    ------
    SeriesError, ProgramError
        As `forecast`.
    """
    load_models()
    began_s = time.process_time()
    with warnings.catch_warnings():
        # of searches that end early: the errors of the models are told
        warnings.simplefilter("ignore")
        found = forecast(arguments["t_s"], arguments["watts"], arguments["steps"])
    return {
        "model": found.model,
        "mean_w": list(found.mean_w),
        "min_w": found.min_w,
        "max_w": found.max_w,
        "mape": dict(found.mape),
        "error": found.mape.get(found.model),
        "step_s": found.step_s,
        "season": found.season,
        "reason": found.reason,
        "cpu_s": time.process_time() - began_s,
    }
