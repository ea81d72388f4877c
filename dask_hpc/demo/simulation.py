"""The demo's simulation: a heat equation that takes a fixed number of steps, watched while it runs.

Under dask_hpc it is an elastic program; on stock Dask the same tasks are submitted in a loop. Every few steps
in situ analytics look at each block on the node that holds it. The elastic program hands over its field, too:
a coupled analysis looks at the whole of it. A step takes node-seconds, so that it is shorter on more nodes.
The field, and what the coupled analysis saw, is compared with what as many steps give in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import xarray as xr
from distributed import Client, Future, get_worker, wait

from dask_hpc.demo.heat import Heat, mean_and_peak, peak_and_checksum
from dask_hpc.demo.paced import paced
from dask_hpc.demo.stage import in_background
from dask_hpc.program.blocks import advance, create, cut, put_together
from dask_hpc_policies.layout import Part, even_layout

if TYPE_CHECKING:
    from dask_hpc.client.runtime import Runtime
    from dask_hpc.program.program import Program

NAME = "heat"
HEAT = Heat(rows=384, columns=384)
#: What one step of the whole field takes.
STEP_NODE_S = 0.6
#: Steps between two looks of the in situ analytics, and of the coupled one.
LOOK_EVERY = 5
#: How long a value of the coupled analysis may take on a machine that is slow.
_PATIENCE_S = 120.0


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
    windows: tuple[Mapping[str, Any], ...] = ()
    #: Step and value of each look of the coupled analysis; none on stock Dask.
    coupled: tuple[tuple[int, tuple[float, int]], ...] = ()

    @property
    def resizes(self) -> int:
        """How often it was resized while it ran: windows that were committed."""
        return sum(window["result"] == "done" for window in self.windows)

    @property
    def identical(self) -> bool:
        """Whether the field is that of an undisturbed run in every bit (computed here and now)."""
        return bool(self.field.identical(HEAT.undisturbed(self.steps)))

    @property
    def coupled_identical(self) -> bool:
        """Whether the coupled analysis saw at each step what is computed now, in every bit."""
        fields = islice(enumerate(HEAT.fields(self.steps)), 1, None, LOOK_EVERY)
        return self.coupled == tuple((number, peak_and_checksum(field.values)) for number, field in fields)

    @property
    def in_situ(self) -> bool:
        """Whether analytics ran, and every block was looked at on the node that held it."""
        return bool(self.looks) and all(look.in_situ for look in self.looks)


def step(block: xr.DataArray, before: Any, after: Any) -> xr.DataArray:
    """One step of a block, which takes its share of `STEP_NODE_S`."""
    result: xr.DataArray = paced(STEP_NODE_S * block.sizes["y"] / HEAT.rows, HEAT.step, block, before, after)
    return result


def simulate(runtime: Runtime, steps: int, told: Callable[[int], Any]) -> Simulated:
    """Run it as a malleable job that may have any number of nodes; `told` hears of each step."""
    looking: list[tuple[int, tuple[str, ...], list[Future]]] = []

    def after(program: Program) -> None:
        told(program.step)
        if program.step % LOOK_EVERY == 0:
            assert program.layout is not None
            looking.append((program.step, program.layout.nodes, program.map(look)))

    with runtime.job(NAME) as job:
        flow = runtime.couple(NAME, {"temperature": (("y", "x"), (HEAT.rows, HEAT.columns), "float64")})
        try:
            flow.analyse(look_at_all, name="peak", every=LOOK_EVERY)
            coupled = in_background(list, flow.results("peak", timeout=_PATIENCE_S))
            program = job.program(HEAT.rows, "y").init(HEAT.start)
            program = program.elastic(step, steps, halo=1, after=after, couple=(flow, "temperature"))
            program.run()
            looks = [_look(at, nodes, runtime.client.gather(seen)) for at, nodes, seen in looking]
            return Simulated(
                program.field(),
                program.step,
                tuple(looks),
                tuple(program.producer.windows),
                tuple(coupled.result()),
            )
        finally:
            flow.close()


def simulate_plainly(client: Client, blocks: int, steps: int, told: Callable[[int], Any]) -> Simulated:
    """Run it as a loop of plain Dask tasks over so many blocks; `told` hears of each step."""
    parts = even_layout(HEAT.rows, [str(number) for number in range(blocks)]).parts
    looking: list[tuple[int, list[Future]]] = []

    def submit(function: Any, *args: Any) -> Future:
        return client.submit(function, *args, pure=False)

    present = [submit(create, HEAT.start, "y", part, "NEW") for part in parts]
    for number in range(1, steps + 1):
        first = [submit(cut, block, "y", 0, 1) for block in present[1:]]
        last = [
            submit(cut, block, "y", part.size - 1, part.size)
            for part, block in zip(parts[:-1], present[:-1], strict=True)
        ]
        following = [
            submit(advance, step, "y", part, 1, block, before, after)
            for part, block, before, after in zip(parts, present, [None, *last], [*first, None], strict=True)
        ]
        if number % LOOK_EVERY == 0:
            looking.append((number, [submit(look, block) for block in following]))
        # one step is computed while the next one is being submitted
        wait(present)
        present = following
        told(number)
    field = put_together(list(client.gather(present)), "y", Part("", 0, HEAT.rows))
    return Simulated(field, steps, tuple(_look(at, None, client.gather(seen)) for at, seen in looking))


def look(block: xr.DataArray) -> tuple[str, float, float]:
    """In situ analytics of one block: the node where they ran, sum and highest of its temperatures."""
    return str(get_worker().name), *mean_and_peak(block)


def look_at_all(field: xr.Dataset) -> tuple[float, int]:
    """The coupled analysis of one step."""
    return peak_and_checksum(field["temperature"].values[0])


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
    if simulated.coupled:
        as_after = "" if simulated.coupled_identical else "NOT "
        seen += f"; {len(simulated.coupled)} coupled analyses {as_after}as computed afterwards"
    return f"resized {times}, field {field} an undisturbed run of {simulated.steps} steps{seen}"
