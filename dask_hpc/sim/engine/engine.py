"""The engine: a calendar of events, the jobs and nodes that they change, and a policy that is asked.

Rules of the file: the parts, which `world` lists, return what happened; it is acted on here, and, where it
concerns single jobs, by the `Enactor`. No part knows the engine. Time is a number that only the calendar
moves. Nothing happens between its entries: there are no ticks unless `Options.tick_s` asks for them, but for
one at the last moment for a commit of a job, one of whose nodes goes at the end of its walltime.

At one moment, in this order: nodes come back or come anew, stages and jobs end (in the order in which they
were entered: jobs that began earlier first), transfers end, parts of coupled runs do, commits begin and end,
windows of resizes close, thefts that waited for a checkpoint happen, nodes fail, walltimes of nodes end, jobs
are submitted (in the order of the workload), the policy's late answers arrive, ticks and looks. Then it is
asked once, and again as long as it resizes anybody or starts what can be resized. What its decision brings
about at the same moment (a job of no length) is the next round of that moment.

With ``events=single``, a parameter that a policy may declare, it is asked after every single entry instead,
for comparison with simulators that do so. Then jobs are submitted before anything ends at that moment, as in
pyss (its later versions, which order events by kind: submissions, ends, starts), and the nodes of jobs that
end at this moment exactly when they were expected to are free from its first entry on, as if planned with.

Ours: a job that outlives its estimate runs on, expected to end the next moment, where pyss makes the estimate
as long as the run and cuts it at the time requested; a job of no length ends when it starts, there after a
second. Where neither arises, both start every job at the same time (`tests/tools/reference_waits.py`).

Every run checks itself (`SimulationError`): nodes of all states add up at every moment; node-seconds held
equal those handed out; work and bytes (`progress`) and energy (`energy`) are conserved.
"""

from __future__ import annotations

import copy
from bisect import insort
from collections.abc import Callable, Iterator
from heapq import heappop
from math import inf

from dask_hpc.errors import SimulationError
from dask_hpc.sim.engine import corridor as _corridor  # noqa: F401
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.asking import NOTHING, make_asker

# isort: off
from dask_hpc.sim.engine.calendar import (
    ANSWER, COMMIT, CORRIDOR, FLOW, IO, LINK, LOOK, NODE_BACK, NODE_FAILS, NODE_GOES, NODE_GRANTED, NODE_UP,
    STAGE, SUBMIT, THEFT, TICK, VERSIONED, Calendar, Entry,
)  # fmt: skip

# isort: on
from dask_hpc.sim.engine.checkpoints import next_look_s
from dask_hpc.sim.engine.enactor import Enactor
from dask_hpc.sim.engine.energy import meter_of
from dask_hpc.sim.engine.failures import FailureSource
from dask_hpc.sim.engine.lending import lending_of
from dask_hpc.sim.engine.news import News, single
from dask_hpc.sim.engine.nodes import NodePool
from dask_hpc.sim.engine.outside import outside_of
from dask_hpc.sim.engine.progress import Progress
from dask_hpc.sim.engine.supply import Supply
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.machine import Machine, NodeFailure, Options
from dask_hpc.sim.model.power import Energy
from dask_hpc.sim.model.workload import Workload, fitted
from dask_hpc_policies.protocol import Policy

#: Ticks, random failures, and nodes that come or go in a row, with nothing running, after which a run is
#: over.
_MOST_STALLED = 10_000
#: Passes in one moment after which a policy is taken to go round in circles.
_MOST_PASSES = 10_000
#: Moments from one word of progress to the next: few enough that who asks a run to end waits for well below a
#: second, also where every moment asks a policy that is slow.
_TELL_AFTER = 25


