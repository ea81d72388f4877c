"""What a study found: its runs, and what is computed from them once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from dask_hpc.sim.study.model import Study
from dask_hpc.sim.study.results import Beside, Checked, Row, Turn, beside, checked, rows_of, turns
from dask_hpc.sim.study.runs import Run


@dataclass(frozen=True)
class Findings:
    """What a study came to."""

    study: Study
    #: Every run, in order.
    runs: tuple[Run, ...]

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of the table."""
        return rows_of(self.study, self.runs)

    @cached_property
    def published(self) -> list[Beside]:
        """Published figures beside ours."""
        return beside(self.study, self.rows)

    @cached_property
    def conditions(self) -> list[Checked]:
        """Every condition on every row that it is for."""
        return checked(self.study, self.rows)

    @cached_property
    def turns(self) -> list[Turn]:
        """Where changes against the baseline change their sign."""
        return turns(self.study, self.rows)
