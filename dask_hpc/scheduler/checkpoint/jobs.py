"""Protected jobs: where their state or their results are written, and when.

A job that says ``protect`` and keeps state on its nodes is asked for a version of that state; its program
writes one at the next boundary between two of its steps. Of any other job the results are written that its
clients want: now and then, before nodes go whose data nobody has room for, and once it has ended. They are
written to the store; where there is none, to the memory of hosts. When that is to be,
`dask_hpc_policies.resilience.commit_times` decides: by the settings, or by a policy, which gets the same
figures.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.levels import levels_of
from dask_hpc.checkpoint.names import checked_name
from dask_hpc.checkpoint.plan import Plan
from dask_hpc.checkpoint.services import chosen_services
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.store_threads import Asked
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.checkpoint.commit import Commit
from dask_hpc.scheduler.checkpoint.commits import Commits
from dask_hpc.scheduler.checkpoint.protected_job import ProtectedJob
from dask_hpc.scheduler.checkpoint.results import Results, found_in
from dask_hpc.scheduler.checkpoint.rows import versions_row
from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.core.notices import notify
from dask_hpc.scheduler.internals import reads, writes
from dask_hpc.scheduler.tables.events import VersionEnded
from dask_hpc.scheduler.tables.parts import Departure, Enactor, Method
from dask_hpc_policies.codec import decode, encode
from dask_hpc_policies.decision import Checkpoint, Outcome, Reason, ReasonCode
from dask_hpc_policies.resilience.commit_times import Rule, due, in_time
from dask_hpc_policies.rules.commits import SECTION, SURVIVES, suffices

logger = logging.getLogger(__name__)

#: Name of what is noted of a departure: jobs that were asked for a version.
_NOTE = "versions"
#: A job that was closed a moment ago has ended by then, in seconds; how often one looks.
_SOON_S, _LOOK_S = 5.0, 0.02


class ProtectedJobs:
    """All protected jobs of one scheduler."""

    def __init__(self, engine: Engine, commits: Commits) -> None:
        self._engine = engine
        self._state = engine.state
        self._commits = commits
        self._of: dict[str, ProtectedJob] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def methods(self) -> Mapping[str, Method]:
        """What clients may call."""
        return {
            "protect_job": self.protect_job,
            "protect_program": self.protect_program,
            "commit_program": self.commit_program,
            "program_states": self.program_states,
            "give_up_commit": self.give_up_commit,
            "job_saved": self.job_saved,
        }

    async def protect_job(
        self, job: str, resume: bool | None = None, services: str | None = None
    ) -> list[str]:
        """A job that says ``protect`` is about to begin; gives the levels that its results are written to.

        Parameters
        ----------
        resume
            Whether results that an earlier run of its name has left are read instead of computed; None: that
            is refused when there are any.

        Raises
        ------
        CheckpointError
            When the store cannot be written to, the name is none for a checkpoint or another job has it, or
            an earlier run has left results and nobody has said what is to become of them.
        """
        record = self._state.jobs.find(job)
        protect = record.request.protect
        chosen_services(services, self._state.settings.checkpoint_services)
        try:
            name = checked_name(record.name if protect is True else str(protect))
        except ValueError as error:
            raise CheckpointError(
                f"job {record.id} says protect={protect!r}: {error}; give its versions "
                "another name with protect='NAME'"
            ) from None
        folder = self._state.settings.checkpoint_store
        crc32c(b"")  # says now that it is not installed
        ask = Asked(folder, self._state.settings.checkpoint_silence_s)
        if folder is not None and (problem := await ask.soon(Store(folder).problem)) is not None:
            raise CheckpointError(problem)
        for id, one in list(self._of.items()):
            if (one.name, one.store) == (name, folder):
                await self._through(id, one)
        for id, one in self._of.items():
            if (one.name, one.store) == (name, folder):
                unsaved = ", where what it has left is not saved yet" * bool(one.failed)
                raise CheckpointError(
                    f"job {id} writes versions of {name!r} to {folder or 'memory'}{unsaved}; give those of "
                    f"{record.id} another name with protect='NAME'"
                )
        # from here on nobody else has the name
        results = Results(name, uuid.uuid4().hex, in_store=folder is not None)
        made = self._of[record.id] = ProtectedJob(name, folder, results, record, services)
        left = self._commits.left
        left.hold(name)
        try:
            if folder is not None:
                made.results = await ask.soon(found_in, folder, name, resume, results.run)
            run, found = await left.results_of(name)
            made.results.take_up(run, found, resume)
        except BaseException:
            del self._of[record.id]
            left.keep(name)
            raise
        if resume is False:
            left.let_go(name)
        self._keep(self._at_end(record.id, made))
        return list(levels_of(folder))

    async def protect_program(self, job: str, topic: str) -> dict[str, str | None] | None:
        """A program begins: name and folder of its versions; None when its job is not protected.

        The folder is None when they are in the memory of hosts alone.
        """
        one = self._of.get(self._state.jobs.find(job).id)
        if one is None:
            return None
        one.topic, one.asked_s = topic, None
        return {"name": one.name, "store": one.store}

    async def give_up_commit(self, job: str, lost: bool) -> None:
        """A program cannot begin the version it was asked for.

        It is asked again: after the interval, or at once when it was the state that was `lost`.
        """
        if (one := self._of.get(job)) is not None:
            one.asked_s = None
            one.tried_s = one.tried_s if lost else self._state.now_s()

    async def commit_program(
        self,
        job: str,
        step_s: float,
        held_up_s: float,
        plan: Mapping[str, Any],
        keys: Sequence[Any],
        kept: bool = False,
    ) -> dict[str, Any]:
        """Begin a version of a program's state (see `Commits.begin`).

        Its steps take so long, and so long it has waited until its state was there to be written. One that is
        `kept` is in the memory of hosts, also where there is a store.
        """
        one = self._of.get(job)
        if one is None:
            raise CheckpointError(f"job {job} has no program that commits (any more)")
        one.step_s = float(step_s)
        store = None if kept else one.store
        made, services = decode(Plan, dict(plan)), one.services
        commit = self._commits.begin(made, keys, store, job, protect=False, services=services)
        if store == one.store:
            # when the next one is due in the store, those in memory do not say
            one.held_ups_s.append(float(held_up_s))
            self._follow(one, commit)
        return commit.row(self._state.now_s())

    async def program_states(self, job: str) -> list[str]:
        """Versions of a program's state in the memory of hosts, oldest first, as records."""
        one = self._of.get(job)
        return [] if one is None else await self._commits.left.states_of(one.name)

    def closing(self, job: str) -> None:
        """A job is about to be closed: if it is done, its results stay until written, whoever lets go."""
        one = self._of.get(job)
        if one is not None and one.topic is None and one.record.done:
            one.hold(self._state.scheduler, self._commits.protected.in_versions)

    async def job_saved(self, job: str, timeout_s: float) -> bool:
        """Wait so long for the last version of a job that has ended; whether it is whole, or has failed."""
        if (one := self._of.get(job)) is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._through(job, one, 0.0), timeout_s)
        return one is None or self._of.get(job) is not one or one.failed > 0

    def claimed(self, keys: Collection[Any]) -> None:
        """Clients want these of their jobs; what an earlier run has left of them is read, not computed."""
        if not self._of:
            return
        for id, of_job in self._by_job(keys).items():
            one = self._of[id]
            if one.topic is None and (found := one.results.take(of_job)):
                self._commits.protected.read(found)

    def section(self) -> Mapping[str, Any]:
        """What is known of the versions of each job, for policies that ask for them."""
        found = {id: encode(one.history(self._state)) for id, one in self._of.items() if self._runs(id)}
        return {SECTION: found} if found else {}

    def enactors(self) -> Mapping[type[Any], Enactor]:
        """Policies may ask for a version."""
        return {Checkpoint: self._enact}

    def needed(self) -> bool:
        """Whether the results of a job that has ended are still to be written."""
        return any(self._has_ended(id) for id in self._of)

    def tick(self, now_s: float) -> None:
        """Have versions written for which it is time by the settings, and those of jobs that have ended."""
        for id, one in list(self._of.items()):
            if self._has_ended(id):
                self._end(id, one)
        settings = self._state.settings
        if settings.checkpoint_every_s is None:
            return
        rule = Rule(settings.checkpoint_every_s, settings.checkpoint_node_mtbf_s)
        for id, one in self._of.items():
            nodes = self._state.nodes_up(one.record)
            if self._runs(id) and (why := due(now_s, one.history(self._state), rule, nodes)):
                self._ask(id, one, why)

    async def leave(self, departure: Departure) -> bool:
        """Begin a version of jobs whose results nobody has room for, if there is time for it.

        While it is written room is waited for all the same (`DataMoves`); what it has is read back.
        """
        if not self._of or departure.last:
            return False
        scheduler, left_s = self._state.scheduler, departure.deadline_s - self._state.now_s()
        there = [address for address in departure.addresses if address in scheduler.workers]
        keys = reads.sole_keys(scheduler, there, departure.addresses)
        asked = departure.notes.setdefault(_NOTE, set())
        for id in self._by_job(key for key in keys if key not in self._commits.protected):
            one = self._of[id]
            # the memory of a host may go with it
            kept = one.store is not None
            if kept and id not in asked and not one.writing and in_time(left_s, one.cost_s):
                asked.add(id)
                self._ask(id, one, f"{departure.why}: nobody has room for what is there")
        return False

    def status(self) -> Mapping[str, Any]:
        """Protected jobs, and what a loss now would cost each."""
        rows = []
        for id, one in self._of.items():
            results, history = one.results if one.topic is None else None, one.history(self._state)
            saved = () if results is None else results.saved(self._commits.protected.in_versions)
            told = versions_row(self._state, one.record, history, one.whole_s, results, saved)
            rows.append({"job": id, "name": one.name, **told})
        return {"protected_jobs": rows} if rows else {}

    def unwrap(self) -> None:
        """The runtime is being uninstalled: what is in the store stays."""
        for task in self._tasks:
            task.cancel()
        for id, one in self._of.items():
            one.let_go(self._state.scheduler)
            if one.failed and not one.ended:
                logger.error("The last results of job %s are not saved, and not tried again", id)
        self._of.clear()

    # ------------------------------------------------------------------ inside

    def _has_ended(self, id: str) -> bool:
        return id not in self._state.jobs.active and id not in self._state.jobs.announced

    def _runs(self, id: str) -> bool:
        """Whether a version could be asked for."""
        record = self._state.jobs.active.get(id)
        return record is not None and record.start_s is not None

    def _by_job(self, keys: Iterable[Any]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for key in keys:
            lane = self._state.owner.get(key)
            if lane is not None and lane.job.id in self._of:
                found.setdefault(lane.job.id, []).append(key)
        return found

    def _end(self, id: str, one: ProtectedJob) -> None:
        """A job has ended: a last version of its results, then it is forgotten."""
        if one.writing or (not one.ended and self._state.now_s() < one.again_s):
            return
        if one.topic is None and not one.ended:
            one.ended = True
            self._write(id, one)
            if one.writing:
                return
        del self._of[id]
        one.let_go(self._state.scheduler)
        self._commits.left.let_go(one.name)
        self._engine.rest()

    async def _at_end(self, id: str, one: ProtectedJob) -> None:
        """Begin its last version as a job ends, or when the one that is being written is over."""
        await one.record.ended.wait()
        if one.topic is None and self._of.get(id) is one:
            # who has waited for that lets go of its results soon, and the version may fail at first
            one.hold(self._state.scheduler, self._commits.protected.in_versions)
            self._end(id, one)

    async def _through(self, id: str, one: ProtectedJob, soon_s: float = _SOON_S) -> None:
        """Wait a little for a job to end, and as long as it takes for its last version unless that fails."""
        deadline_s = self._state.now_s() + soon_s
        while self._of.get(id) is one and (
            (self._has_ended(id) and not one.failed) or self._state.now_s() < deadline_s
        ):
            if self._has_ended(id):
                self._end(id, one)
            await asyncio.sleep(_LOOK_S)

    def _enact(self, action: Checkpoint) -> Outcome:
        one = self._of.get(action.job)
        levels = () if one is None else levels_of(one.store)
        if one is None:
            text = f"job {action.job} writes no versions; declare it with protect=True"
        elif not any(suffices(SURVIVES[level], action.level) for level in levels):
            text = f"versions of job {action.job} are written to {' and '.join(levels)}, not {action.level!r}"
        else:
            self._ask(action.job, one, action.reason.text)
            return Outcome(action=action, result="done", reason=action.reason)
        return Outcome(action=action, result="refused", reason=Reason(ReasonCode.UNSUPPORTED, text))

    def _ask(self, id: str, one: ProtectedJob, why: str) -> None:
        if one.topic is None:
            self._write(id, one)
        elif not one.is_asked(self._state):
            one.asked_s = self._state.now_s()
            writes.tell(self._state.scheduler, one.topic, {"window": "checkpoint", "reason": why})

    def _write(self, id: str, one: ProtectedJob) -> None:
        """Begin a version of a job's results, if there is anything new."""
        if one.writing:
            return
        found = one.results.next(self._state.scheduler, self._commits.protected.in_versions)
        if found is None or one.results.theirs:
            one.tried_s = self._state.now_s()
            if found is not None and not one.told:
                self._refuse(one)
            return
        plan, keys, known = found
        self._follow(one, self._commits.begin(plan, keys, one.store, id, known, services=one.services))

    def _follow(self, one: ProtectedJob, commit: Commit) -> None:
        one.asked_s, one.newest = None, commit
        self._keep(self._followed(one, commit))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _followed(self, one: ProtectedJob, commit: Commit) -> None:
        await commit.ended.wait()
        copies, commit.copies = commit.copies, {}
        if commit.state == "complete":
            one.cost_s, one.whole_s = commit.writing_s + commit.finishing_s, commit.submitted_s
            if one.topic is None:
                one.results.wrote(copies)
        elif one.topic is None and one.results.failed(commit.unwritable, commit.removed):
            one.newest, one.tried_s, one.ended = None, None, False
        elif one.topic is None and one.ended and self._of.get(one.record.id) is one:
            self._unsaved(one, commit.reason)
        if self._has_ended(one.record.id) and self._of.get(one.record.id) is one:
            self._end(one.record.id, one)
        self._engine.handle(VersionEnded(one.record.id))

    def _refuse(self, one: ProtectedJob) -> None:
        """Results would take the place of versions of a program: say so, once."""
        one.told = True
        text = (
            f"Results of job {one.record.id} are not saved: {one.results.theirs} is of a program; replace it "
            "with resume=False, or give this job's another name with protect='NAME'"
        )
        logger.error("%s", text)
        notify(self._state, one.record.client, text)

    def _unsaved(self, one: ProtectedJob, reason: str) -> None:
        """Results of a job that has ended are in no version: say so, and try again for a while."""
        if one.results.next(self._state.scheduler, self._commits.protected.in_versions) is None:
            return  # nobody has them any more
        again = one.try_again(self._state.now_s())
        if one.failed > 1 and again:
            return
        goes_on = "it is tried again for some minutes, while somebody has them" if again else "given up"
        text = f"Job {one.record.id} has ended, and its last results are not saved: {reason}; {goes_on}"
        logger.error("%s", text)
        notify(self._state, one.record.client, text)
