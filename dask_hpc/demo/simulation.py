"""The demo's simulation: a heat equation that steps beside the other workloads, watched while it runs.

It steps as long as anything else goes on, and some steps more. So it is there whenever another job
arrives or ends, on a fast machine and on a slow one. Every few steps in situ analytics look at each
block on the node that holds it. Under dask_hpc it is an elastic program; on stock Dask the same tasks
are submitted in a loop. Whatever the number of its steps was, its field is compared with the field
that as many steps give in one piece.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xarray as xr
from distributed import Client, Future, get_worker, wait

from dask_hpc.demo.heat import Heat, mean_and_peak
from dask_hpc.program.blocks import advance, create, cut, put_together
from dask_hpc_policies.layout import Part, even_layout

if TYPE_CHECKING:
    from dask_hpc.client.job import Job
    from dask_hpc.client.runtime import Runtime
    from dask_hpc.program.program import Program

NAME = "heat"
TITLE = "Heat equation, as an elastic program"
HEAT = Heat(rows=512, columns=512)
#: Blocks on stock Dask, where the number of nodes does not change.
STOCK_BLOCKS = 4
#: Steps between two looks of the in situ analytics.
LOOK_EVERY = 5
#: Steps that it still takes when nothing else goes on any more: it grows into the nodes left to it.
LAST_STEPS = 20


@dataclass(frozen=True, slots=True)
class InSituLook:
    """What in situ analytics saw at one step: the mean temperature and the highest one."""

    step: int
    mean: float
    peak: float
    #: Whether every block was looked at on the node that held it; None where blocks have no nodes.
    in_situ: bool | None


@dataclass(frozen=True, slots=True)
class Simulated:
    """A simulation that has ended."""

    field: xr.DataArray
    steps: int
    looks: tuple[InSituLook, ...]
    #: Windows of the program, as `dask_hpc.program.producer.Producer.windows` has them; none on stock Dask.
    windows: tuple[Mapping[str, Any], ...]

    @property
    def resizes(self) -> int:
        """How often it was resized while it ran: windows that were committed."""
        return sum(window["result"] == "done" for window in self.windows)

    @property
    def identical(self) -> bool:
        """Whether the field is that of an undisturbed run in every bit (computed here and now)."""
        return bool(self.field.identical(HEAT.undisturbed(self.steps)))

    @property
    def in_situ(self) -> bool:
        """Whether analytics ran, and every block was looked at on the node that held it."""
        return bool(self.looks) and all(look.in_situ for look in self.looks)


class Simulation:
    """One run of the simulation in a thread of its own; to be asked like a future.

    `needed` says whether anything else goes on; whoever drives the demo keeps it up to date.
    """

    def __init__(self) -> None:
        self.needed = True
        #: Steps taken.
        self.steps = 0
        self.status = "pending"
        self._last_needed = 0
        self._stopped = False
        self._result: Simulated | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start_managed(self, runtime: Runtime, request: Mapping[str, Any], submitted: list[Job]) -> Simulation:
        """Run it as a malleable job; the job is added to `submitted` as soon as it is there."""
        return self._start(lambda: self._managed(runtime, request, submitted))

    def start_stock(self, client: Client) -> Simulation:
        """Run it as a loop of plain Dask tasks."""
        return self._start(lambda: self._stock(client))

    def done(self) -> bool:
        """Whether it has ended, one way or another."""
        return self.status in ("finished", "error")

    def result(self) -> Simulated:
        """What it gave; raises what it ended with."""
        if self._error is not None:
            raise self._error
        assert self._result is not None, "the simulation has not ended"
        return self._result

    def exception(self) -> BaseException | None:
        """What it ended with, if that was an error."""
        return self._error

    def stop(self, timeout_s: float = 10.0) -> None:
        """End it at its next step, and wait for that."""
        self._stopped = True
        if self._thread is not None:
            self._thread.join(timeout_s)

    # -------------------------------------------------------------- internals

    def _start(self, run: Callable[[], Simulated]) -> Simulation:
        def body() -> None:
            try:
                self._result = run()
                self.status = "finished"
            except BaseException as error:
                self._error = error
                self.status = "error"

        self._thread = threading.Thread(target=body, name=NAME, daemon=True)
        self._thread.start()
        return self

    def _another(self) -> bool:
        """Whether to take another step."""
        if self.needed:
            self._last_needed = self.steps
        return not self._stopped and self.steps - self._last_needed < LAST_STEPS

    def _managed(self, runtime: Runtime, request: Mapping[str, Any], submitted: list[Job]) -> Simulated:
        looking: list[tuple[int, tuple[str, ...], list[Future]]] = []

        def after(program: Program) -> None:
            self.steps = program.step
            if program.step % LOOK_EVERY == 0:
                assert program.layout is not None
                looking.append((program.step, program.layout.nodes, program.map(look)))

        with runtime.job(NAME, **request) as job:
            submitted.append(job)
            program = job.program(HEAT.rows, "y").init(HEAT.start)
            program.elastic(HEAT.step, lambda _: self._another(), halo=1, after=after)
            program.run()
            looks = [_look(step, nodes, runtime.client.gather(seen)) for step, nodes, seen in looking]
            return Simulated(program.field(), program.step, tuple(looks), tuple(program.producer.windows))

    def _stock(self, client: Client) -> Simulated:
        parts = even_layout(HEAT.rows, [str(i) for i in range(STOCK_BLOCKS)]).parts
        looking: list[tuple[int, list[Future]]] = []

        def submit(function: Any, *args: Any) -> Future:
            return client.submit(function, *args, pure=False)

        blocks = [submit(create, HEAT.start, "y", part, "NEW") for part in parts]
        while self._another():
            first = [submit(cut, block, "y", 0, 1) for block in blocks[1:]]
            last = [
                submit(cut, block, "y", part.size - 1, part.size)
                for part, block in zip(parts[:-1], blocks[:-1], strict=True)
            ]
            following = [
                submit(advance, HEAT.step, "y", part, 1, block, before, after)
                for part, block, before, after in zip(
                    parts, blocks, [None, *last], [*first, None], strict=True
                )
            ]
            self.steps += 1
            if self.steps % LOOK_EVERY == 0:
                looking.append((self.steps, [submit(look, block) for block in following]))
            # one step is computed while the next one is being submitted
            wait(blocks)
            blocks = following
        pieces = client.gather(blocks)
        field = put_together(list(pieces), "y", Part("", 0, HEAT.rows))
        looks = tuple(_look(step, None, client.gather(seen)) for step, seen in looking)
        return Simulated(field, self.steps, looks, ())


def look(block: xr.DataArray) -> tuple[str, float, float]:
    """In situ analytics of one block: the node where they ran, sum and highest of its temperatures."""
    return str(get_worker().name), *mean_and_peak(block)


def _look(step: int, nodes: Sequence[str] | None, seen: Sequence[tuple[str, float, float]]) -> InSituLook:
    where, sums, peaks = zip(*seen, strict=True)
    in_situ = None if nodes is None else tuple(where) == tuple(nodes)
    return InSituLook(step, sum(sums) / (HEAT.rows * HEAT.columns), max(peaks), in_situ)


def describe(simulated: Simulated, identical: bool) -> str:
    """How often it was resized, whether its field is right, and what analytics saw, in one line."""
    times = f"{simulated.resizes} time{'' if simulated.resizes == 1 else 's'}"
    field = "identical to" if identical else "DIFFERENT from that of"
    seen = ""
    if simulated.looks:
        first, last = simulated.looks[0], simulated.looks[-1]
        where = "on its nodes" if simulated.in_situ else "NOT on its nodes"
        seen = f"; {len(simulated.looks)} in situ looks {where}: peak {first.peak:.3f} to {last.peak:.3f}"
    return f"resized {times}, field {field} an undisturbed run of {simulated.steps} steps{seen}"
