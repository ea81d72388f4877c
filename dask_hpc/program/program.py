"""Elastic phase-oriented programs: a simulation in phases that is resized while it runs.

A program is an ordered list of phases over one domain (Chadha 2019, section 3.2): *init* lays the state
out, once, and runs on every node that joins; *elastic* phases step in a loop and are resized at their
step boundaries; *rigid* phases are never resized; *branch* chooses what comes next. The driver probes,
opens windows, moves state from node to node, and times phases.

The state is an xarray block a node, or several, computed and kept by the job's workers; it never comes
through the client. Blocks are results of tasks, so those of a node that dies are computed again from what
is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dask_hpc.program import blocks
from dask_hpc.program.coupled import Coupled
from dask_hpc.program.driver import Driver
from dask_hpc.program.phase import Phase
from dask_hpc.program.producer import Change
from dask_hpc_policies.layout import Layout, Part

if TYPE_CHECKING:
    from distributed import Future


class Program(Driver):
    """A simulation in phases on one job. Made by `Job.program`.

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
        couple: tuple[Any, ...] | None = None,
        name: str = "",
    ) -> Program:
        """A phase that steps in a loop and may be resized between steps.

        Parameters
        ----------
        function
            ``function(block)`` gives the block one step later; with a halo,
            ``function(block, before, after)`` gets the neighbours' edges too, None at the ends of the
            domain. Runs on the block's node. The arrays of `block` are read-only: what they were is analysed,
            kept and gone back to.
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
            steps. Takes twice the memory of the state. Of a job that says ``protect`` a version goes to the
            memory of hosts as often, too, which is gone back to when neighbours die at once. With one node,
            or None: never; then all that was computed since the start is remembered, and computed again if
            need be.
        couple
            ``(flow, field, ...)``: a flow (`Runtime.couple`), and the names of its fields. Each step is
            handed over under its number, from 1 on: the flow's analyses are tasks of the step's own graph, on
            the node of the first block. Nothing is copied; what they need of other nodes is fetched.
        """
        name = name or f"elastic-{len(self.phases)}"
        coupled = None
        if couple is not None:
            flow, *fields = couple if isinstance(couple, (tuple, list)) and couple else (None,)
            if not hasattr(flow, "inside"):
                raise TypeError(f"couple is {couple!r:.80}; needed: (flow, field, ...), a flow of rt.couple")
            coupled = Coupled((flow.inside, tuple(fields)), self.size, self.dim, self)
        phase = Phase("elastic", name, function, steps, halo, adapt, after, keep, coupled)
        return self._add(phase.checked(self.size))

    def rigid(self, function: Callable[[Program], Any], name: str = "") -> Program:
        """A phase that is never resized: ``function(program)`` is called once, on the client."""
        return self._add(Phase("rigid", name or f"rigid-{len(self.phases)}", function))

    def branch(self, function: Callable[[Program], int | str | None], name: str = "") -> Program:
        """Jump: ``function(program)`` gives the number or name of the next phase, None to go on."""
        return self._add(Phase("branch", name or f"branch-{len(self.phases)}", function))

    # -------------------------------------------------------------------- run

    def run(self, timeout: float | None = None, *, resume: bool | None = None) -> Any:
        """Run the phases in order; returns the program.

        After an error the state is as it was at the last step boundary, and `run` goes on from there.

        The program of a job that says ``protect`` writes versions of its state to ``hpc.checkpoint.store``
        (every ``hpc.checkpoint.every``, and before the walltime ends) while it goes on, and goes back to the
        newest of them when blocks are lost that nobody has a copy of. A version has the state and the number
        of the step, not `data`.

        Parameters
        ----------
        timeout
            Seconds to wait for the job to start; None: for ever.
        resume
            True: begin with the newest version that an earlier run of this name has left, if there is one,
            instead of with the first phase. False: begin with the first phase; versions of this run take the
            place of those. None: as the job says (`Runtime.job`), else begin with the first phase, unless
            there are any.

        Raises
        ------
        CheckpointError
            When no version in the store can be read, or there are versions of an earlier run and nobody has
            said what is to become of them.
        JobFailed, JobCancelled, JobError
            When the job has ended, or its state is lost.
        ValueError
            When the version that there is was written by another program.
        """
        resume = self.job.resume if resume is None else resume
        return self.job.channel.run(self._run, timeout, resume)

    @property
    def commits(self) -> list[dict[str, Any]]:
        """One row a version of the state that was begun or gone back to, oldest first: step, version, why."""
        return [dict(row) for row in self._saving.rows]

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
        return self.job.channel.run(self._field)

    async def _field(self) -> Any:
        pieces = await self.job.channel.client.gather(self.blocks)
        return blocks.put_together(list(pieces), self.dim, Part("", 0, self.size))
