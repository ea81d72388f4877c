"""One run from start to end: workload, policy and machine in; metrics and tables out.

Rules of the file: time is measured here for `--profile`; nothing in the result of a run but those seconds
depends on it. (A run whose options charge the decision latency as measured does, and its notes say so.)
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dask_hpc.clock import stopwatch_s
from dask_hpc.errors import WorkloadError
from dask_hpc.report.simulated import simulated_spans
from dask_hpc.report.spans import Spans, power_spans
from dask_hpc.sim.engine.asking import Answer, Asker
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.engine.recording import recorded
from dask_hpc.sim.engine.supply import Moves
from dask_hpc.sim.engine.table import Counts, Refused, Row
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.corridor import CorridorRun
from dask_hpc.sim.model.job import Stage, Transfer
from dask_hpc.sim.model.machine import Machine, Options
from dask_hpc.sim.model.power import Energy
from dask_hpc.sim.model.workload import Wide, Workload, fitted, machine_for
from dask_hpc.trace.files import write_trace
from dask_hpc_policies import codec, registry
from dask_hpc_policies.metrics import JobRun, summarize
from dask_hpc_policies.model import Trigger
from dask_hpc_policies.params import shown
from dask_hpc_policies.power.watts import says_watts
from dask_hpc_policies.protocol import Policy

if TYPE_CHECKING:
    from dask_hpc.report.picture import TimelinePicture

#: Version of the layout of `Result.to_json`. Keys are only ever added.
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run came to."""

    workload: Workload
    machine: Machine
    #: `registry.spec_of` the policy.
    policy: dict[str, Any]
    options: Options
    #: One record for each job, in order of submission, and the rows they were made of.
    runs: tuple[JobRun, ...]
    rows: tuple[Row, ...]
    counts: Counts
    #: The first refusals; `counts.refused` has their number.
    refusals: tuple[Refused, ...]
    #: Node, key of the job, from and to, when `Options.node_ids` was set.
    node_log: tuple[tuple[int, int, float, float], ...] = ()
    #: Time, bytes per second read and written, when `Options.file_system_series` was set.
    file_system: tuple[tuple[float, float, float], ...] = ()
    #: Time of the picture that the run went on from (`what_if`); None: it began with an empty machine.
    from_s: float | None = None
    #: Nodes that were there over time, as steps of (time, nodes), how many came and went, and the first
    #: actions of which only a part could be done, when the machine has a pool.
    pool: tuple[tuple[float, int], ...] = ()
    moves: Moves | None = None
    reductions: tuple[Refused, ...] = ()
    #: What the nodes used, when the machine says what they draw.
    energy: Energy | None = None
    #: How the run kept its corridor, when the machine has one.
    corridor: CorridorRun | None = None
    #: What became of commits, transfers beside computing and failures, by the names of metrics, where jobs or
    #: the machine say what they are.
    resilience: Mapping[str, Any] = field(default_factory=dict)
    #: What became of coupled runs, in the order in which they ended; see `engine.pipeline.Pipeline.report`.
    flows: tuple[Mapping[str, Any], ...] = ()
    #: Seconds that the engine and, of these, the policy took.
    run_s: float = 0.0
    policy_s: float = 0.0

    def metrics(self, jobs: bool = True) -> dict[str, Any]:
        """The metrics of the run (`metrics.summarize`), and those of the simulator."""
        found = summarize(self.runs, self.pool or self.machine.nodes, jobs=jobs)
        rows = self.rows
        checkpoints = sum(row.checkpoints for row in rows)
        found["restarts"] = sum(row.restarts for row in rows)
        # rounded once: `sum` rounds otherwise from Python 3.12 on
        found["resize_s"] = math.fsum(row.resize_s for row in rows)
        found["io_s"] = math.fsum(row.io_s for row in rows)
        if checkpoints:
            found["mean_checkpoint_s"] = math.fsum(row.checkpoint_s for row in rows) / checkpoints
        if self.energy is not None:
            found["energy_j"] = self.energy.energy_j
            for used in (self.energy.by_state_j, self.energy.of_busy_j):
                found |= {f"energy_{state}_j": energy_j for state, energy_j in used.items()}
        if self.corridor is not None:
            names = ("violation_ws", "outside_s", "avoidable_s", "departures")
            found |= {f"corridor_{name}": getattr(self.corridor, name) for name in names}
        if self.moves is not None:
            found |= {f"nodes_{name}": number for name, number in dataclasses.asdict(self.moves).items()}
        return {**found, **self.resilience}

    def spans(self) -> Spans:
        """Who had which nodes from when to when; of a run that goes on from a live cluster, predicted."""
        ids = [job.id for job in self.workload.jobs]
        log = [(node, ids[key], from_s, to_s) for node, key, from_s, to_s in self.node_log]
        found = simulated_spans(self.runs, self.machine.nodes, log, self.from_s)
        return dataclasses.replace(found, power=power_spans(self._power_rows(), found.end_s))

    def _power_rows(self) -> list[tuple[float, float | None, float | None, float | None]]:
        """Time, watts and both bounds, whenever one of them changes."""
        if self.corridor is None or self.machine.corridor is None:
            return []
        bounds, drawn = self.machine.corridor, dict(self.corridor.draw)
        watts: float | None = None
        rows = []
        for t_s in sorted({*drawn, *(step[0] for step in bounds.steps)}):
            watts = drawn.get(t_s, watts)
            step = bounds.at(t_s)
            rows.append((t_s, watts, *((None, None) if step is None else step[1:])))
        return rows

    def __repr__(self) -> str:
        name, policy = self.workload.name, self.policy.get("policy")
        return f"<Result {name!r} policy={policy!r} jobs={len(self.runs)} nodes={self.machine.nodes}>"

    def timeline(self) -> TimelinePicture:
        """A picture of nodes and jobs over time, for a notebook or a file (``.save("run.png")``)."""
        from dask_hpc.report.picture import TimelinePicture

        return TimelinePicture(self.spans(), f"{self.workload.name}, {self.policy['policy']}")

    def to_json(self, jobs: bool = True) -> dict[str, Any]:
        """Everything that tells what was run and what came out, as plain JSON data."""
        from dask_hpc._version import __version__

        bounds = self.machine.corridor
        return {
            "schema": SCHEMA,
            "kind": "simulation",
            "dask_hpc": __version__,
            "workload": {
                "name": self.workload.name,
                "source": self.workload.source,
                "jobs": len(self.workload.jobs),
                "seed": self.workload.seed,
                "notes": list(self.workload.notes),
            },
            **({} if self.from_s is None else {"what_if": {"from_s": self.from_s}}),
            "machine": codec.encode(self.machine),
            "policy": codec.encode(self.policy),
            "options": codec.encode(self.options),
            "counts": dataclasses.asdict(self.counts),
            "refusals": [codec.encode(refused) for refused in self.refusals],
            **self._pool_data(),
            **({} if self.energy is None else {"energy": codec.encode(self.energy)}),
            **({} if bounds is None else {"corridor": [list(step) for step in bounds.steps]}),
            **({"flows": [dict(flow) for flow in self.flows]} if self.flows else {}),
            **self.metrics(jobs),
        }

    def _pool_data(self) -> dict[str, Any]:
        if self.moves is None:
            return {}
        reduced = [codec.encode(one) for one in self.reductions]
        return {"pool": [[t_s, nodes] for t_s, nodes in self.pool], "reductions": reduced}


