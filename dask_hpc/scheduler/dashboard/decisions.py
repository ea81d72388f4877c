"""The page of decisions: a table of the latest, newest first, each with its reason.

Imported only where there is a dashboard.
"""

from __future__ import annotations

from dask_hpc.scheduler.dashboard.documents import Watched
from dask_hpc.scheduler.dashboard.told import ToldPanel, plain
from dask_hpc.show import html

#: The latest decisions that are shown.
_DECISIONS = 30


class DecisionsPanel(ToldPanel):
    """A table of the latest decisions, newest first, each with its reason."""

    title = "Dask: HPC decisions"

    def show(self, watched: Watched) -> None:
        """Show the state of now."""
        rows = list(watched.engine.controller.decisions)[-_DECISIONS:]
        text = html("decisions", rows, watched.engine.state.now_s())
        if text is None:
            told = (f"{row['job']} {row['action']} {row['result']}: {row['reason']}" for row in rows[::-1])
            text = plain("\n".join(told))
        self.tell(text)
