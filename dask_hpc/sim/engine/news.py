"""What the policy has not been told yet.

Rules of the file: plain data. Who changes something that a policy may want to know of notes it here; the
engine asks the policy when everything of a moment has happened.
"""

from __future__ import annotations

from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc_policies.model import Trigger
from dask_hpc_policies.protocol import Policy


class News:
    """What has happened since the policy was asked."""

    __slots__ = ("_changes", "_told", "about", "points", "resized", "single", "trigger")

    def __init__(self, single: bool) -> None:
        #: With single events the last thing that happened is the trigger, else the first one.
        self.single = single
        #: Why the policy is asked next; None: there is nothing to ask about.
        self.trigger: Trigger | None = None
        #: Key of the job that something happened to last.
        self.about: int | None = None
        #: Jobs at a scheduling point at this moment.
        self.points: list[ActiveJob] = []
        #: Whether a job was resized, or one that can be was started: a policy has something new to say.
        self.resized = False
        #: Number of things that happened, now and when the policy was asked last.
        self._changes = 0
        self._told = -1

    def changed(self, trigger: Trigger, active: ActiveJob | None = None) -> None:
        """Something has happened that a policy may want to know of."""
        self._changes += 1
        if self.trigger is None or self.trigger == "tick" or self.single:
            self.trigger = trigger
        if active is not None:
            self.about = active.key

    def take(self) -> tuple[Trigger | None, int | None, bool]:
        """Why the policy is asked now, about which job, and whether nothing has happened since it was asked.

        Nothing of that is news any more.
        """
        found = self.trigger, self.about, self._changes == self._told
        self.trigger = self.about = None
        self._told = self._changes
        return found


def single(policy: Policy) -> bool:
    """Whether the policy wants to be asked after every single event."""
    return getattr(policy, "params", {}).get("events") == "single"
