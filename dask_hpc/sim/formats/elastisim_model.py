"""ElastiSim's application models: phases and tasks, as programs of jobs.

Rules of the file: what is not simulated (tasks of GPUs and burst buffers) is an error; what is simulated
otherwise is counted in the notes. A ``cpu`` task ends with its slowest node and its communication, which
overlap. A scheduling point stands before each iteration of a phase except the very first; with
``final_scheduling_point: false`` (older files) also none after the last iteration of the phase. An evolving
request is made before each iteration, and cut to the sizes of the job.

``on_init`` is done at the start. After each resize all nodes do ``on_reconfiguration``; before that, after an
expansion, the nodes that joined do ``on_expansion`` while the others wait, and ``num_nodes`` is their number
there. These phases come on top of what the machine says a resize costs. A node that is lost is no resize.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dask_hpc.sim.formats.amounts import (
    DEEPEST,
    MOST_STEPS,
    BySize,
    Sizes,
    by_size,
    most_steps,
    read_amount,
    read_formula,
    repeated,
)
from dask_hpc.sim.formats.elastisim_load import communication_s, divided
from dask_hpc.sim.formats.fields import Field
from dask_hpc.sim.model.job import (
    CONSTANT,
    Amount,
    Compute,
    Delay,
    Program,
    Repeat,
    Request,
    SchedulingPoint,
    SpeedUp,
    Stage,
    Transfer,
    amount,
)

#: Most iterations of one phase or task.
MOST_ITERATIONS = 1_000_000
#: Most stages that a phase may become when its requests depend on the iteration.
MOST_STAGES = 100_000

_MODEL_KEYS = ("on_init", "on_reconfiguration", "on_expansion", "phases")
_PHASE_KEYS = (
    "iterations", "scheduling_point", "final_scheduling_point", "evolving_request", "barrier", "tasks",
    "name",
)  # fmt: skip
_TASK_KEYS = ("type", "name", "iterations", "synchronized")
_IO_KEYS = (*_TASK_KEYS, "bytes", "pattern", "async")
_DELAY_KEYS = (*_TASK_KEYS, "delay", "pattern")
_CPU_KEYS = (*_TASK_KEYS, "flops", "computation_pattern", "bytes", "communication_pattern", "coupled")
#: Types of tasks of ElastiSim that have no counterpart here.
_NOT_SIMULATED = ("gpu", "bb_read", "bb_write")


@dataclass(frozen=True, slots=True)
class Speeds:
    """What a node of the platform does; a link without limit has None."""

    node_flops: float
    link_bytes_s: float | None = None


def read_program(model: Field, sizes: Sizes, speeds: Speeds) -> Program:
    """The program of a job whose application model is `model`, a whole file.

    Parameters
    ----------
    sizes
        The job; its notes are added to.

    Raises
    ------
    WorkloadError
        For whatever is missing, unknown or has no value, with file and field.
    """
    model.mapping(_MODEL_KEYS)
    reader = _Reader(sizes, speeds)
    stages = reader.once(model, "on_init")
    resized = reader.once(model, "on_reconfiguration")
    joining = replace(sizes, low=1, high=max(1, sizes.high - sizes.low))
    joined = _Reader(joining, speeds).once(model, "on_expansion")
    begun = False
    no_point_next = True
    for phase in model.need("phases").sequence():
        added = reader.phase(phase, no_point_first=no_point_next)
        begun = begun or bool(added)
        final = phase.get("final_scheduling_point")
        no_point_next = not begun or (final is not None and not final.boolean())
        stages += added
    if not begun:
        model.need("phases").fail("no phase has a task that is executed")
    if most_steps(stages) > MOST_STEPS:
        model.need("phases").fail(
            f"the job may have {most_steps(stages):g} steps; at most {MOST_STEPS} are simulated"
        )
    return Program(
        stages=tuple(stages), resize="points", on_reconfiguration=tuple(resized), on_expansion=tuple(joined)
    )


class _Reader:
    """Reads one model for one job."""

    def __init__(self, sizes: Sizes, speeds: Speeds) -> None:
        self.sizes, self.speeds = sizes, speeds

    def once(self, model: Field, key: str) -> list[Stage]:
        """A phase outside the iterations: a mapping with tasks, or the list of tasks (older files)."""
        phase = model.get(key)
        if phase is None:
            return []
        if isinstance(phase.value, list):
            return self._tasks(phase, 0)
        phase.mapping(_PHASE_KEYS)
        return repeated(self._tasks(phase.need("tasks"), 0), self._phase_iterations(phase))

    def phase(self, phase: Field, *, no_point_first: bool) -> list[Stage]:
        """All iterations of a phase, with its scheduling points and requests."""
        phase.mapping(_PHASE_KEYS)
        tasks = self._tasks(phase.need("tasks"), 0)
        times = self._phase_iterations(phase)
        if not times or not tasks:
            return []
        point = phase.get("scheduling_point")
        points: list[Stage] = [] if point is not None and not point.boolean() else [SchedulingPoint()]
        requests = self._requests(phase, times, len(tasks))
        if len(requests) == times > 1:
            # another request in each iteration
            stages = [*requests[0], *([] if no_point_first else points), *tasks]
            for request in requests[1:]:
                stages += [*request, *points, *tasks]
            return stages
        one = [*requests[0], *points, *tasks]
        if no_point_first and points:
            return [*requests[0], *tasks, *repeated(one, times - 1)]
        return repeated(one, times)

    def _requests(self, phase: Field, times: int, tasks: int) -> list[list[Request]]:
        """The request of every iteration; one for all when they are alike."""
        place = phase.get("evolving_request")
        if place is None:
            return [[]]
        formula = read_formula(place)
        alike = formula is None or "phase_iteration" not in formula.names
        if not alike and times * (tasks + 2) > MOST_STAGES:
            place.fail(f"depends on phase_iteration, which is not read for a phase of {times} iterations")
        low, high = self.sizes.low, self.sizes.high
        known = {"num_nodes_min": float(low), "num_nodes_max": float(high)}
        return [
            [
                Request(
                    nodes=read_amount(
                        place,
                        self.sizes,
                        {**known, "phase_iteration": float(i)},
                        clip=lambda wanted: float(min(max(round(wanted), low), high)),
                    )
                )
            ]
            for i in range(1 if alike else times)
        ]

    def _phase_iterations(self, phase: Field) -> int:
        place = phase.get("iterations")
        if place is None:
            return 1
        formula = read_formula(place)
        if formula is not None and self.sizes.size_name in formula.names:
            place.fail(f"iterations of a phase cannot depend on {self.sizes.size_name}")
        return self._count(place, amount(read_amount(place, self.sizes), self.sizes.low))

    def _count(self, place: Field, value: float) -> int:
        if value > MOST_ITERATIONS:
            place.fail(f"{value:g} iterations; at most {MOST_ITERATIONS} are simulated")
        return int(value)

    def _tasks(self, tasks: Field, depth: int) -> list[Stage]:
        if depth > DEEPEST:
            tasks.fail(f"sequences are nested more than {DEEPEST} deep")
        stages: list[Stage] = []
        for task in tasks.sequence():
            stages += self._task(task, depth)
        return stages

    def _task(self, task: Field, depth: int) -> list[Stage]:
        kind = task.need("type")
        name = kind.value.lower() if isinstance(kind.value, str) else kind.value
        if name in _NOT_SIMULATED:
            kind.fail(f"tasks of type {name!r} are not simulated; simulated are {', '.join(_TASKS)}")
        stages = _TASKS[kind.replaced(name).text(_TASKS)](self, task, depth)
        place = task.get("iterations")
        if place is None:
            return stages
        times = by_size(self.sizes, lambda _, v: float(self._count(place, v)), read_amount(place, self.sizes))
        if callable(times):
            return [Repeat(stages=tuple(stages), times=times)] if stages else []
        return repeated(stages, int(times))

    def cpu(self, task: Field, depth: int) -> list[Stage]:
        """Computing and communication, which overlap."""
        task.mapping(_CPU_KEYS)
        flops, payload = task.get("flops"), task.get("bytes")
        seconds: Amount = 0.0
        if payload is not None:
            pattern = task.need("communication_pattern")
            seconds = communication_s(payload, pattern, self.sizes, self.speeds.link_bytes_s)
            if flops is None:
                return [Delay(seconds=seconds)]
        if flops is None:
            task.fail("a cpu task needs flops or bytes")
        busiest, _, _ = divided(flops, task.need("computation_pattern"), self.sizes)
        slowest_s = by_size(self.sizes, lambda _, v: v / self.speeds.node_flops, busiest)
        return [_compute(by_size(self.sizes, lambda n, v: max(v, amount(seconds, n)), slowest_s))]

    def io(self, task: Field, depth: int) -> list[Stage]:
        """Reading from or writing to the file system."""
        task.mapping(_IO_KEYS)
        asynchronous, name = task.get("async"), task.get("name")
        if asynchronous is not None and asynchronous.boolean():
            self.sizes.note("asynchronous I/O tasks, simulated as if the application waited for them")
        _, total, participants = divided(task.need("bytes"), task.need("pattern"), self.sizes)
        writes = task["type"].value.lower() == "pfs_write"
        label = "" if name is None else name.text()
        return [
            Transfer(
                size_bytes=total,
                direction="write" if writes else "read",
                participants=participants,
                purpose="checkpoint" if writes and "checkpoint" in label.lower() else label,
            )
        ]

    def delay(self, task: Field, depth: int) -> list[Stage]:
        """Time in which the nodes are held."""
        task.mapping(_DELAY_KEYS)
        pattern = task.get("pattern") or task["pattern"].replaced("uniform")
        longest, _, _ = divided(task.need("delay"), pattern, self.sizes)
        return [Delay(seconds=longest)]

    def sequence(self, task: Field, depth: int) -> list[Stage]:
        """Tasks one after the other."""
        task.mapping((*_TASK_KEYS, "tasks"))
        return self._tasks(task.need("tasks"), depth + 1)


def _compute(seconds: Amount) -> Compute:
    """A stage that takes `seconds`, as one unit of work where a speed can be given."""
    if not isinstance(seconds, BySize) or min(seconds.values) <= 0:
        return Compute(work=seconds, speed=CONSTANT)
    rows = [(nodes, 1.0 / value) for nodes, value in enumerate(seconds.values, start=seconds.low)]
    if seconds.low > 1:
        # what the job would do on one node nobody says: no loss up to its smallest size
        rows.insert(0, (1, rows[0][1] / seconds.low))
    return Compute(work=1.0, speed=SpeedUp("table", table=tuple(rows)))


_TASKS: Mapping[str, Callable[[_Reader, Field, int], list[Stage]]] = {
    "cpu": _Reader.cpu,
    "pfs_read": _Reader.io,
    "pfs_write": _Reader.io,
    "idle": _Reader.delay,
    "busy_wait": _Reader.delay,
    "sequence": _Reader.sequence,
}
