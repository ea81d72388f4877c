"""What it costs a run that checkpoints cannot go to the memory of hosts, so that the file system takes them.

Source: John (2024, section 6.5.2, equations 6.13 and 6.14). What the source calls the checkpoint frequency is
a time, from one checkpoint to the next: below 6.13 it says itself that the time until memory is there again,
over it, is the number of checkpoints that the file system takes. All times are in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """What is known of a run whose checkpoints go to memory, and to the file system when that fails.

    Raises
    ------
    ValueError
        For a time that is no finite number, or is below 0; for a period of 0.
    """

    #: From one checkpoint to the next: ``cp_frequency`` of the source.
    period_s: float
    #: What a checkpoint takes in memory (``t_rdma_transfer``), and in the file system (``t_pfs_technique``).
    memory_s: float
    file_system_s: float
    #: What it takes to ask whether there is memory (``t_probe``), and to connect to who has it anew
    #: (``t_new_agent``).
    probe_s: float = 0.0
    connect_s: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0) or (field.name == "period_s" and value == 0):
                least = "above 0" if field.name == "period_s" else "0 or more"
                raise ValueError(f"{field.name} is {value!r}; allowed: a number of seconds, {least}")

    def reconnected_s(self, tries: int, wait_s: float) -> float:
        """How much longer a run takes that asks anew every `wait_s` and is answered at that try (6.13)."""
        return self.never_s(tries * wait_s)

    def never_s(self, elapsed_s: float) -> float:
        """How much longer a run takes that is never answered in what is left of it (6.14)."""
        direct = elapsed_s / self.period_s
        return self.probe_s + self.connect_s + direct * (self.file_system_s - self.memory_s)
