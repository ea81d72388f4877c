"""The engine: a calendar of events, the jobs and nodes that they change, and a policy that is asked.

Rules of the file: time is a number that only the calendar moves. Entries are ordered by (time, priority,
sequence number), so that equal times have one order and a run is a function of its inputs and its seed.
Nothing happens between entries: there are no ticks unless `Options.tick_s` asks for them.

At one moment, in this order: nodes come back, stages and jobs end (in the order in which they were entered:
jobs that began earlier first), transfers end, windows of resizes close, thefts that waited for a checkpoint
happen, nodes fail, jobs are submitted (in the order of the workload), the policy's late answers arrive,
ticks. Then the policy is asked once, and again as long as it resizes anybody or starts what can be resized.
What its decision brings about at the same moment (a job of no length) is the next round of that moment.

With ``events=single``, a parameter that a policy may declare, it is asked after every single entry instead,
for comparison with simulators that do so. Then the nodes of jobs that end at this moment exactly when they
were expected to are free from its first entry on, as they are for a scheduler that plans with expected ends.

Every run checks itself: nodes are free, held or down and add up at every moment; node-seconds held by jobs
equal those handed out; work and bytes are conserved (`progress`). A breach is a `SimulationError`.
"""

from __future__ import annotations

import copy
import heapq
import random
from collections.abc import Callable, Iterator
from math import inf
from typing import Any, Literal

from dask_hpc.errors import SimulationError
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.asking import Asker, make_asker, mtct
from dask_hpc.sim.engine.failures import FailureSource
from dask_hpc.sim.engine.nodes import NodePool
from dask_hpc.sim.engine.passes import Passes
from dask_hpc.sim.engine.progress import Progress
from dask_hpc.sim.engine.recording import Recorder
from dask_hpc.sim.engine.rounds import Rounds
from dask_hpc.sim.engine.table import Counts, Refused, Row, Table
from dask_hpc.sim.model.job import computing_s
from dask_hpc.sim.model.machine import Machine, Options
from dask_hpc.sim.model.workload import Workload, fitted
from dask_hpc_policies.decision import Decision, Expand, Reason, Shrink, Start, Steal
from dask_hpc_policies.model import ClusterSnapshot, Interruption, Trigger
from dask_hpc_policies.protocol import Policy

#: Order of events at one moment.
_NODE_BACK, _STAGE, _IO, _WINDOW, _THEFT, _NODE_FAILS, _SUBMIT, _ANSWER, _TICK = range(9)
#: Ticks and random failures in a row, with nothing running, after which a run is over.
_MOST_STALLED = 10_000
#: Moments from one word of progress to the next: few enough that who asks a run to end waits for well below a
#: second, also where every moment asks a policy that is slow.
_TELL_AFTER = 25
#: Refusals that are kept.
_KEPT = 1000
#: Interruptions after which a job is taken to have no end.
_MOST_RESTARTS = 10_000


