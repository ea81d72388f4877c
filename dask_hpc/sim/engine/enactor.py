"""Acts on what happens to jobs, and carries decisions out: the one part that knows what all others say.

Rules of the file: it decides nothing. What the parts below return (a job is done, a round has started
another one, a node has failed) is followed up here: accounts are closed, the policy's asker is told, and
what a policy may want to know of is noted as news. Only the engine, which moves the time, is above it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.asking import Asker
from dask_hpc.sim.engine.calendar import Calendar
from dask_hpc.sim.engine.commits import Commits
from dask_hpc.sim.engine.failures import Lost
from dask_hpc.sim.engine.life import Life
from dask_hpc.sim.engine.nodes import NodePool
from dask_hpc.sim.engine.progress import Keep, Progress, Step
from dask_hpc.sim.engine.roles import Roles
from dask_hpc.sim.engine.rounds import Happened, Rounds
from dask_hpc.sim.engine.supply import Supply
from dask_hpc.sim.engine.thefts import Theft, Thefts
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.coupled import Coupled
from dask_hpc.sim.model.job import Job
from dask_hpc_policies.decision import (
    RESIZES,
    Action,
    Checkpoint,
    Outcome,
    Reason,
    ReasonCode,
    ReleaseNodes,
    RequestNodes,
    SetRole,
    Steal,
)
from dask_hpc_policies.model import Interruption


class Enactor:
    """Acts in one run.

    Parameters
    ----------
    asker
        How the policy is asked. It is told here what happens to jobs; another policy has another one.
    """

    def __init__(
        self,
        world: World,
        calendar: Calendar,
        nodes: NodePool,
        supply: Supply,
        progress: Progress,
        asker: Asker,
    ) -> None:
        self.asker = asker
        self._world = world
        self._nodes = nodes
        self._progress = progress
        self.life = Life(world, nodes, progress)
        self._rounds = Rounds(world, calendar, nodes, progress, self.life)
        self.commits = Commits(world, calendar, progress)
        self._thefts = Thefts(world, calendar, self.commits)
        #: What carries out each kind of action that allots nothing; twins add theirs.
        self._others: Mapping[type[Action], Callable[[Any], Outcome]] = {
            RequestNodes: supply.request,
            ReleaseNodes: supply.release,
            SetRole: Roles(world, nodes).set,
            Checkpoint: self._checkpoint,
        }

    # ------------------------------------------------------------------- decisions

    def carry_out(self, actions: Iterable[Action]) -> None:
        """Do what was decided: first what allots nothing, then thefts, then a round."""
        for action in actions:
            if not isinstance(action, RESIZES):
                self._enact_other(action)
        for action in actions:
            if isinstance(action, Steal) and (found := self._thefts.begin(action)) is not None:
                self._rob(*found)
        self._settle_all(self._rounds.begin(actions))

    def _enact_other(self, action: Action) -> None:
        kind = type(action)
        enactor = self._others.get(kind) or self._world.twins.enactor(kind)
        if enactor is not None:
            outcome = enactor(action)
            if outcome.result == "refused":
                self._world.refuse(action, outcome.reason)
            else:
                self._world.listener.ended_at_once(outcome)
        else:
            text = f"nobody here carries out {action.TAG!r}"
            self._world.refuse(action, Reason(ReasonCode.UNSUPPORTED, text))

    def _checkpoint(self, action: Checkpoint) -> Outcome:
        active = self._world.by_id.get(action.job)
        text: str | None = f"job {action.job} neither waits nor runs"
        if active is not None:
            text = self.commits.ask(active, action.level)
        if text is not None:
            return Outcome(action=action, result="refused", reason=Reason(ReasonCode.UNSUPPORTED, text))
        return Outcome(action=action, result="done", reason=action.reason)

    def theft_due(self, theft: Theft) -> None:
        """The victim of a theft has its checkpoint."""
        victim = self._thefts.due(theft)
        if victim is not None:
            self._rob(victim, "saved")
            self._world.news.changed("finish", victim)

    def close_window(self, active: ActiveJob) -> None:
        """The window of a job's resize is over."""
        self._settle_all(self._rounds.close_window(active))
        self._world.news.changed("finish", active)

    # ------------------------------------------------------------------------ jobs

    def submit(self, job: Job, key: int) -> None:
        """A job of the workload waits from now on."""
        active = ActiveJob(job, key)
        self.life.submit(active)
        self.asker.submitted(active)
        self._world.news.changed("submit", active)
        self._world.listener.job(active)

    def adopt(self, active: ActiveJob, nodes: int) -> None:
        """A job is there when the run begins: it runs on so many nodes, or waits on none."""
        self.life.submit(active)
        self.asker.submitted(active)
        if nodes:
            self.start(active, nodes)

    def start(self, active: ActiveJob, nodes: int) -> None:
        """A pending job begins on `nodes` nodes."""
        step = self.life.start(active, nodes)
        if step != "busy":
            self.settle(active, step)

    def settle(self, active: ActiveJob, step: Step) -> None:
        """Act on what a job has come to, until it is busy, waits for others, or has ended."""
        news = self._world.news
        while step != "busy":
            if step == "done":
                self._end(active)
                return
            if step == "commit":
                if self.commits.begin(active):
                    return
                self._thefts.committed(active)
            elif step == "request":
                news.changed("request", active)
            elif self._rounds.waits_for_point(active):
                self._settle_all(self._rounds.open_window(active))
                return
            elif active.state != "adapting" and active.job.kind not in ("rigid", "moldable"):
                # it goes on when the policy has been asked about it
                active.at_point = True
                active.clock = None
                self.asker.at_point(active)
                news.points.append(active)
                news.changed("scheduling-point", active)
                return
            step = self._progress.advance(active)

    def commit(self, active: ActiveJob) -> None:
        """A commit of the job is due, or what holds it up is over."""
        if active.saving is not None and active.saving.held is not None:
            self.commits.over(active)
        elif self.commits.begin(active):
            return
        self._thefts.committed(active)
        if self._rounds.held_back(active):
            self._settle_all(self._rounds.open_window(active))
        else:
            self.settle(active, self._progress.go_on(active))

    def flow(self, active: ActiveJob, number: int) -> None:
        """The entry of this number says that something of a job's coupled run is over."""
        if self._progress.coupled.happened(active, number):
            self.settle(active, self._progress.advance(active))
        elif self._rounds.held_back(active):
            self._settle_all(self._rounds.open_window(active))

    def moved(self, active: ActiveJob, step: Step) -> None:
        """A transfer of the job has ended."""
        self.settle(active, step)
        self._thefts.committed(active)

    def _settle_all(self, happened: Iterable[Happened]) -> None:
        for active, what in happened:
            if what == "resized":
                self.asker.resized(active)
            else:
                self.settle(active, what)

    def leave_point(self, active: ActiveJob) -> None:
        """The policy was asked about a job at a scheduling point, which goes on unless it is resized now."""
        if isinstance(active.stage, Coupled):
            self._progress.coupled.go(active)
            return
        active.at_point = False
        active.clock = None
        self.asker.at_point(active)
        if active.state == "running" or self._rounds.waits_for_nodes(active):
            self.settle(active, self._progress.advance(active))

    def release(self, active: ActiveJob) -> None:
        """A job's nodes are free already, although its end is still to come in this moment."""
        self._nodes.give(active)
        self.asker.finished(active)
        active.released = True

    def _end(self, active: ActiveJob) -> None:
        if not active.released:
            self.asker.finished(active)
        self.life.end(active, "completed")
        self._thefts.left(active)
        self._leave_round(active)
        self._world.news.changed("finish", active)

    # --------------------------------------------------------------- interruptions

    def lose_node(self, lost: Lost) -> None:
        """Nodes of a job have failed or gone: it goes on without them, or waits again."""
        active = lost.active
        if active is not None and lost.goes_on:
            step = self.life.lose_nodes(active, lost.gone, lost.severity)
            self.asker.resized(active)
            self.settle(active, step)
            # the commit that a theft waits for may have been broken off: none comes after it
            self._thefts.committed(active)
        elif active is not None:
            self._leave_round(active)
            self.life.lose(active, "saved", gone=lost.gone, severity=lost.severity)
            self._requeue(active, "failure")
        self._world.news.changed("node-lost" if lost.gone else "finish", active)

    def _rob(self, victim: ActiveJob, keep: Keep) -> None:
        """The victim of a theft gives up all its nodes."""
        self.life.lose(victim, keep)
        self._requeue(victim, "theft")
        self._world.listener.done(victim)
        self._world.news.resized = True

    def _leave_round(self, active: ActiveJob) -> None:
        """The round of a job that stops goes on without it: called before failed nodes are taken off."""
        if active.round is not None:
            self._settle_all(self._rounds.left(active))

    def _requeue(self, active: ActiveJob, why: Interruption) -> None:
        self.asker.finished(active)
        self.life.requeue(active, why)
        self._thefts.left(active)
        self.asker.submitted(active)
