"""Tasks that take a given time: they compute, and wait for the rest.

So each worker process counts as a node, also where the machine has fewer cores than workers, and the
amount of work is the same in every run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def paced(seconds: float, function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)``, given `seconds` after the call, or as soon as it is known if that is later."""
    begin_s = time.perf_counter()
    result = function(*args)
    time.sleep(max(0.0, seconds - (time.perf_counter() - begin_s)))
    return result
