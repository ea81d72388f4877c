"""The forecast of the draw in a process of its own: what that process does.

Rules of the file: it is imported there, and imports no cluster.
"""

from __future__ import annotations

import base64
import time
import warnings
from array import array
from collections.abc import Mapping
from typing import Any

from dask_hpc.processes import Tell
from dask_hpc_policies.power.forecast import forecast, load_models

#: For `processes.Process.call`.
EXPECTED = f"{__name__}:expected"


def packed(column: bytes) -> str:
    """Floats of 8 bytes as text for JSON, of one machine."""
    return base64.b64encode(column).decode("ascii")


def expected(arguments: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Called in the process: what is expected of the next samples, as JSON.

    Parameters
    ----------
    arguments
        ``t_s`` (seconds, rising) and ``watts``, as many, both `packed`, and ``steps``, samples ahead.

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
        found = forecast(_floats(arguments["t_s"]), _floats(arguments["watts"]), arguments["steps"])
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


def _floats(text: str) -> list[float]:
    found = array("d")
    found.frombytes(base64.b64decode(text))
    return found.tolist()
