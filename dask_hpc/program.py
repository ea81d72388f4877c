"""Elastic phase-oriented programs: a simulation in phases that is resized while it runs.

A program is an ordered list of phases over one domain (Chadha 2019, section 3.2): *init* lays the state
out, once, and runs on every node that joins; *elastic* phases step in a loop and are resized at their
step boundaries; *rigid* phases are never resized; *branch* chooses what comes next. The driver probes,
opens windows, moves state from node to node, and times phases.

The state is one xarray block a node, computed and kept by the job's workers; it never comes through the
client. Blocks are results of tasks, so those of a node that dies are computed again from what is left.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import dask

from dask_hpc import block_tasks, blocks
from dask_hpc.block_tasks import Graph, all_right
from dask_hpc.errors import JobCancelled, JobError, JobFailed, WindowError
from dask_hpc.phases import Phase
from dask_hpc.producer import Change, Producer, Status
from dask_hpc.scheduler.ownership import ANNOTATION
from dask_hpc_policies.layout import (
    Layout,
    LayoutError,
    Part,
    Planner,
    check_plan,
    even_layout,
    indices_moved,
    overlap_plan,
)

if TYPE_CHECKING:
    from distributed import Future

    from dask_hpc.job import Job

#: Id of the job whose program is calling a function of the user's.
IN_PROGRAM: ContextVar[str | None] = ContextVar("hpc_in_program", default=None)


class Program:
    """A simulation in phases on one job. Made by `Job.program`.

    Parameters
    ----------
    job
        The job whose nodes hold the state.
    size, dim
        Number of indices and name of the dimension that the state is split along.
    layout
        Function from `size` and node names to a `Layout`; default: even contiguous parts.
    plan
        Function from the old and the new layout to the pieces that each new block is made of.
    """

    def __init__(
        self,
        job: Job,
        size: int,
        dim: str,
        *,
        layout: Callable[[int, Sequence[str]], Layout] = even_layout,
        plan: Planner = overlap_plan,
    ) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size is {size!r}; allowed: a number of indices, 1 or more")
        self.job = job
        self.size = size
        self.dim = dim
        self.phases: list[Phase] = []
        #: Asks and is asked: see `dask_hpc.producer`.
        self.producer = Producer(job, self._join)
        self.layout: Layout | None = None
        #: One future a part of the layout, each an xarray object on its node.
        self.blocks: list[Future] = []
        #: Steps done, of all elastic phases together and of the present one.
        self.step = 0
        self.phase_step = 0
        #: Whatever phases want to tell one another; the driver does not look into it.
        self.data: dict[str, Any] = {}
        #: One row a phase that was run: name, kind, steps, seconds.
        self.timings: list[dict[str, Any]] = []
        self._make_layout = layout
        self._plan = plan
        self._at = 0
        self._name = uuid.uuid4().hex[:8]
        #: The blocks of an earlier step, each on its own node and on the next one, and that step.
        self._copies: list[Future] = []
        self._kept_at = 0
        self._copied = 0
        self._mapped = 0
        self._running = False

    def __repr__(self) -> str:
        return f"<Program {self.job.id} {self.dim}={self.size} step={self.step} blocks={len(self.blocks)}>"

    # ----------------------------------------------------------------- phases

    def init(self, function: Callable[[Part, str], Any], name: str = "init") -> Program:
        """The first phase: ``function(part, status)`` makes the block of one part, on its node.

        `part` has ``start``, ``stop`` and ``node``; `status` is ``NEW``, or ``JOINING`` on a node that
        joins later: the state comes to it from the others, what is returned there is dropped.
        """
        return self._add(Phase("init", name, function))

    def elastic(
        self,
        function: Callable[..., Any],
        steps: int | Callable[[Program], Any],
        *,
        halo: int = 0,
        adapt: Callable[[Change, Layout], Layout] | None = None,
        after: Callable[[Program], Any] | None = None,
        keep: int | None = 100,
        name: str = "",
    ) -> Program:
        """A phase that steps in a loop and may be resized between steps.

        Parameters
        ----------
        function
            ``function(block)`` gives the block one step later; with a halo,
            ``function(block, before, after)`` gets the neighbours' edges too, None at the ends of the
            domain. Runs on the block's node.
        steps
            How many, or a function of the program that says whether to take another one.
        halo
            Width of the edges that neighbours exchange before every step, in indices.
        adapt
            ``adapt(change, layout)`` gives the new layout over ``change.nodes``; default: the program's
            layout function.
        after
            Called with the program after every step (its blocks may not have been computed yet):
            submit in situ analytics here.
        keep
            Every so many steps, and after every resize, each block is kept as it is on its node and on the
            next one, and the scheduler forgets how it was made: a node that dies costs at most that many
            steps. Takes twice the memory of the state. With one node, or None: never; then all that was
            computed since the start is remembered, and computed again if need be.
        """
        name = name or f"elastic-{len(self.phases)}"
        phase = Phase("elastic", name, function, steps, halo, adapt, after, keep)
        phase.check(self.size)
        return self._add(phase)

    def rigid(self, function: Callable[[Program], Any], name: str = "") -> Program:
        """A phase that is never resized: ``function(program)`` is called once, on the client."""
        return self._add(Phase("rigid", name or f"rigid-{len(self.phases)}", function))

    def branch(self, function: Callable[[Program], int | str | None], name: str = "") -> Program:
        """Jump: ``function(program)`` gives the number or name of the next phase, None to go on."""
        return self._add(Phase("branch", name or f"branch-{len(self.phases)}", function))

    def _add(self, phase: Phase) -> Program:
        if (phase.kind == "init") != (not self.phases):
            raise ValueError(
                f"phase {len(self.phases)} is {phase.kind}; a program has one init phase, and it is the first"
            )
        if phase.name in (other.name for other in self.phases):
            raise ValueError(f"phase name {phase.name!r} is taken; allowed: a name no other phase has")
        self.phases.append(phase)
        return self

    # -------------------------------------------------------------------- run

    def run(self, timeout: float | None = None) -> Any:
        """Run the phases in order; returns the program.

        After an error the state is as it was at the last step boundary, and `run` goes on from there.

        Parameters
        ----------
        timeout
            Seconds to wait for the job to start; None: for ever.
        """
        return self.job._runtime.client.sync(self._run, timeout)

    async def _run(self, timeout: float | None) -> Program:
        if not self.phases:
            raise ValueError("the program has no phases; begin with init")
        if self._running:
            raise RuntimeError("the program runs already")
        self._running = True
        # what failed in an earlier run must not be found again under the same key
        self._name = uuid.uuid4().hex[:8]
        try:
            if not self.producer.nodes:
                await self.producer._start(timeout)
            while self._at < len(self.phases):
                await self._run_phase(self.phases[self._at])
            await self.producer._stop()
        except CancelledError as error:
            await self._check_job()
            raise JobError(
                f"blocks of {self.job.id} were lost with the nodes they and their copies were on; copies are "
                "made every `keep` steps and on the next node only (keep=None: all can be computed again)"
            ) from error
        except WindowError:
            await self._check_job()
            raise
        finally:
            self._running = False
        return self

    async def _check_job(self) -> None:
        """Raise what says how the job has ended, if it has: the program ends with it."""
        row = await self.job._runtime._ask("job", job=self.job.id)
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
            answer = await self._call(phase.function, self)
            if phase.kind == "branch" and answer is not None:
                following = self._number(phase, answer)
        self.timings.append(
            {
                "phase": phase.name,
                "kind": phase.kind,
                "steps": self.step - before,
                "duration_s": time.monotonic() - began_s,
            }
        )
        self.phase_step = 0
        self._at = following

    def _number(self, phase: Phase, answer: int | str) -> int:
        names = [other.name for other in self.phases]
        if isinstance(answer, str) and answer in names[1:]:
            return names.index(answer)
        if isinstance(answer, int) and not isinstance(answer, bool) and 0 < answer < len(names):
            return answer
        raise ValueError(
            f"branch {phase.name!r} goes to {answer!r}; allowed: 1 to {len(names) - 1}, "
            f"{', '.join(map(repr, names[1:]))}, or None"
        )

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
                due = self._keep_is_due(phase)
                if due or self.producer.probe() is not None:
                    await self._settled()
                    boundaries.clear()
                if self.producer.probe() is not None:
                    due = self._keep_is_due(phase, changed=await self._adapt(phase))
                if due:
                    await self._keep()
                # one step is computed while the next one is being submitted
                last = self.blocks
                boundaries = [*boundaries[-1:], (self.step, self.phase_step, last)]
                graph = self._graph()
                self.blocks = graph.submit(
                    block_tasks.advanced(
                        graph, self._layout(), last, self.dim, phase.function, phase.halo, self.step
                    )
                )
                self.step += 1
                self.phase_step += 1
                self.producer.busy = 1
                if phase.after is not None:
                    await self._call(phase.after, self)
                await all_right(last)
            await self._settled()
        except Exception:
            await self._go_back(boundaries)
            raise
        finally:
            self.producer.busy = 0

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
            return bool(await self._call(phase.steps, self))
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
        made = graph.submit(
            [
                graph.add(part.node, "join", number, part.node, blocks.prepare, init, self.dim, part, status)
                for part in layout.parts
                if part.node in change.joining
            ]
        )
        failures = [text for text in await self.job._runtime.client.gather(made) if text]
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

    def _keep_is_due(self, phase: Phase, changed: bool = False) -> bool:
        """Whether the blocks are to be copied: it is time, they lie elsewhere, or a copy has gone.

        A copy may go without a change of the layout, when a node is lost and back at once. One node has
        no other that could hold its copy.
        """
        if phase.keep is None or len(self._layout().parts) < 2:
            return False
        late = self.step - self._kept_at >= phase.keep
        return changed or late or any(copy.cancelled() for copy in self._copies)

    async def _keep(self) -> None:
        """Copy every block to the next node, and let the scheduler forget how the copies were made.

        The program goes on from blocks that are made from the copies: what was lost with a node comes
        from there. When a copy has gone already, the ones before are kept, and the next step tries again.
        """
        await self._settled()
        graph = self._graph()
        made = block_tasks.copied(graph, self._layout(), self.blocks, self._copied)
        self._copied += 1
        futures = graph.submit([*made[0], *made[1]])
        copies, kept = futures[: len(made[0])], futures[len(made[0]) :]
        await self._made(futures)
        nodes = self._layout().nodes
        places = [(copy.key, nodes[(i + 1) % len(nodes)]) for i, copy in enumerate(copies)]
        if await self.producer._ask("keep_copies", copies=places):
            # both are held on to: neighbours go back together, and one of them has lost its copy
            self.blocks, self._copies, self._kept_at = kept, futures, self.step

    async def _new_layout(self, phase: Phase, change: Change) -> Layout:
        if phase.adapt is None:
            return self._made_layout(change.nodes)
        layout = await self._call(phase.adapt, change, self._layout())
        return self._checked(layout, change.nodes, f"adapt of phase {phase.name!r}")

    def _made_layout(self, nodes: Sequence[str]) -> Layout:
        return self._checked(self._make_layout(self.size, nodes), nodes, "the layout function")

    def _checked(self, layout: Any, nodes: Sequence[str], who: str) -> Layout:
        if not isinstance(layout, Layout):
            raise LayoutError(f"{who} gave {layout!r}; needed: a Layout")
        if layout.size != self.size:
            raise LayoutError(f"{who} gave a layout of {layout.size} indices; the domain has {self.size}")
        layout.check(nodes, self._least())
        return layout

    # ----------------------------------------------------------------- helpers

    def map(self, function: Callable[..., Any], *args: Any) -> list[Future]:
        """Submit ``function(block, *args)`` for every block, on its node; for in situ analytics."""
        layout = self._layout()
        self._mapped += 1
        what = f"{getattr(function, '__name__', 'map')}-{self._mapped}"
        graph = self._graph()
        return graph.submit(
            [
                graph.add(part.node, what, self.step, i, function, block, *args)
                for i, (part, block) in enumerate(zip(layout.parts, self.blocks, strict=True))
            ]
        )

    def field(self) -> Any:
        """The whole state as one xarray object on the client."""
        return self.job._runtime.client.sync(self._field)

    async def _field(self) -> Any:
        pieces = await self.job._runtime.client.gather(self.blocks)
        return blocks.put_together(list(pieces), self.dim, Part("", 0, self.size))

    def _graph(self) -> Graph:
        return Graph(self.job._runtime.client, self.job.id, self._name)

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the user's function: in a thread of its own when the client is an ordinary one."""
        client = self.job._runtime.client
        inside = IN_PROGRAM.set(self.job.id)
        try:
            with dask.annotate(**{ANNOTATION: self.job.id}):
                if client._asynchronous:
                    answer = function(*args)
                    return await answer if inspect.isawaitable(answer) else answer
                context = contextvars.copy_context()
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(None, lambda: context.run(function, *args))
        finally:
            IN_PROGRAM.reset(inside)