def simulate(
    workload: Workload,
    policy: Any,
    *,
    nodes: int | None = None,
    machine: Machine | None = None,
    options: Options | None = None,
    wide: Wide | None = None,
    profile: bool = False,
    progress: Callable[[int], None] | None = None,
    trace: str | os.PathLike[str] | None = None,
) -> Result:
    """Run `workload` under `policy`.

    Parameters
    ----------
    workload
        What `load` gives.
    policy
        Anything that `dask_hpc_policies.registry.create` takes.
    nodes
        Size of the machine; None: that of `machine`.
    machine
        None: the one the workload was made for.
    wide
        What becomes of jobs that need more nodes than there are (`dask_hpc.sim.model.workload.fitted`); None:
        as the workload says, which is refused unless it says otherwise.
    profile
        Measure the time in the policy as well.
    progress
        Called now and then with the number of jobs that have ended.
    trace
        File for the run's trace, compressed when its name ends in ``.gz``; written whole or not at all.

    Raises
    ------
    WorkloadError
        When a job cannot run, the size of the machine is not known, or `trace` cannot be written.
    SimulationError
        When what must be conserved was not, or the policy goes round in circles.
    TypeError, ValueError
        When `workload` is no workload; when `policy` is no policy.
    """
    if not isinstance(workload, Workload):
        raise TypeError(f"workload is {shown(workload)}; needed: a workload, as sim.load('builtin:esp-10')")
    made: Policy = registry.create(policy)
    machine = machine_for(workload, nodes, machine)
    chosen = options or Options()
    if trace is not None:
        chosen = replace(chosen, snapshots=True, node_ids=True)
    fit = fitted(workload, machine.nodes, wide)
    return finished(Engine(fit, made, machine, chosen), profile=profile, progress=progress, trace=trace)