class Engine:
    """One run. `run` to the end, or `run_until` and `fork` on the way."""

    def __init__(self, workload: Workload, policy: Policy, machine: Machine, options: Options) -> None:
        self.policy = policy
        self.world = world = World(fitted(workload, machine.nodes), machine, options, News(single(policy)))
        self.calendar = calendar = Calendar()
        self.nodes = NodePool(world)
        self.progress = Progress(world, calendar)
        asker = make_asker(policy, world, self.nodes)
        self.supply = Supply(world, calendar, self.nodes)
        self.enactor = Enactor(world, calendar, self.nodes, self.supply, self.progress, asker)
        self._lending = lending_of(world, self.nodes, self.progress)
        self.failures = FailureSource(world, calendar, self.nodes)
        self.failures.schedule()
        self.meter = meter_of(world, self.nodes)
        self.outside = outside_of(world, self.nodes, self.meter)
        #: What is accounted for from moment to moment, until the last job has ended.
        self._accounts = [one for one in (self.meter, self.failures.losses, self.outside) if one is not None]
        #: What the run used, when it is over and the machine says what nodes draw.
        self.energy: Energy | None = None
        #: Next job of the workload to be submitted, and when; infinite when all have been.
        self._next_job = 0
        self._submit_s = world.workload.jobs[0].submit_s if world.workload.jobs else inf
        #: An answer of the policy is on its way.
        self._late = False
        #: Ticks, random failures, and nodes that come or go in a row with nothing running, and the starts
        #: before them.
        self._stalled = 0
        self._starts = 0
        #: When the policy looks again at walltimes of nodes, if any job can commit; None: at no time.
        self._look_s: float | None = None
        self._commit = any(job.checkpoints is not None for job in world.workload.jobs)
        #: Node-seconds handed out.
        self._held_node_s = 0.0
        for t_s in world.twins.moments(self._submit_s):
            calendar.enter(t_s, CORRIDOR)
        if options.tick_s is not None and world.workload.jobs:
            calendar.enter(world.workload.jobs[0].submit_s + options.tick_s, TICK)

    # ---------------------------------------------------------------- running

    def run(self, progress: Callable[[int], None] | None = None) -> None:
        """Run to the end; `progress` is called now and then with the number of jobs that have ended."""
        for _ in self.moments(progress):
            pass

    def moments(self, progress: Callable[[int], None] | None = None) -> Iterator[None]:
        """Run to the end, with a pause after every moment."""
        told, counts = 0, self.world.counts
        while self._moment(inf):
            if progress is not None and counts.moments >= told + _TELL_AFTER:
                told = counts.moments
                progress(len(self.world.table.rows))
            yield
        self._finish()

    def run_until(self, t_s: float) -> bool:
        """Run everything that happens up to and including `t_s`; False when nothing is left after it."""
        while self._moment(t_s):
            pass
        return self._next_s() < inf

    def fork(self, policy: Policy | None = None) -> Engine:
        """A copy that goes on from here by itself, with another policy when one is given.

        The copy goes on exactly as the original does, and is not recorded. A new policy begins with its
        initial state, and is asked at once.
        """
        other = copy.deepcopy(self)
        if policy is not None:
            other.policy = policy
            other.world.news.single = single(policy)
            other.enactor.asker = make_asker(policy, other.world, other.nodes)
            other.world.news.changed("settings")
            other._ask()
        return other

    def adopt(self, now_s: float, jobs: list[tuple[ActiveJob, int]]) -> None:
        """Begin at `now_s` with jobs that run on so many nodes, or wait on none; before anything else."""
        world = self.world
        world.now_s = world.from_s = now_s
        world.counts.moments = 1
        self._begin()
        self._next_job, self._submit_s = len(world.workload.jobs), inf
        for active, nodes in jobs:
            self.enactor.adopt(active, nodes)
        world.news.changed("settings")
        # nothing has been decided yet when the run begins, so that forks can decide otherwise
        self.calendar.enter(now_s, ANSWER, None, ())

    def _moment(self, until_s: float) -> bool:
        """Everything that happens at the next moment; False when there is none up to `until_s`."""
        t = self._next_s()
        if t > until_s or t == inf:
            return False
        world, nodes, entries, counts = self.world, self.nodes, self.calendar.entries, self.world.counts
        if counts.moments:
            self._held_node_s += nodes.held * (t - world.now_s)
            if self._accounts and (world.active or self._submit_s < inf):
                for account in self._accounts:
                    account.advance(t)
        world.now_s = t
        if not counts.moments:
            self._begin()
        counts.moments += 1
        if world.news.single:
            self._one_by_one(t)
        else:
            if self.progress.io_s == t:
                while entries and entries[0][0] == t and entries[0][1] < IO:
                    self._happen(heappop(entries))
                self._happen((t, IO, 0, None, None))
            while entries and entries[0][0] == t and entries[0][1] < SUBMIT:
                self._happen(heappop(entries))
            while self._submit_s == t:
                self._submit()
            while entries and entries[0][0] == t:
                self._happen(heappop(entries))
            news = world.news
            if news.trigger is not None or news.resized or news.points:
                self._ask()
        if self._lending is not None:
            self._lending.settle(self.policy)
        if self.progress.file_system.changed:
            self.progress.schedule_io()
        if self._commit and nodes.ends_s:
            look_s, self._look_s = self._look_s, next_look_s(world, nodes.ends_s)
            if self._look_s is not None and self._look_s != look_s:
                self.calendar.enter(self._look_s, LOOK, None, self._look_s)
        if nodes.free + nodes.held + nodes.down + nodes.aside + nodes.away != nodes.total:
            raise SimulationError(f"at {t:g} s {nodes} do not add up to {nodes.total} nodes")
        return True

    def _next_s(self) -> float:
        """When something happens next; infinite when nothing is left."""
        t, io_s = self.calendar.next_s(), self.progress.io_s
        t = t if t < self._submit_s else self._submit_s
        return t if t < io_s else io_s

    def _begin(self) -> None:
        """The clock stands at the first moment, at which nothing has happened yet."""
        if self.meter is not None:
            self.meter.begin(self.world.now_s)
        self.supply.begin()

    def _one_by_one(self, t: float) -> None:
        entries, now = self.calendar.entries, list[Entry]()
        while entries and entries[0][0] == t:
            now.append(heappop(entries))
        if self.progress.io_s == t:
            insort(now, (t, IO, 0, None, None))
        for entry in now:
            active = entry[3]
            if entry[1] == STAGE and active is not None and entry[4] == active.version:
                self._release_due(active)
        later = [entry for entry in now if entry[1] >= STAGE]
        for entry in now[: len(now) - len(later)]:
            self._happen(entry)
            self._ask()
        while self._submit_s == t:
            self._submit()
            self._ask()
        for entry in later:
            self._happen(entry)
            self._ask()

    def _release_due(self, active: ActiveJob) -> None:
        job = active.job
        if job.program is not None or job.walltime_s is None or active.start_s is None:
            return
        if active.start_s + job.walltime_s <= self.world.now_s and active.round is None:
            self.enactor.release(active)

    def _submit(self) -> None:
        key, jobs = self._next_job, self.world.workload.jobs
        self._next_job = key + 1
        self._submit_s = inf if key + 1 == len(jobs) else jobs[key + 1].submit_s
        self.world.counts.events += 1
        self.enactor.submit(jobs[key], key)

    def _happen(self, entry: Entry) -> None:
        _, kind, number, active, data = entry
        world, enactor = self.world, self.enactor
        if kind in VERSIONED:
            if active is None or active.version != data:
                return
            world.counts.events += 1
            if kind == STAGE:
                enactor.settle(active, self.progress.stage_ended(active))
            elif kind == FLOW:
                enactor.flow(active, number)
            elif kind == COMMIT:
                enactor.commit(active)
            else:
                enactor.close_window(active)
            return
        world.counts.events += 1
        if kind == IO:
            for one in self.progress.transfers_over():
                enactor.moved(one, self.progress.transfer_ended(one))
        elif kind == LINK:
            assert active is not None
            enactor.moved(active, self.progress.link_ended(active, data))
        elif kind == THEFT:
            enactor.theft_due(data)
        elif kind == ANSWER:
            self._late = False
            enactor.carry_out(data)
        elif kind == TICK:
            if self._goes_on(kind):
                assert world.options.tick_s is not None
                self.calendar.enter(world.now_s + world.options.tick_s, TICK)
                if world.active:
                    world.news.changed("tick")
        elif kind == CORRIDOR:
            if world.twins.minds(self.policy):
                world.news.changed("corridor")
        elif kind == LOOK:
            if data == self._look_s:
                world.news.changed("tick")
        elif kind == NODE_FAILS:
            # random failures, which know no node yet, end with the run
            if isinstance(data, NodeFailure) or self._goes_on(kind):
                for lost in self.failures.happen(data, min(self.calendar.next_s(), self._submit_s)):
                    enactor.lose_node(lost)
        elif kind == NODE_BACK:
            if self.nodes.back(data):
                world.news.changed("node-added")
        elif kind == NODE_GRANTED:
            self.supply.granted(*data)
        elif kind == NODE_UP:
            if self.supply.up(*data) and self._goes_on(kind):
                world.news.changed("node-added")
        elif kind == NODE_GOES:
            gone = self.supply.over(*data)
            if gone is not None and (gone.active is not None or self._goes_on(kind)):
                enactor.lose_node(gone)

    def _goes_on(self, kind: int) -> bool:
        """Whether ticks, random failures, and nodes that come and go, still have a run to happen in.

        They end with the last job, or when nothing runs, nothing else is to come, and the policy has started
        nothing for many of them.
        """
        world = self.world
        if world.counts.starts != self._starts:
            self._starts = world.counts.starts
            self._stalled = 0
        if self._submit_s < inf:
            return True
        if self.nodes.held == 0 and (kind in (NODE_UP, NODE_GOES) or not self.calendar.leads_on()):
            self._stalled += 1
        return bool(world.active) and self._stalled < _MOST_STALLED

    # ---------------------------------------------------------------- the policy

    def _ask(self) -> None:
        """Ask the policy until it has no more to say, and let jobs go on from their scheduling points.

        While an answer takes its time (`Options.decision_s`) the policy is not asked again, and nobody waits
        at a scheduling point for that.
        """
        news, passes = self.world.news, 0
        while True:
            if news.resized:
                # a resize, and the start of a job that can be resized, give a policy something new to say
                news.resized = False
                news.changed("finish")
            if news.trigger is not None and not self._late:
                self._pass()
                passes += 1
                if passes > _MOST_PASSES:
                    raise SimulationError(
                        f"policy {self.policy.name!r} resizes for ever at {self.world.now_s:g} s: "
                        f"{passes} passes without an end"
                    )
            elif news.points:
                points, news.points = news.points, []
                for active in points:
                    self.enactor.leave_point(active)
            else:
                return

    def _pass(self) -> None:
        world = self.world
        trigger, about, idle = world.news.take()
        if not world.active or trigger is None:
            return
        scans = world.counts.queue_scans
        answer = self.enactor.asker.ask(trigger, about)
        if idle:
            world.counts.idle_policy_calls += 1
            world.counts.idle_queue_scans += world.counts.queue_scans - scans
        if answer is NOTHING:
            return
        if answer.latency_s:
            world.total_latency_s += answer.latency_s
            world.longest_latency_s = max(world.longest_latency_s, answer.latency_s)
        for key, nodes in answer.starts:
            self.enactor.start(world.active[key], nodes)
        if not answer.actions:
            return
        if answer.latency_s > 0:
            self._late = True
            self.calendar.enter(world.now_s + answer.latency_s, ANSWER, None, answer.actions)
            return
        self.enactor.carry_out(answer.actions)

    # ---------------------------------------------------------------- the end

    def _finish(self) -> None:
        world = self.world
        left = [active for active in world.active.values() if active.state != "pending"]
        if left:
            raise SimulationError(f"job {left[0].job.id!r} holds nodes at the end of the calendar")
        for active in world.active.values():
            self.enactor.life.leave(active)
        held, jobs = self._held_node_s, self.enactor.life.job_node_s
        if abs(held - jobs) > 1e-9 * max(held, jobs, 1.0):
            raise SimulationError(f"{held!r} node-seconds were handed out, jobs held {jobs!r}")
        if self.meter is not None:
            self.energy = self.meter.close(self.progress.spent_node_s, self.progress.lost_node_s)
        moved, ended = self.progress.moved_bytes()
        if abs(moved - ended) > 1e-6 * max(moved, ended, 1.0):
            raise SimulationError(f"the file system moved {moved!r} bytes, jobs {ended!r}")
        self.progress.transfers.check()
