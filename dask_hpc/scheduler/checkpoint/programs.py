"""Programs of protected jobs: where their state is written, and when.

A job that says ``protect`` and keeps state on its nodes is asked for a version of that state; it writes one
at the next boundary between two of its steps. When that is to be is decided by
`dask_hpc_policies.resilience.commit_times`: by the settings, or by a policy, which gets the same figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.names import checked_name
from dask_hpc.checkpoint.store import Store
from dask_hpc.errors import CheckpointError, ConfigError
from dask_hpc.scheduler.checkpoint.commits import Commits
from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.internals import writes
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.parts import Enactor, Method
from dask_hpc_policies.codec import encode
from dask_hpc_policies.decision import Checkpoint, Outcome, Reason, ReasonCode
from dask_hpc_policies.resilience.commit_times import History, Rule, due
from dask_hpc_policies.rules.commits import SECTION

#: The one level that there is: the file system.
LEVEL = "L3"


@dataclass(slots=True)
class _Program:
    """A program that commits."""

    name: str
    store: str
    topic: str
    #: When it was asked and has not begun since; it is asked once a version.
    asked: bool = False
    #: Seconds that one of its steps takes.
    step_s: float = 0.0
    #: When a version could not even be begun, the last time.
    failed_s: float | None = None


class Programs:
    """All programs of protected jobs of one scheduler."""

    def __init__(self, engine: Engine, commits: Commits) -> None:
        self._state = engine.state
        self._commits = commits
        self._of: dict[str, _Program] = {}

    def methods(self) -> Mapping[str, Method]:
        """What clients may call."""
        return {
            "protect_program": self.protect_program,
            "commit_program": self.commit_program,
            "give_up_commit": self.give_up_commit,
        }

    async def protect_program(self, job: str, topic: str) -> dict[str, str] | None:
        """A program begins: name and folder of its versions; None when its job is not protected.

        Raises
        ------
        ConfigError
            When no store is set.
        CheckpointError
            When the store cannot be written to, or the name is none for a checkpoint.
        """
        record = self._state.jobs.find(job)
        protect = record.request.protect
        if not protect:
            return None
        try:
            name = checked_name(record.name if protect is True else protect)
        except ValueError as error:
            raise CheckpointError(f"job {record.id} says protect={protect!r}: {error}") from None
        folder = self._state.settings.checkpoint_store
        if folder is None:
            raise ConfigError(
                f"job {record.id} says protect={protect!r} and hpc.checkpoint.store is not set; name a "
                "folder that the scheduler and all workers can write to: rt.update(checkpoint_store=...), or "
                "the configuration"
            )
        crc32c(b"")  # says now that it is not installed
        if (problem := await asyncio.to_thread(Store(folder).problem)) is not None:
            raise CheckpointError(problem)
        for id, _, program in self._running():
            if (program.name, program.store) == (name, folder) and id != record.id:
                raise CheckpointError(
                    f"job {id} writes versions of {name!r} to {folder}; give those of {record.id} another "
                    "name with protect='NAME'"
                )
        self._of[record.id] = _Program(name, folder, topic)
        return {"name": name, "store": folder}

    async def give_up_commit(self, job: str, lost: bool) -> None:
        """A program cannot begin the version it was asked for.

        It is asked again: after the interval, or at once when it was the state that was `lost`.
        """
        if (program := self._of.get(job)) is not None:
            program.asked = False
            program.failed_s = program.failed_s if lost else self._state.now_s()

    async def commit_program(
        self, job: str, step_s: float, plan: Mapping[str, Any], keys: Sequence[Any]
    ) -> dict[str, Any]:
        """Begin a version of a program's state (see `Commits.checkpoint`); its steps take so long."""
        program = self._of.get(job)
        if program is None:
            raise CheckpointError(f"job {job} has no program that commits (any more)")
        program.asked, program.step_s = False, float(step_s)
        return await self._commits.checkpoint(plan, keys, store=program.store, job=job)

    def section(self) -> Mapping[str, Any]:
        """What is known of the versions of each program, for policies that ask for them."""
        found = {id: encode(self._history(record, one)) for id, record, one in self._running()}
        return {SECTION: found} if found else {}

    def enactors(self) -> Mapping[type[Any], Enactor]:
        """Policies may ask for a version."""
        return {Checkpoint: self._enact}

    def tick(self, now_s: float) -> None:
        """Ask every program for which it is time by the settings."""
        settings = self._state.settings
        if settings.checkpoint_every_s is None:
            return
        rule = Rule(settings.checkpoint_every_s, settings.checkpoint_node_mtbf_s)
        for _, record, program in self._running():
            why = due(now_s, self._history(record, program), rule, self._state.nodes_up(record))
            if why is not None:
                self._ask(program, why)

    def _enact(self, action: Checkpoint) -> Outcome:
        program = self._of.get(action.job)
        if program is None:
            text = f"job {action.job} has no program that writes versions; declare it with protect=True"
        elif action.level != LEVEL:
            text = f"there is no level {action.level!r}; versions are written to {LEVEL}"
        else:
            self._ask(program, action.reason.text)
            return Outcome(action=action, result="done", reason=action.reason)
        return Outcome(action=action, result="refused", reason=Reason(ReasonCode.UNSUPPORTED, text))

    def _ask(self, program: _Program, why: str) -> None:
        if not program.asked:
            program.asked = True
            writes.tell(self._state.scheduler, program.topic, {"window": "checkpoint", "reason": why})

    def _running(self) -> list[tuple[str, JobRecord, _Program]]:
        """Programs whose jobs are there; those of others are forgotten."""
        active = self._state.jobs.active
        self._of = {id: program for id, program in self._of.items() if id in active}
        return [(id, active[id], program) for id, program in self._of.items()]

    def _history(self, record: JobRecord, program: _Program) -> History:
        settings = self._state.settings
        found = self._commits.of_job(record.id)
        ended = [one.ended_s for one in found]
        whole = [one for one in found if one.state == "complete"]
        # a node is given up, and takes no more tasks, as long before its end as its workers are told to
        ends = [
            node.end_s - settings.walltime_notice_s
            for node in self._state.nodes_of(record)
            if node.end_s is not None
        ]
        return History(
            since_s=max((s for s in (program.failed_s, *ended) if s is not None), default=None),
            cost_s=whole[-1].writing_s + whole[-1].finishing_s if whole else None,
            under_way=program.asked or None in ended,
            end_s=min(ends, default=None),
            ahead_s=program.step_s + settings.tick_s,
        )
