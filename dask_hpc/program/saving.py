"""Versions of a program's state in the store: written while it goes on, read when all else is lost."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.versions import Version
from dask_hpc.clock import stopwatch_s
from dask_hpc.errors import CheckpointError, DaskHPCError, UnknownCheckpoint
from dask_hpc.program import outlines
from dask_hpc.program.block_tasks import Graph, all_right
from dask_hpc.program.producer import Producer
from dask_hpc_policies.codec import encode
from dask_hpc_policies.layout import Layout

if TYPE_CHECKING:
    from distributed import Future

logger = logging.getLogger(__name__)

#: A question after a version is answered after so long at the latest, in seconds.
_ASK_S = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program is, at a boundary between two steps."""

    #: Name of the phase, steps done of it, and of all.
    phase: str
    phase_step: int
    step: int


@dataclass(frozen=True, slots=True)
class Found:
    """A version of a program's state."""

    path: str
    version: int
    place: Place
    size: int
    dim: str
    #: Of a run and those that have gone on from it.
    run: str

    def number(self, size: int, dim: str, phases: Sequence[str]) -> int:
        """Number of the phase it was written in, among those of a program over a domain.

        Raises
        ------
        ValueError
            When the program is another one.
        """
        phase = self.place.phase
        if (self.size, self.dim) == (size, dim) and phase in phases[1:]:
            return phases.index(phase)
        raise ValueError(
            f"{self.path} has a state of {self.size} indices of {self.dim!r} in phase {phase!r}; this "
            f"program has {size} of {dim!r} and the phases {', '.join(map(repr, phases))}. Give its versions "
            "another name (protect='NAME'), or run it without resume"
        )


