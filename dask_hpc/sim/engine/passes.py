"""When the policy is asked, and what happens until it has no more to say.

Rules of the file: after everything that happens at one moment the policy is asked once, and again as long as
it resizes anybody or starts what can be resized; then the jobs at scheduling points go on. While an answer
takes its time (`Options.decision_s`) the policy is not asked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_hpc.errors import SimulationError
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc_policies.model import Trigger

if TYPE_CHECKING:
    from dask_hpc.sim.engine.engine import Engine

#: Passes in one moment after which a policy is taken to go round in circles.
_MOST_PASSES = 10_000


class Passes:
    """The calls of the policy in one run."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        #: Jobs at a scheduling point at this moment.
        self.points: list[ActiveJob] = []
        #: Whether a job was resized, or one that can be was started, since the policy was asked.
        self.resized = False
        #: Seconds that the last answer takes; set by who asks. Then the sum and the largest of all.
        self.latency_s = 0.0
        self.total_latency_s = 0.0
        self.longest_latency_s = 0.0
        self._trigger: Trigger | None = None
        self._about: int | None = None
        #: An answer is on its way.
        self._late = False
        #: Number of things that a policy might want to know of, now and when it was asked last.
        self._changes = 0
        self._asked_at = -1

    @property
    def due(self) -> bool:
        """Whether there is anything to ask about."""
        return self._trigger is not None or bool(self.points) or self.resized

    def changed(self, trigger: Trigger, active: ActiveJob | None = None) -> None:
        """Something has happened that the policy may want to know of."""
        self._changes += 1
        if self._trigger is None or self._trigger == "tick" or self.engine.single:
            self._trigger = trigger
        if active is not None:
            self._about = active.key

    def answer(self, actions: Any) -> None:
        """An answer that took its time has come."""
        self._late = False
        self.engine.rounds.begin(actions)

    def ask(self) -> None:
        """Ask the policy if anything has changed, and go on from scheduling points."""
        engine, passes = self.engine, 0
        if self.resized:
            self.resized = False
            self.changed("finish")
        while self._trigger is not None or self.points:
            if self._trigger is not None and not self._late:
                self._pass()
                passes += 1
                if passes > _MOST_PASSES:
                    raise SimulationError(
                        f"policy {engine.policy.name!r} resizes for ever at {engine.now_s:g} s: "
                        f"{passes} passes without an end"
                    )
                continue
            points, self.points = self.points, []
            for active in points:
                active.at_point = False
                engine.asker.at_point(active)
                if active.state == "running" and active.key in engine.active:
                    engine.progress.advance(active)
            if self._late:
                break

    def _pass(self) -> None:
        engine, counts = self.engine, self.engine.counts
        trigger, self._trigger = self._trigger, None
        about, self._about = self._about, None
        if not engine.active or trigger is None:
            return
        idle, scans = self._changes == self._asked_at, counts.queue_scans
        self._asked_at = self._changes
        actions = engine.asker.ask(trigger, about)
        self.total_latency_s += self.latency_s
        self.longest_latency_s = max(self.longest_latency_s, self.latency_s)
        counts.idle_policy_calls += idle
        counts.idle_queue_scans += idle * (counts.queue_scans - scans)
        if not actions:
            return
        if self.latency_s > 0:
            self._late = True
            engine.schedule_answer(engine.now_s + self.latency_s, actions)
            return
        engine.rounds.begin(actions)
        if self.resized:
            # A resize, and the start of a job that can be resized, give a policy something new to say.
            self.resized = False
            self.changed("finish")
