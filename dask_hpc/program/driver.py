"""Driving a program: its phases one after the other, resizes at step boundaries, copies of its blocks."""

from __future__ import annotations

import logging
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from dask_hpc.channel import OnChannel
from dask_hpc.errors import CheckpointError, DaskHPCError, JobCancelled, JobError, JobFailed, WindowError
from dask_hpc.program import block_tasks, blocks
from dask_hpc.program.block_tasks import Graph, all_right, gathered
from dask_hpc.program.calling import called
from dask_hpc.program.copies import Copies
from dask_hpc.program.coupled import has_room, submit_step, uncouple
from dask_hpc.program.found import Place
from dask_hpc.program.outlines import VersionLost
from dask_hpc.program.phase import Phase
from dask_hpc.program.producer import Change, Producer, Status
from dask_hpc.program.saving import Saving, insisted
from dask_hpc_policies.layout import (
    Layout,
    Planner,
    check_plan,
    checked_domain,
    checked_function,
    checked_layout,
    indices_moved,
    layout_function,
    overlap_plan,
)

if TYPE_CHECKING:
    from distributed import Future

logger = logging.getLogger(__name__)


class Driver:
    """Runs phases over one state, which lies in blocks on the nodes of a job.

    Parameters
    ----------
    job
        The job whose nodes hold the state.
    size, dim
        Number of indices and name of the dimension that the state is split along.
    layout
        Function from `size` and node names to a `Layout`; default: even contiguous parts.
    blocks_per_node
        Parts a node of the default layout: the threads of a node advance as many at once.
    plan
        Function from the old and the new layout to the pieces that each new block is made of.
    """

    def __init__(
        self,
        job: OnChannel,
        size: int,
        dim: str,
        *,
        layout: Callable[[int, Sequence[str]], Layout] | None = None,
        blocks_per_node: int = 1,
        plan: Planner = overlap_plan,
    ) -> None:
        self.size, self.dim = checked_domain(size, dim)
        self.job = job
        self.phases: list[Phase] = []
        #: Asks and is asked: see `dask_hpc.program.producer`.
        self.producer = Producer(job, self._join)
        self.layout: Layout | None = None
        #: One future a part of the layout, each an xarray object on its node.
        self.blocks: list[Future] = []
        #: Steps done, of all elastic phases together and of the present one.
        self.step = self.phase_step = 0
        #: Whatever phases want to tell one another; the driver does not look into it.
        self.data: dict[str, Any] = {}
        #: One row a phase that was run: name, kind, steps, seconds.
        self.timings: list[dict[str, Any]] = []
        self._make_layout = layout_function(layout, blocks_per_node)
        self._plan = checked_function("plan", plan)
        self._at = 0
        self._name = uuid.uuid4().hex[:8]
        self._copies = Copies()
        self._saving = Saving(self.producer)
        self._mapped, self._running = 0, False

    def __repr__(self) -> str:
        return f"<Program {self.job.id} {self.dim}={self.size} step={self.step} blocks={len(self.blocks)}>"

    def _add(self, phase: Phase) -> Self:
        if (phase.kind == "init") != (not self.phases):
            raise ValueError(
                f"phase {len(self.phases)} is {phase.kind}; a program has one init phase, and it is the first"
            )
        if phase.name in (other.name for other in self.phases):
            raise ValueError(f"phase name {phase.name!r} is taken; allowed: a name no other phase has")
        self.phases.append(phase)
        return self

    # -------------------------------------------------------------------- run

    async def _run(self, timeout: float | None, resume: bool | None) -> Self:
        if not self.phases:
            raise ValueError("the program has no phases; begin with init")
        if self._running:
            raise RuntimeError("the program runs already")
        self._running = True
        # what failed in an earlier run must not be found again under the same key
        self._name = uuid.uuid4().hex[:8]
        try:
            if fresh := not self.producer.nodes:
                await self.producer._start(timeout)
            if fresh or self.layout is None:
                await self._saving.begin(resume, self.step)
            if resume and self.layout is None:
                await insisted(lambda: self._load(True), self._check_job)
            while self._at < len(self.phases):
                try:
                    await self._run_phase(self.phases[self._at])
                except (CancelledError, VersionLost):
                    await self._check_job()
                    if not (await insisted(self._load, self._check_job) or self._begin_anew()):
                        raise
            await self._saving.settled()
            await self.producer._stop()
        except CancelledError as error:
            await self._check_job()
            raise JobError(
                f"blocks of {self.job.id} were lost with the nodes they and their copies were on; copies are "
                "made every `keep` steps and on the next node only (keep=None: all can be computed again). "
                "With protect=True a job goes back to versions in memory, or in hpc.checkpoint.store"
            ) from error
        except WindowError:
            await self._check_job()
            raise
        finally:
            self._running = False
            await self._left(sys.exception())
        return self

    async def _left(self, error: BaseException | None) -> None:
        """A run has ended, by that error: flows are told, and a program without a state is asked no more."""
        again = isinstance(error, WindowError) or not isinstance(error, JobError)
        await uncouple([phase.coupled for phase in self.phases], again)
        if error is not None and (self.layout is None or type(error) is JobError):
            with suppress(DaskHPCError, OSError):
                await self.producer._stop()

    async def _load(self, of_others: bool = False) -> bool:
        """Go on from the newest version that can be read; whether there is one."""
        problem = None
        for found in await self._saving.versions(of_others):
            layout = self._made_layout(self.producer.nodes)
            # what was lost must not be found again under the same keys
            self._name = uuid.uuid4().hex[:8]
            at = found.number(self.size, self.dim, [phase.name for phase in self.phases])
            graph = self._graph()
            try:
                made = graph.submit(block_tasks.read(graph, layout, found, self.dim))
                await self._made(made)
            except CheckpointError as error:
                problem = error
                logger.warning("Version %d of the state of %s: %s", found.version, self.job.id, error)
                continue
            self.layout, self.blocks, self._at = layout, made, at
            self.step, self.phase_step = found.place.step, found.place.phase_step
            self._copies.drop(self.step)
            self._saving.went_back(found)
            return True
        if problem is not None:
            raise problem
        return False

    def _begin_anew(self) -> bool:
        """Go back to the start, if the job is protected: it was lost before its first version."""
        if self._saving.protected:
            self._name, self.layout, self.blocks = uuid.uuid4().hex[:8], None, []
            self._at = self.step = self.phase_step = 0
            self._copies.drop(0)
            self._saving.went_back(None)
        return self._saving.protected

    async def _check_job(self) -> None:
        """Raise what says how the job has ended, if it has: the program ends with it."""
        row = await self.job.channel.ask("job", job=self.job.id)
        if row["state"] == "failed":
            raise JobFailed(f"job {row['id']} failed: {row['reason']}")
        if row["state"] in ("cancelled", "completed"):
            raise JobCancelled(f"job {row['id']} is {row['state']}: {row['reason']}")

    async def _run_phase(self, phase: Phase) -> None:
        began_s, before = time.monotonic(), self.step
        await self.producer._phase(phase.name, phase.kind == "elastic")
        following = self._at + 1
        if phase.kind == "init":
            await self._init(phase)
        elif phase.kind == "elastic":
            await self._elastic(phase)
        else:
            await self._settled()
            answer = await called(self.job, phase.function, self)
            if phase.kind == "branch" and answer is not None:
                following = phase.chosen(answer, [other.name for other in self.phases])
        row = {"phase": phase.name, "kind": phase.kind, "steps": self.step - before}
        self.timings.append({**row, "duration_s": time.monotonic() - began_s})
        self.phase_step = 0
        self._at = following

    async def _init(self, phase: Phase) -> None:
        layout = self._made_layout(self.producer.nodes)
        graph = self._graph()
        made = graph.submit(
            [
                graph.add(
                    part.node, "init", 0, i, blocks.create, phase.function, self.dim, part, Status.NEW.value
                )
                for i, part in enumerate(layout.parts)
            ]
        )
        await self._made(made)
        self.layout, self.blocks = layout, made

    async def _elastic(self, phase: Phase) -> None:
        # the two newest step boundaries: a step that fails may be noticed one step later
        boundaries: list[tuple[int, int, list[Future]]] = []
        try:
            while await self._another(phase):
                self.producer.busy = 0
                await self._boundary(phase, boundaries)
                while not await has_room(phase.coupled, self.step + 1, self.producer.called):
                    await self._boundary(phase, boundaries)
                # one step is computed while the next one is being submitted
                last = self.blocks
                boundaries = [*boundaries[-1:], (self.step, self.phase_step, last)]
                graph, layout = self._graph(), self._layout()
                how = self.dim, phase.function, phase.halo, self.step
                made = block_tasks.advanced(graph, layout, last, *how)
                self.blocks = await submit_step(graph, layout, made, self.step + 1, phase.coupled)
                self.step += 1
                self.phase_step += 1
                self.producer.busy = 1
                if phase.after is not None:
                    await called(self.job, phase.after, self)
                await all_right(last)
            await self._settled()
        except Exception:
            await self._go_back(boundaries)
            raise
        finally:
            self.producer.busy = 0

    async def _boundary(self, phase: Phase, boundaries: list[tuple[int, int, list[Future]]]) -> None:
        """Do what is to be done between two steps: resize, copy, write a version."""
        self.producer.called.clear()
        due = self._copies.due(phase.keep, self._layout(), self.step)
        kept = self._saving.due(phase.keep, self.step)
        if due or kept or self._saving.wanted or self.producer.probe() is not None:
            await self._settled()
            boundaries.clear()
        if self.producer.probe() is not None:
            changed = await self._adapt(phase)
            due = self._copies.due(phase.keep, self._layout(), self.step, changed)
        if due:
            await self._settled()
            now = self._layout(), self.blocks, self.step
            self.blocks = await self._copies.make(self._graph(), *now, self._made, self.producer._ask)
        state = self._graph, self._layout(), self.blocks, self.dim
        place = Place(phase.name, self.phase_step, self.step)
        if kept:
            await self._saving.write(*state, place, kept=True)
        if self._saving.wanted:
            await self._saving.write(*state, place)

    async def _go_back(self, boundaries: list[tuple[int, int, list[Future]]]) -> None:
        """Go back to the newest step that could be computed; later ones are dropped.

        What has failed is released, so that the job has not failed when it goes on well from there.
        """
        for there in reversed([*boundaries, (self.step, self.phase_step, self.blocks)]):
            try:
                await all_right(there[2])
            except Exception:
                for future in there[2]:
                    future.release()
            else:
                self.step, self.phase_step, self.blocks = there
                return

    async def _another(self, phase: Phase) -> bool:
        if callable(phase.steps):
            return bool(await called(self.job, phase.steps, self))
        return self.phase_step < phase.steps

    async def _made(self, new: list[Future]) -> None:
        """Wait until these are computed; when they cannot be, release those that are not the state itself.

        A failure that nobody holds on to does not make the job a failed one.
        """
        try:
            await all_right(new)
        except BaseException:
            for future in new:
                if not any(future is block for block in self.blocks):
                    future.release()
            raise

    async def _settled(self) -> None:
        """Wait until the state of the last step is there."""
        await all_right(self.blocks)

    def _layout(self) -> Layout:
        if self.layout is None:
            raise RuntimeError("the program has no state before its init phase has run")
        return self.layout

    def _least(self) -> int:
        return max([1, *(phase.halo for phase in self.phases)])

    # ----------------------------------------------------------------- resize

    async def _join(self, change: Change) -> None:
        """Run init on the nodes that join (the producer is told when this has returned)."""
        if self.phases[self._at].adapt is None:
            layout = self._made_layout(change.nodes)
        else:
            layout = self._make_layout(self.size, change.nodes)
        graph, init = self._graph(), self.phases[0].function
        number, status = change.reconfig_id, Status.JOINING.value
        # init makes the node ready: once a node, for the first of its parts
        parts = {part.node: part for part in reversed(layout.parts) if part.node in change.joining}
        made = graph.submit(
            [
                graph.add(node, "join", number, node, blocks.prepare, init, self.dim, part, status)
                for node, part in parts.items()
            ]
        )
        failures = [text for text in await gathered(made) if text]
        if failures:
            raise WindowError(failures[0])

    async def _adapt(self, phase: Phase) -> bool:
        """Open the window, lay the state out over the new nodes, and commit; or leave all as it was.

        Returns whether the layout has changed.
        """
        try:
            change = await self.producer._begin()
        except WindowError:
            await self._check_job()
            return False  # it was aborted a moment ago: the old size goes on
        try:
            layout = await self._new_layout(phase, change)
            old = self._layout()
            plan = self._plan(old, layout)
            check_plan(old, layout, plan)
            graph = self._graph()
            made = graph.submit(
                block_tasks.laid_out(graph, old, layout, plan, self.blocks, self.dim, change.reconfig_id)
            )
            await self._made(made)
        except BaseException as error:
            await self.producer._abort(f"{type(error).__name__}: {error}")
            raise
        try:
            await self.producer._commit()
        except WindowError:
            await self._check_job()
            return False
        self.producer.windows[-1]["indices_moved"] = indices_moved(old, layout, plan)
        self.layout, self.blocks = layout, made
        return True

    async def _new_layout(self, phase: Phase, change: Change) -> Layout:
        if phase.adapt is None:
            return self._made_layout(change.nodes)
        layout = await called(self.job, phase.adapt, change, self._layout())
        who = f"adapt of phase {phase.name!r}"
        return checked_layout(layout, self.size, change.nodes, self._least(), who)

    def _made_layout(self, nodes: Sequence[str]) -> Layout:
        layout = self._make_layout(self.size, nodes)
        return checked_layout(layout, self.size, nodes, self._least(), "the layout function")

    # ----------------------------------------------------------------- helpers

    def _graph(self) -> Graph:
        return Graph(self.job.channel.client, self.job.id, self._name)
