"""A `squeue` that says what a test wants, for what real ones cannot be brought to say at the right moment."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path


class FakeQueue:
    """A program in a folder of its own, which `path` puts before all others."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._rows, self._asked = folder / "rows", folder / "asked"
        program = folder / "squeue"
        program.write_text(f'#!/bin/sh\necho "$*" >> {self._asked}\ncat {self._rows}\n')
        program.chmod(0o755)
        #: In place of the environment's.
        self.path = f"{folder}{os.pathsep}{os.environ['PATH']}"

    def says(self, ends_s: Mapping[str, float]) -> None:
        """These jobs run, and end then, in seconds since 1970; infinity: they have no limit."""
        rows = []
        for job, end_s in ends_s.items():
            endless = end_s == math.inf
            end = "N/A" if endless else str(round(end_s))
            limit, left = ("UNLIMITED", "UNLIMITED") if endless else ("1:00:00", "0:30")
            begun = "1750000000"
            rows.append(
                f"{job}|{job}|compute|me|RUNNING|1|n1|{limit}|{left}|{begun}|{begun}|{end}|None|work\n"
            )
        part = self._rows.with_suffix(".part")
        part.write_text("".join(rows))
        part.replace(self._rows)

    def fails(self) -> None:
        """It cannot reach the controller."""
        self._rows.unlink()

    def asked(self) -> list[str]:
        """The arguments of each question so far."""
        return self._asked.read_text().splitlines() if self._asked.exists() else []
