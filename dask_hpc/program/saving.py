"""Versions of a program's state, in the store and in the memory of hosts: written while it goes on, read when
all else is lost."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dask_hpc.checkpoint.describe import describe
from dask_hpc.clock import stopwatch_s
from dask_hpc.errors import DaskHPCError
from dask_hpc.program import outlines
from dask_hpc.program.block_tasks import Graph, all_right, gathered
from dask_hpc.program.found import Found, Place, all_found, require_none, told
from dask_hpc.program.outlines import VersionLost
from dask_hpc.program.producer import Producer
from dask_hpc_policies.codec import encode
from dask_hpc_policies.layout import Layout

if TYPE_CHECKING:
    from distributed import Future

logger = logging.getLogger(__name__)

#: A question after a version is answered after so long at the latest, in seconds.
_ASK_S = 5.0
#: How often a state is read whose readers are lost.
_READS = 3
#: Why a version is written that a program keeps in memory.
KEPT = "kept"
#: Rows of versions that later ones of the same kind have replaced are kept for so many.
_ROWS = 100


class Saving:
    """The versions of one program.

    Parameters
    ----------
    producer
        Hears when one is to be written.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        #: Name, and folder if there is a store; None: the job is not protected, or has not started.
        self._where: dict[str, str | None] | None = None
        #: Versions that are being written: those in memory alone (True), and others.
        self._following: dict[bool, asyncio.Task[None]] = {}
        #: When the last version was begun, and at which step; at which step the last one in memory was.
        self._last = (stopwatch_s(), 0)
        self._kept = 0
        #: Why there was no version the last time.
        self._said = ""
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
        self._last, self._kept = (stopwatch_s(), step), step
        if resume and self._where is None:
            raise ValueError(
                f"resume is True and job {self._job} has no versions: it does not say protect; declare it "
                "with protect=True (or protect='NAME'), or leave resume out"
            )
        if self._where is not None and resume is None:
            await asyncio.to_thread(require_none, *await self._there(self._where), self._run)

    @property
    def wanted(self) -> bool:
        """Whether a version is to be written at this boundary. Costs nothing."""
        return self._producer.commit_asked is not None

    def due(self, keep: int | None, step: int) -> bool:
        """Whether a version in memory is to be written: every `keep` steps, unless one is being written."""
        if self._where is None or keep is None or step - self._kept < keep:
            return False
        return True not in self._following

    async def write(
        self,
        graph: Callable[[], Graph],
        layout: Layout,
        blocks: list[Future],
        dim: str,
        place: Place,
        kept: bool = False,
    ) -> None:
        """Begin a version of the blocks, which are there; the program goes on while it is written.

        What goes wrong is noted in its row, and the versions before it stay: a simulation does not end
        because a disk is full.

        Parameters
        ----------
        kept
            It is to be in the memory of hosts alone; else it is what the producer was asked for.
        """
        if kept:
            why, self._kept = KEPT, place.step
        else:
            why, self._producer.commit_asked = self._producer.commit_asked or "", None
        row: dict[str, Any] = {"step": place.step, "why": why, "state": "waiting", "version": None}
        self._note(row)
        try:
            begun, futures = await self._begin(graph, layout, blocks, dim, place, kept)
        except Exception as error:  # the user's blocks may be anything
            self._failed(row, error)
            if kept:
                return  # the next one is due all the same
            # when it is the state itself that is lost, the next step says so
            with suppress(DaskHPCError, OSError):
                await self._producer._ask("give_up_commit", lost=isinstance(error, CancelledError))
            return
        row |= begun
        following = self._following[kept] = asyncio.ensure_future(self._follow(row, futures))
        following.add_done_callback(lambda task: self._followed(kept, task))

    def _followed(self, kept: bool, task: asyncio.Task[None]) -> None:
        if self._following.get(kept) is task:
            del self._following[kept]

    def _note(self, row: dict[str, Any]) -> None:
        """A version more; of those that others have replaced since, only the last ones are remembered."""
        self.rows.append(row)
        kept = [each for each in self.rows if each["why"] == KEPT and each["state"] in ("complete", "failed")]
        if len(kept) > _ROWS:
            self.rows.remove(kept[0])

    def _failed(self, row: dict[str, Any], error: Exception | None = None) -> None:
        """Note that there is no version, and say so once as long as it is for the same reason."""
        if error is not None:
            row |= {"state": "failed", "reason": f"{type(error).__name__}: {error}"}
        if row["reason"] != self._said:
            self._said = row["reason"]
            logger.warning("Step %d of job %s has no version: %s", row["step"], self._job, row["reason"])

    async def _begin(
        self,
        graph: Callable[[], Graph],
        layout: Layout,
        blocks: list[Future],
        dim: str,
        place: Place,
        kept: bool,
    ) -> tuple[dict[str, Any], list[Future]]:
        assert self._where is not None
        self._written += 1
        number, now_s = self._written, stopwatch_s()
        first = graph()
        asked = [
            first.add(part.node, "outline", number, i, outlines.outline, block, dim)
            for i, (part, block) in enumerate(zip(layout.parts, blocks, strict=True))
        ]
        found = await gathered(first.submit(asked))
        made, places = outlines.whole(found, dim, layout.size)
        plan, keys = describe(made, str(self._where["name"]))
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
        program = told(place, layout.size, dim, self._run)
        began_s, steps = self._last[0], place.step - self._last[1]
        row = await self._producer._ask(
            "commit_program",
            step_s=(now_s - began_s) / steps if steps > 0 else 0.0,
            held_up_s=stopwatch_s() - now_s,
            plan=encode(replace(plan, extra={**plan.extra, **program})),
            keys=[by_key[key[0], sum(key[1:])] for key in keys],
            kept=kept,
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
            self._failed(row, error)
        else:
            if row["state"] == "failed":
                self._failed(row)
        del futures

    @property
    def protected(self) -> bool:
        """Whether versions are written."""
        return self._where is not None

    def went_back(self, found: Found | None) -> None:
        """Note that the program goes on from a version, or from its start."""
        step, version = (0, None) if found is None else (found.place.step, found.version)
        self._run = self._run if found is None else found.run
        self._last, self._kept = (stopwatch_s(), step), step
        why = "begun anew: there was no version yet" if found is None else "gone back to"
        self.rows.append({"step": step, "why": why, "state": "restored", "version": version})

    async def settled(self) -> None:
        """Wait until what is being written is."""
        if self._following:
            await asyncio.wait(list(self._following.values()))

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
        return await asyncio.to_thread(all_found, *await self._there(self._where), run)

    async def _there(self, where: dict[str, str | None]) -> tuple[str | None, str, list[str]]:
        """Folder and name of its versions, and those in memory."""
        return where["store"], str(where["name"]), await self._producer._ask("program_states")

    @property
    def _job(self) -> str:
        return self._producer._job.require_id()


async def insisted(read: Callable[[], Awaitable[bool]], lost: Callable[[], Awaitable[None]]) -> bool:
    """What `read` gives; it is called again when nodes that it reads to are lost meanwhile.

    Parameters
    ----------
    lost
        Called then; raises when nobody need read any more.

    Raises
    ------
    CancelledError, VersionLost
        When it was so each time.
    """
    for tries_left in reversed(range(_READS)):
        try:
            return await read()
        except (CancelledError, VersionLost) as error:
            await lost()
            if not tries_left:
                raise
            logger.warning("A state is read again: %s", error or "a node was lost meanwhile")
    raise AssertionError
