"""A coupled run: a simulation that hands over its steps to analyses, one of which gets dearer on the way."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from dask_hpc.sim.generators.generator import generator
from dask_hpc.sim.model.coupled import Coupled, Drift, Reader
from dask_hpc.sim.model.job import Job, Program
from dask_hpc.sim.model.machine import Machine
from dask_hpc.sim.model.workload import Workload
from dask_hpc_policies.coupling.contract import WHEN_FULL
from dask_hpc_policies.params import Choice, Duration, Float, Int, Words
from dask_hpc_policies.placement.application import MODES, Analysis, Application, Mode, Platform, Simulation
from dask_hpc_policies.placement.many import best
from dask_hpc_policies.placement.view import Split

#: Work of a step on one core, and bytes, of the simulation and of analyses: name, work, peak, input.
SIMULATION = (300.0, 32e9)
ANALYSES = (
    ("spectrum", 36.0, 1.0e9, 6.0e9),
    ("vortices", 30.0, 2.0e9, 6.0e9),
    ("isosurface", 20.0, 3.0e9, 2.0e9),
    ("statistics", 8.0, 0.5e9, 8.0e9),
    ("compression", 12.0, 1.5e9, 1.0e9),
    ("tracers", 25.0, 0.8e9, 0.4e9),
)
NAMES = tuple([name for name, *_ in ANALYSES])
#: Memory of a node.
NODE_BYTES = 8e9
_YEAR_S = 86400.0 * 366


@generator(
    "coupled",
    Int("steps", 40, lo=1, hi=100_000, unit="steps", label="Steps", help="steps of the simulation"),
    Int("nodes", 16, lo=1, hi=10_000, unit="nodes", label="Nodes", help="nodes of the run"),
    Int("start_nodes", None, lo=2, hi=10_000, unit="nodes", none_ok=True, label="Nodes at first",
        help="its job begins with so many and may have all: the simulation's then; none: it has all"),
    Int("cores", 4, lo=1, hi=1024, label="Cores", help="cores of a node"),
    Float("bandwidth_bytes_s", 1e9, lo=1.0, hi=1e15, label="Bandwidth",
          help="bytes that reach a staging node in a second"),
    Choice("mode", MODES[0], MODES, label="Mode",
           help="analyses in situ run beside the simulation, or while it pauses"),
    Words("in_situ", NAMES, NAMES, none_ok=True, label="In situ",
          help="analyses in situ unless a policy places them; none: all are in transit"),
    Int("drift_step", None, lo=0, hi=100_000, none_ok=True, label="Step of the drift",
        help="from this step on one analysis is dearer; none: it never is"),
    Choice("drift_analysis", "spectrum", NAMES, label="Analysis that drifts",
           help="the analysis that gets dearer"),
    Float("drift_factor", 4.0, lo=0.0, hi=1e6, label="Factor of the drift",
          help="how many times its work is what it was"),
    Float("noise", 0.0, lo=0.0, hi=1.0, label="Noise",
          help="standard deviation of the logarithm of each time"),
    Int("queue", 2, lo=1, hi=10_000, unit="steps", label="Queue", help="steps in flight"),
    Choice("when_full", WHEN_FULL[0], WHEN_FULL, label="When full",
           help="what becomes of a step for which the queue has no room"),
    Duration("reader_s", None, lo=0.0, hi=_YEAR_S, none_ok=True, label="Reader",
             help="time that who reads takes for the values of a step; none: nobody reads"),
    Int("stall_step", None, lo=0, hi=100_000, none_ok=True, label="Step of the stall",
        help="who reads stops once before the values of this step"),
    Duration("stall_s", 3600.0, lo=0.0, hi=_YEAR_S, label="Stall", help="for so long"),
)  # fmt: skip
def coupled(
    *,
    seed: int,
    steps: int,
    nodes: int,
    start_nodes: int | None,
    cores: int,
    bandwidth_bytes_s: float,
    mode: Mode,
    in_situ: tuple[str, ...] | None,
    drift_step: int | None,
    drift_analysis: str,
    drift_factor: float,
    noise: float,
    queue: int,
    when_full: str,
    reader_s: float | None,
    stall_step: int | None,
    stall_s: float,
) -> Workload:
    """A simulation with six analyses, in situ or in transit; one of them may get dearer on the way.

    The model is that of Honoré (2020, chapters 3 and 4); times and sizes are ours. A split has the nodes and
    helper cores with which its step is shortest at first.

    Raises
    ------
    ValueError
        For more nodes at first than there are.
    """
    first = nodes if start_nodes is None else start_nodes
    if first > nodes:
        raise ValueError(f"start_nodes is {first}; allowed: 2 to {nodes}, all nodes of the run (nodes)")
    application = Application(
        platform=Platform(
            nodes=first, cores=cores, memory_bytes=NODE_BYTES, bandwidth_bytes_s=bandwidth_bytes_s
        ),
        simulation=Simulation(one_core_s=SIMULATION[0], memory_bytes=SIMULATION[1]),
        analyses=tuple(
            Analysis(name=name, one_core_s=work_s, memory_bytes=peak, input_bytes=read)
            for name, work_s, peak, read in ANALYSES
        ),
    )
    application.check(mode)
    drifts = (
        () if drift_step is None else (Drift(step=drift_step, analysis=drift_analysis, factor=drift_factor),)
    )
    reader = None
    if reader_s is not None or stall_step is not None:
        stalls = () if stall_step is None else ((stall_step, stall_s),)
        reader = Reader(seconds=reader_s or 0.0, stalls=stalls)
    split = split_of(application, in_situ or (), mode)
    if start_nodes is not None:
        platform = replace(application.platform, simulation_nodes=split.nodes)
        application = replace(application, platform=platform)
    run = Coupled(
        flow="fields",
        steps=steps,
        application=application,
        split=split,
        mode=mode,
        queue=queue,
        when_full=when_full,
        drifts=drifts,
        noise=noise,
        reader=reader,
    )
    job = Job(
        id="simulation",
        name="simulation",
        submit_s=0.0,
        kind="rigid" if start_nodes is None else "malleable",
        start_nodes=first,
        min_nodes=first,
        max_nodes=nodes,
        data_bytes=0.0 if start_nodes is None else SIMULATION[1],
        program=Program(stages=(run,)),
    )
    machine = Machine(nodes=nodes, link_bytes_s=bandwidth_bytes_s)
    return Workload(name="", jobs=(job,), machine=machine, notes=("times and sizes of all parts are ours",))


def split_of(application: Application, in_situ: Collection[str], mode: Mode) -> Split:
    """The best whole nodes and helper cores with these analyses in situ.

    Raises
    ------
    ValueError
        When there are none that fit.
    """
    inside = [one.name in in_situ for one in application.analyses]
    found = best(application, np.array([inside], dtype=bool), mode)
    if not np.isfinite(found.step_s[0]):
        raise ValueError(f"in_situ is {', '.join(in_situ) or 'none'!r}, which does not fit; take more nodes")
    return Split(
        in_situ=tuple([one.name for one, here in zip(application.analyses, inside, strict=True) if here]),
        in_transit=tuple(
            [one.name for one, here in zip(application.analyses, inside, strict=True) if not here]
        ),
        nodes=int(found.nodes[0]),
        helper_cores=int(found.helper_cores[0]),
    )
