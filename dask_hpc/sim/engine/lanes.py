"""The transfers of one job that go on beside computing, under way or waiting for those before them.

Rules of the file: plain data that `copy.deepcopy` copies; `transfers` moves it.
"""

from __future__ import annotations

from dask_hpc.sim.engine.saving import Kept, Saved
from dask_hpc.sim.model.checkpoints import PATHS, Path


class Moving:
    """One transfer under way, or waiting for those before it."""

    __slots__ = ("id", "keeps", "left_bytes", "participants", "path", "reads", "size_bytes")

    def __init__(
        self, id: str, path: Path, size_bytes: float, participants: int | None, reads: bool,
        keeps: Saved | Kept | None,
    ) -> None:  # fmt: skip
        self.id = id
        self.path = path
        self.size_bytes = size_bytes
        self.left_bytes = size_bytes
        #: How many nodes take part, at most; None: all of its job.
        self.participants = participants
        self.reads = reads
        #: The checkpoint that is there when it has ended; None: it makes none.
        self.keeps = keeps


class Lanes:
    """The transfers of one job."""

    __slots__ = ("flowing", "link_number", "link_rate", "link_since_s", "queues", "waited")

    def __init__(self) -> None:
        self.queues: dict[Path, list[Moving]] = {path: [] for path in PATHS}
        #: The one that is on the file system now.
        self.flowing: Moving | None = None
        #: Bytes per second of the first one over links, since when, and the number of its calendar entry.
        self.link_rate = 0.0
        self.link_since_s = 0.0
        self.link_number = 0
        #: The job has nothing left to do but to wait for them.
        self.waited = False

    @property
    def moving(self) -> list[Moving]:
        """All of them."""
        return [moving for queue in self.queues.values() for moving in queue]