class Engine:
    """One run. `run` to the end, or `run_until` and `fork` on the way."""

    def __init__(self, workload: Workload, policy: Policy, machine: Machine, options: Options) -> None:
        workload = fitted(workload, machine.nodes)
        self.workload = workload
        self.policy = policy
        self.machine = machine
        self.options = options
        self.now_s = 0.0
        #: Time of the picture that the run goes on from; None: it begins with an empty machine.
        self.from_s: float | None = None
        self.counts = Counts()
        self.table = Table()
        self.refusals: list[Refused] = []
        self.active: dict[int, ActiveJob] = {}
        self.by_id: dict[str, ActiveJob] = {}
        random_or_listed = machine.failures.node_mtbf_s is not None or bool(machine.failures.listed)
        self.nodes = NodePool(self, machine.nodes, options.node_ids or random_or_listed)
        self.rng = random.Random(options.seed)
        self.progress = Progress(self)
        self.rounds = Rounds(self)
        #: (time, bytes read per second from then on, bytes written).
        self.file_system_series: list[tuple[float, float, float]] = []
        self._calendar: list[tuple[float, int, int, ActiveJob | None, Any]] = []
        self._sequence = 0
        self._next_job = 0
        self._stalled = 0
        #: Is told what is decided and done; see `Recorder`.
        self.recorder: Recorder | None = None
        self._held_node_s = 0.0
        self._job_node_s = 0.0
        self.single = getattr(policy, "params", {}).get("events") == "single"
        self.asker: Asker = make_asker(self)
        self.passes = Passes(self)
        self.failures = FailureSource(self)
        self.failures.schedule()
        if options.tick_s is not None and workload.jobs:
            self._enter(workload.jobs[0].submit_s + options.tick_s, _TICK, None, None)

    # ---------------------------------------------------------------- running

    def run(self, progress: Callable[[int], None] | None = None) -> None:
        """Run to the end; `progress` is called now and then with the number of jobs that have ended."""
        for _ in self.moments(progress):
            pass

    def moments(self, progress: Callable[[int], None] | None = None) -> Iterator[None]:
        """Run to the end, with a pause after every moment."""
        told = 0
        while self._moment(inf):
            if progress is not None and self.counts.moments >= told + _TELL_AFTER:
                told = self.counts.moments
                progress(len(self.table.rows))
            yield
        self._finish()

    def run_until(self, t_s: float) -> bool:
        """Run everything that happens up to and including `t_s`; False when nothing is left after it."""
        more = True
        while more:
            more = self._moment(t_s)
        return bool(self._calendar) or self._next_job < len(self.workload.jobs)

    def fork(self, policy: Policy | None = None) -> Engine:
        """A copy that goes on from here by itself, with another policy when one is given.

        The copy goes on exactly as the original does, and is not recorded. A new policy begins with its
        initial state, and is asked at once.
        """
        recorder, self.recorder = self.recorder, None
        try:
            other = copy.deepcopy(self)
        finally:
            self.recorder = recorder
        if policy is not None:
            other.policy = policy
            other.single = getattr(policy, "params", {}).get("events") == "single"
            other.asker = make_asker(other)
            other.changed("settings")
            other.passes.ask()
        return other

    def adopt(self, now_s: float, jobs: list[tuple[ActiveJob, int]]) -> None:
        """Begin at `now_s` with jobs that run on so many nodes, or wait on none; before anything else."""
        self.now_s = self.from_s = now_s
        self.counts.moments = 1
        self._next_job = len(self.workload.jobs)
        for active, nodes in jobs:
            self.active[active.key] = active
            self.by_id[active.job.id] = active
            self.asker.submitted(active)
            if nodes:
                self.start(active, nodes)
        self.changed("settings")
        # nothing has been decided yet when the run begins, so that forks can decide otherwise
        self.schedule_answer(now_s, ())

    def _moment(self, until_s: float) -> bool:
        """Everything that happens at the next moment; False when there is none up to `until_s`."""
        jobs = self.workload.jobs
        calendar = self._calendar
        t = calendar[0][0] if calendar else inf
        if self._next_job < len(jobs) and jobs[self._next_job].submit_s < t:
            t = jobs[self._next_job].submit_s
        if t > until_s or t == inf:
            return False
        if self.counts.moments:
            self._held_node_s += self.nodes.held * (t - self.now_s)
        self.now_s = t
        self.counts.moments += 1
        if self.single:
            self._one_by_one(t)
        else:
            while calendar and calendar[0][0] == t and calendar[0][1] < _SUBMIT:
                self._happen(heapq.heappop(calendar))
            while self._next_job < len(jobs) and jobs[self._next_job].submit_s == t:
                self._submit()
            while calendar and calendar[0][0] == t:
                self._happen(heapq.heappop(calendar))
            if self.passes.due:
                self.passes.ask()
        if self.progress.io_changed:
            self.progress.schedule_io()
        if self.nodes.free + self.nodes.held + self.nodes.down != self.machine.nodes:
            raise SimulationError(f"at {t:g} s {self.nodes} do not add up to {self.machine.nodes} nodes")
        return True

    def _one_by_one(self, t: float) -> None:
        jobs = self.workload.jobs
        calendar = self._calendar
        entries = []
        while calendar and calendar[0][0] == t:
            entries.append(heapq.heappop(calendar))
        for entry in entries:
            active = entry[3]
            if entry[1] == _STAGE and active is not None and entry[4] == active.version:
                self._release_due(active)
        late = [entry for entry in entries if entry[1] >= _SUBMIT]
        for entry in entries[: len(entries) - len(late)]:
            self._happen(entry)
            self.passes.ask()
        while self._next_job < len(jobs) and jobs[self._next_job].submit_s == t:
            self._submit()
            self.passes.ask()
        for entry in late:
            self._happen(entry)
            self.passes.ask()

    def _release_due(self, active: ActiveJob) -> None:
        job = active.job
        if job.program is not None or job.walltime_s is None or active.start_s is None:
            return
        if active.start_s + job.walltime_s <= self.now_s and active.round is None:
            self._give_up(active)
            active.released = True

    def _happen(self, entry: tuple[float, int, int, ActiveJob | None, Any]) -> None:
        _, kind, _, active, data = entry
        if kind in (_STAGE, _WINDOW):
            if active is None or active.version != data:
                return
            self.counts.events += 1
            if kind == _STAGE:
                self.progress.stage_ended(active)
            else:
                self.rounds.close_window(active)
                self.changed("finish", active)
            return
        self.counts.events += 1
        if kind == _IO:
            self.progress.io_event(data)
        elif kind == _THEFT:
            self.rounds.theft_due(*data)
        elif kind == _ANSWER:
            self.passes.answer(data)
        elif kind == _TICK:
            if self.goes_on():
                assert self.options.tick_s is not None
                self._enter(self.now_s + self.options.tick_s, _TICK, None, None)
                if self.active:
                    self.changed("tick")
        elif kind == _NODE_FAILS:
            self.failures.happen(data)
        else:
            self.failures.back(data)

    # ---------------------------------------------------------------- what the parts tell each other

    def changed(self, trigger: Trigger, active: ActiveJob | None = None) -> None:
        """Something has happened that a policy may want to know of."""
        self.passes.changed(trigger, active)

    def schedule_end(self, active: ActiveJob, at_s: float) -> None:
        """The present stage of a job ends at `at_s` unless something comes between."""
        self._enter(at_s, _STAGE, active, active.version)

    def schedule_window(self, active: ActiveJob, at_s: float) -> None:
        """The window of a job's resize closes at `at_s`."""
        self._enter(at_s, _WINDOW, active, active.version)

    def schedule_io(self, at_s: float, version: int) -> None:
        """The next transfer ends at `at_s` while the load stays as it is."""
        self._enter(at_s, _IO, None, version)

    def schedule_theft(self, at_s: float, data: Any) -> None:
        """A victim has a checkpoint, and can be interrupted."""
        self._enter(at_s, _THEFT, None, data)

    def schedule_failure(self, at_s: float, data: Any) -> None:
        """A node fails."""
        self._enter(at_s, _NODE_FAILS, None, data)

    def schedule_return(self, at_s: float, data: Any) -> None:
        """A node comes back."""
        self._enter(at_s, _NODE_BACK, None, data)

    def schedule_answer(self, at_s: float, actions: Any) -> None:
        """What the policy has answered takes effect at `at_s`."""
        self._enter(at_s, _ANSWER, None, actions)

    def _enter(self, at_s: float, kind: int, active: ActiveJob | None, data: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._calendar, (at_s, kind, self._sequence, active, data))

    def note_io(self) -> None:
        """The rate of the file system has changed."""
        if self.options.file_system_series:
            file_system = self.progress.file_system
            self.file_system_series.append((self.now_s, *file_system.rates_bytes_s))

    def refuse(self, action: Start | Expand | Shrink | Steal, why: Reason) -> None:
        """An action could not be carried out."""
        self.counts.refused += 1
        nodes = action.stolen_nodes if isinstance(action, Steal) else action.nodes
        if len(self.refusals) < _KEPT:
            self.refusals.append(
                Refused(t_s=self.now_s, kind=action.TAG, job=action.job, nodes=nodes, reason=why.text)
            )
        if self.recorder is not None:
            self.recorder.refused(action, why)

    def goes_on(self) -> bool:
        """Whether ticks and random failures still have a run to happen in.

        They end with the last job, or when nothing runs, nothing more will come, and the policy has started
        nothing for many of them.
        """
        if self._next_job < len(self.workload.jobs):
            return True
        if self.nodes.held == 0:
            self._stalled += 1
        return bool(self.active) and self._stalled < _MOST_STALLED

    # ---------------------------------------------------------------- jobs

    def _submit(self) -> None:
        key = self._next_job
        self._next_job = key + 1
        job = self.workload.jobs[key]
        active = ActiveJob(job, key)
        self.active[key] = active
        self.by_id[job.id] = active
        self.counts.events += 1
        self.asker.submitted(active)
        self.changed("submit", active)
        if self.recorder is not None:
            self.recorder.job(active)

    def start(self, active: ActiveJob, nodes: int) -> None:
        """A pending job begins on `nodes` nodes."""
        if active.start_s is None:
            active.first_s = self.now_s
        active.start_s = self.now_s
        if active.steps:
            active.steps.append((self.now_s, nodes))
        active.nodes = nodes
        active.state = "running"
        active.interruption = "none"
        if active.job.kind in ("malleable", "evolving"):
            self.passes.resized = True
        self._stalled = 0
        self.nodes.take(active, nodes)
        self.counts.starts += 1
        if self.recorder is not None:
            self.recorder.job(active)
            self.recorder.done(active)
        job = active.job
        if job.program is None and active.kept is None:
            # What `Progress.begin` does, for the jobs of traces.
            self.progress.begin_plain(active, computing_s(job, nodes))
        else:
            self.progress.begin(active)

    def resize(self, active: ActiveJob, nodes: int) -> None:
        """The job holds `nodes` nodes from now on."""
        self.nodes.resize(active, nodes)
        self._sized(active, nodes)
        if self.recorder is not None:
            self.recorder.job(active)

    def _sized(self, active: ActiveJob, nodes: int) -> None:
        assert active.start_s is not None
        if not active.steps:
            active.steps.append((active.start_s, active.nodes))
        active.held_node_s += active.nodes * (self.now_s - active.steps[-1][0])
        if active.steps[-1][0] == self.now_s:
            active.steps.pop()
        active.steps.append((self.now_s, nodes))
        active.mtct_previous = mtct(active.job, active.nodes) if active.nodes else None
        active.nodes = nodes

    def resized(self, active: ActiveJob) -> None:
        """A resize of the job is committed."""
        self.passes.resized = True
        self.asker.resized(active)
        if self.recorder is not None:
            self.recorder.job(active)
            self.recorder.done(active)

    def lost_node(self, active: ActiveJob) -> None:
        """A node of the job has gone, and the job goes on without it."""
        if active.stage is not None:
            self.progress.pause(active)
        self._sized(active, active.nodes - 1)
        self.asker.resized(active)
        if self.recorder is not None:
            self.recorder.job(active, "a node was lost")
        if active.stage is not None and not self.progress.resume(active):
            self.progress.advance(active)

    def failed(self, active: ActiveJob) -> None:
        """A node of the job has gone and the job with it: it waits again, ahead of what did not fail."""
        self.progress.lose(active)
        self._sized(active, active.nodes - 1)
        self._interrupted(active, "failure")

    def robbed(self, active: ActiveJob, keep: Literal["saved", "all"]) -> None:
        """The job gives all its nodes up for another one, and waits again, behind what failed."""
        self.progress.lose(active, keep)
        self._interrupted(active, "theft")
        if self.recorder is not None:
            self.recorder.done(active)
        self.passes.resized = True

    def _interrupted(self, active: ActiveJob, why: Interruption) -> None:
        if active.round is not None:
            self.rounds.left(active)
        self._give_up(active)
        self._sized(active, 0)
        active.version += 1
        active.restarts += 1
        if active.restarts > _MOST_RESTARTS:
            raise SimulationError(
                f"job {active.job.id!r} was interrupted {_MOST_RESTARTS} times by {self.now_s:g} s and has "
                "not come to its end: nodes fail too often (node_mtbf) for it, or it lacks checkpoints"
            )
        active.state = "pending"
        active.interruption = why
        active.interrupted_s = self.now_s
        active.rank = 0 if why == "failure" else 1
        active.mtct_previous = None
        active.view = None
        self.asker.submitted(active)
        if self.recorder is not None:
            self.recorder.job(active, f"interrupted: {why}")

    def reached_point(self, active: ActiveJob) -> None:
        """The job is at a scheduling point: resize it, or ask about it at the end of this moment."""
        if self.rounds.at_point(active):
            return
        if active.state == "adapting" or active.job.kind in ("rigid", "moldable"):
            self.progress.advance(active)
            return
        active.at_point = True
        self.asker.at_point(active)
        self.passes.points.append(active)
        self.changed("scheduling-point", active)

    def complete(self, active: ActiveJob) -> None:
        """The job has done all its work."""
        self._end(active, "completed")
        self.changed("finish", active)

    def _give_up(self, active: ActiveJob) -> None:
        self.nodes.give(active)
        self.asker.finished(active)

    def _end(self, active: ActiveJob, state: str) -> None:
        start_s, steps = active.first_s, active.steps
        since_s = steps[-1][0] if steps else start_s
        self._job_node_s += active.held_node_s + active.nodes * (self.now_s - since_s)
        if not active.released:
            self._give_up(active)
        del self.active[active.key]
        del self.by_id[active.job.id]
        if self.recorder is not None:
            self.recorder.ended(active, state)
        if active.round is not None:
            self.rounds.left(active)
        if steps or active.io_s or active.restarts or active.wasted_node_s:
            sizes = (*steps, (self.now_s, 0)) if steps else active.nodes
            self.table.rows.append(
                Row(
                    active.key, start_s, self.now_s, sizes, state, active.expansions, active.shrinks,
                    active.restarts, active.resize_s, active.io_s, active.checkpoint_s, active.checkpoints,
                    active.wasted_node_s,
                )
            )  # fmt: skip
        else:
            self.table.rows.append(Row(active.key, start_s, self.now_s, active.nodes, state))
        active.version += 1

    def decided(self, view: ClusterSnapshot, before: Any, decision: Decision) -> None:
        """The policy was asked about a snapshot, with a state, and answered."""
        if self.recorder is not None:
            self.recorder.passed(view, before, decision)

    # ---------------------------------------------------------------- the end

    def _finish(self) -> None:
        left = [active for active in self.active.values() if active.state != "pending"]
        if left:
            raise SimulationError(f"job {left[0].job.id!r} holds nodes at the end of the calendar")
        for active in self.active.values():
            self.table.rows.append(Row(active.key, None, None, 0, "pending"))
        held, jobs = self._held_node_s, self._job_node_s
        if abs(held - jobs) > 1e-9 * max(held, jobs, 1.0):
            raise SimulationError(f"{held!r} node-seconds were handed out, jobs held {jobs!r}")
        moved, ended = self.progress.moved_bytes()
        if abs(moved - ended) > 1e-6 * max(moved, ended, 1.0):
            raise SimulationError(f"the file system moved {moved!r} bytes, jobs {ended!r}")