class Saving:
    """The versions of one program.

    Parameters
    ----------
    producer
        Hears when one is to be written.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        #: Name and folder; None: the job is not protected, or has not started.
        self._where: dict[str, str] | None = None
        self._following: asyncio.Task[None] | None = None
        #: When the last version was begun, and at which step.
        self._last = (stopwatch_s(), 0)
        self._written = 0
        #: Versions of other runs are not gone back to: their state is another one.
        self._run = uuid.uuid4().hex
        #: One row a version that was begun (as `Commit.status` gives it, its step and why) or gone back to.
        self.rows: list[dict[str, Any]] = []

    async def begin(self, resume: bool | None, step: int) -> None:
        """Find out whether, and where, versions are to be written; the program is at that step.

        Raises
        ------
        CheckpointError
            When other runs have left some there, and `resume` does not say what of them.
        ValueError
            When it is to resume and nothing protects it.
        """
        self._where = await self._producer._ask("protect_program", topic=self._producer._topic)
        self._last = (stopwatch_s(), step)
        if resume and self._where is None:
            raise ValueError(
                f"resume is True and job {self._job} has no versions: it does not say protect; declare it "
                "with protect=True (or protect='NAME'), or leave resume out"
            )
        if self._where is not None and resume is None:
            await asyncio.to_thread(_require_none, self._where["store"], self._where["name"], self._run)

    @property
    def wanted(self) -> bool:
        """Whether a version is to be written at this boundary. Costs nothing."""
        return self._producer.commit_asked is not None

    async def write(
        self, graph: Callable[[], Graph], layout: Layout, blocks: list[Future], dim: str, place: Place
    ) -> None:
        """Begin a version of the blocks, which are there; the program goes on while it is written.

        What goes wrong is noted in its row, and the versions before it stay: a simulation does not end
        because a disk is full.
        """
        why, self._producer.commit_asked = self._producer.commit_asked, None
        row: dict[str, Any] = {"step": place.step, "why": why, "state": "waiting", "version": None}
        self.rows.append(row)
        try:
            begun, futures = await self._begin(graph, layout, blocks, dim, place)
        except Exception as error:  # the user's blocks may be anything
            row |= {"state": "failed", "reason": f"{type(error).__name__}: {error}"}
            logger.warning("Step %d of job %s has no version: %s", place.step, self._job, row["reason"])
            # when it is the state itself that is lost, the next step says so
            with suppress(DaskHPCError, OSError):
                await self._producer._ask("give_up_commit", lost=isinstance(error, CancelledError))
            return
        row |= begun
        self._following = asyncio.ensure_future(self._follow(row, futures))

    async def _begin(
        self, graph: Callable[[], Graph], layout: Layout, blocks: list[Future], dim: str, place: Place
    ) -> tuple[dict[str, Any], list[Future]]:
        assert self._where is not None
        self._written += 1
        number, now_s = self._written, stopwatch_s()
        first = graph()
        asked = [
            first.add(part.node, "outline", number, i, outlines.outline, block, dim)
            for i, (part, block) in enumerate(zip(layout.parts, blocks, strict=True))
        ]
        found = await self._producer._job.channel.client.gather(first.submit(asked))
        made, places = outlines.whole(found, dim, layout.size)
        plan, keys = describe(made, self._where["name"])
        second = graph()
        fields = {
            (name, i): second.add(
                layout.parts[i].node, f"field-{field}", number, i, outlines.values, blocks[i], field
            )
            for name, of in places.items()
            for i, field in of
        }
        futures = second.submit(list(fields.values()))
        # the scheduler knows them then, or they were lost
        await all_right(futures)
        # a dask array is split along one dimension alone here: one place of its keys counts
        by_key = dict(zip(fields, (future.key for future in futures), strict=True))
        told: dict[str, Any] = {"size": layout.size, "dim": dim, "run": self._run}
        told |= {"phase": place.phase, "phase_step": place.phase_step, "step": place.step}
        began_s, steps = self._last[0], place.step - self._last[1]
        row = await self._producer._ask(
            "commit_program",
            step_s=(now_s - began_s) / steps if steps > 0 else 0.0,
            plan=encode(replace(plan, extra={**plan.extra, "program": told})),
            keys=[by_key[key[0], sum(key[1:])] for key in keys],
        )
        self._last = (now_s, place.step)
        return row, futures

    async def _follow(self, row: dict[str, Any], futures: Sequence[Future]) -> None:
        """Hold on to what is written until it is; tell what has become of it."""
        try:
            while row["state"] not in ("complete", "failed"):
                channel = self._producer._job.channel
                row |= await channel.ask("checkpoint_row", commit=row["id"], wait_s=_ASK_S)
        except (DaskHPCError, OSError, ValueError) as error:
            row |= {"state": "failed", "reason": f"{type(error).__name__}: {error}"}
        if row["state"] == "failed":
            logger.warning("Step %d of job %s has no version: %s", row["step"], self._job, row["reason"])
        del futures

    @property
    def protected(self) -> bool:
        """Whether versions are written."""
        return self._where is not None

    def went_back(self, found: Found | None) -> None:
        """Note that the program goes on from a version, or from its start."""
        step, version = (0, None) if found is None else (found.place.step, found.version)
        self._run = self._run if found is None else found.run
        self._last = (stopwatch_s(), step)
        why = "begun anew: there was no version yet" if found is None else "gone back to"
        self.rows.append({"step": step, "why": why, "state": "restored", "version": version})

    async def settled(self) -> None:
        """Wait until what is being written is."""
        if self._following is not None:
            await asyncio.wait([self._following])

    async def versions(self, of_others: bool = False) -> list[Found]:
        """The whole versions that this run has written or gone on from, the newest first.

        Parameters
        ----------
        of_others
            Those of any run.

        Raises
        ------
        CheckpointError
            When the store cannot be read, or, asked for any, there are versions that no program has written.
        """
        if self._where is None:
            return []
        run = None if of_others else self._run
        return await asyncio.to_thread(_versions, self._where["store"], self._where["name"], run)

    @property
    def _job(self) -> str:
        return self._producer._job.require_id()


def _versions(store: str, name: str, run: str | None) -> list[Found]:
    there = Store(store)
    whole = [version for version in there.versions(name) if version.complete]
    if not whole:
        try:
            there.newest(name)  # says what is wrong with those that there are
        except UnknownCheckpoint:
            return []
    found = [(version, _found(version)) for version in reversed(whole)]
    if run is not None:
        return [one for _, one in found if one is not None and one.run == run]
    for version, one in found:
        if one is None:
            raise CheckpointError(
                f"{version.path} was not written by a program; give the job another name, or protect='NAME'"
            )
    return [one for _, one in found if one is not None]


def _found(version: Version) -> Found | None:
    """What a version says of the program that has written it; None: it was none."""
    told: Any = version.manifest().plan.extra.get("program")
    try:
        place = Place(str(told["phase"]), int(told["phase_step"]), int(told["step"]))
        size, dim, run = int(told["size"]), str(told["dim"]), str(told["run"])
    except (KeyError, TypeError, ValueError):
        return None
    return Found(version.path, version.version, place, size, dim, run)


def _require_none(store: str, name: str, run: str) -> None:
    """Raise `CheckpointError` when there are versions of another run: new ones would take their place."""
    for version in reversed([one for one in Store(store).versions(name) if one.complete]):
        if (found := _found(version)) is None or found.run != run:
            raise CheckpointError(
                f"{version.path} is there already, and new versions of {name!r} would take its place: go on "
                "from it with run(resume=True), replace it with run(resume=False), or give those of this job "
                "another name with protect='NAME'"
            )