def finished(
    engine: Engine,
    *,
    profile: bool = False,
    progress: Callable[[int], None] | None = None,
    trace: str | os.PathLike[str] | None = None,
) -> Result:
    """Run `engine` to its end; see `simulate`."""
    timed = _Timed(engine.enactor.asker)
    if profile:
        engine.enactor.asker = timed
    began_s = stopwatch_s()
    if trace is None:
        engine.run(progress)
    else:
        try:
            write_trace(trace, recorded(engine, progress))
        except OSError as error:
            raise WorkloadError(f"{trace}: cannot be written: {error.strerror or error}") from None
    run_s = stopwatch_s() - began_s
    world = engine.world
    return Result(
        workload=_noted(world),
        machine=world.machine,
        policy=registry.spec_of(engine.policy),
        options=world.options,
        runs=tuple(_from(world.from_s, run) for run in world.table.runs(world.workload.jobs)),
        rows=tuple(sorted(world.table.rows, key=lambda row: row.key)),
        counts=world.counts,
        refusals=tuple(world.refusals),
        node_log=tuple(sorted(engine.nodes.log)),
        file_system=tuple(world.file_system_series),
        from_s=world.from_s,
        pool=tuple(engine.supply.steps),
        moves=None if world.machine.pool is None else engine.supply.moves,
        reductions=tuple(world.reductions),
        energy=engine.energy,
        corridor=None if engine.outside is None else engine.outside.close(),
        resilience=_resilience(engine),
        flows=tuple(world.flow_reports),
        run_s=run_s,
        policy_s=timed.seconds,
    )


def _resilience(engine: Engine) -> dict[str, Any]:
    """What became of commits, transfers and failures; each only where it is said what they are."""
    found: dict[str, Any] = {}
    losses, moved, jobs = engine.failures.losses, engine.progress.transfers.moved, engine.world.workload.jobs
    if losses is not None:
        found |= {f"losses_{what}": number for what, number in losses.by_class().items()}
        found["exposure_node_s"] = losses.exposure_node_s
    commits = any(job.checkpoints is not None for job in jobs)
    if losses is not None or commits:
        found["lost_node_s"] = engine.progress.lost_node_s
    if commits:
        found |= {
            "commits": engine.enactor.commits.commits,
            "levels_left_out": engine.enactor.commits.left_out,
        }
    if commits or moved.begun:
        found |= {
            name if name.endswith("_bytes") else f"transfers_{name}": number
            for name, number in dataclasses.asdict(moved).items()
        }
    return found


def _noted(world: World) -> Workload:
    """The workload, with what a reader of the result should know."""
    workload, machine = world.workload, world.machine
    notes = []
    if world.options.decision_s == "measured":
        notes.append(
            f"decision latency measured on this computer ({world.counts.policy_calls} calls of the policy "
            f"took {world.total_latency_s:.3g} s, the longest {world.longest_latency_s:.3g} s): "
            "another run may differ"
        )
    if left := sum(row.end_s is None for row in world.table.rows):
        notes.append(
            f"{left} of {len(workload.jobs)} jobs had not ended when nothing more could happen: means leave "
            "them out, and compare only where the same jobs have ended"
        )
    power = machine.power
    if power is not None and power.busy_w < power.idle_w and not all(map(says_watts, workload.jobs)):
        notes.append(
            f"busy nodes draw {power.busy_w:g} W (busy_w), less than idle ones ({power.idle_w:g} W), unless "
            "their jobs say otherwise"
        )
    free = machine.file_system_bytes_s is None and machine.link_bytes_s is None
    if free and any(job.program and _transfers(job.program.stages) for job in workload.jobs):
        notes.append(
            "reads and writes take no time: the machine has no bandwidth (link_bytes_s, file_system_bytes_s)"
        )
    return replace(workload, notes=(*workload.notes, *notes)) if notes else workload


def _transfers(stages: Sequence[Stage]) -> bool:
    return any(isinstance(one, Transfer) or _transfers(getattr(one, "stages", ())) for one in stages)


def _from(from_s: float | None, run: JobRun) -> JobRun:
    """The run as seen from `from_s` on: what was submitted before was there then."""
    return run if from_s is None or run.submit_s >= from_s else replace(run, submit_s=from_s)


class _Timed:
    """An asker whose answers are timed."""

    def __init__(self, asker: Asker) -> None:
        self.submitted = asker.submitted
        self.finished = asker.finished
        self.resized = asker.resized
        self.at_point = asker.at_point
        self.seconds = 0.0
        self._ask = asker.ask

    def ask(self, trigger: Trigger, about: int | None) -> Answer:
        """See `Asker`."""
        began_s = stopwatch_s()
        try:
            return self._ask(trigger, about)
        finally:
            self.seconds += stopwatch_s() - began_s
