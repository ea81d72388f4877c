"""What a process of its own does in place of work: it takes a core. Imported there, without a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

#: For `processes.Process.call`.
SPIN = f"{__name__}:spin"


def spin(arguments: Mapping[str, Any], tell: Any) -> None:
    """Take ``cpu_s`` seconds of a core, without memory, files or system calls beyond the clock's."""
    end_s = time.process_time() + arguments["cpu_s"]
    while time.process_time() < end_s:
        sum(range(20_000))
