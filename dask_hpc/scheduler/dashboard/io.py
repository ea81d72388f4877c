"""The page of I/O: what each file system gave, how many may be at it, and what each job spends there.

Imported only where there is a dashboard.
"""

from __future__ import annotations

from dask_hpc.scheduler.dashboard.documents import Watched
from dask_hpc.scheduler.dashboard.told import ToldPanel, plain
from dask_hpc.show import html


class IoPanel(ToldPanel):
    """What each file system gave, how many may be at it, and what each job spends there."""

    title = "Dask: HPC I/O"

    def show(self, watched: Watched) -> None:
        """Show the state of now."""
        sections, _ = watched.sections()
        text = html("io", sections)
        if text is None:
            told = [
                f"{row['kind']} {row['target']}: {row['read_bytes']} bytes read, {row['write_bytes']} "
                f"written, {row['writers']} tasks at it, {row['tokens'] or 'any number'} allowed"
                for row in sections.get("io", {}).get("targets", ())
            ]
            text = plain("\n".join(told) or "Nothing is measured.")
        self.tell(text)
