"""The page of checkpoints: what is protected, what a loss now would cost, the latest version of each name.

Imported only where there is a dashboard.
"""

from __future__ import annotations

from dask_hpc.scheduler.dashboard.documents import Watched
from dask_hpc.scheduler.dashboard.told import ToldPanel, plain
from dask_hpc.show import html


class CheckpointsPanel(ToldPanel):
    """What is protected, what a loss now would cost, and the latest version of each name."""

    title = "Dask: HPC checkpoints"

    def show(self, watched: Watched) -> None:
        """Show the state of now."""
        sections, _ = watched.sections()
        text = html("checkpoints", sections)
        if text is None:
            told = [
                f"{job['job']}: a loss now would cost {job['loss_is']} {job['loss_core_s']:.0f} core-s"
                for job in sections.get("protected_jobs", ())
            ]
            told += [
                f"{row['name']} {row['version']}: {row['state']} {row['reason']}"
                for row in sections.get("checkpoints", {}).get("latest", ())
            ]
            text = plain("\n".join(told) or "Nothing is protected.")
        self.tell(text)
