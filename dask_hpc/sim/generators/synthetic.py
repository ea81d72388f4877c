"""The synthetic application: an array in each process, and a checkpoint of it every so often.

Source: John (2024), section 8.2.3.1: listing 8.1 has the keys and values, listing 8.2 the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from dask_hpc.sim.formats.amounts import BySize
from dask_hpc.sim.generators.generator import generator
from dask_hpc.sim.model.checkpoints import Checkpoints, Level
from dask_hpc.sim.model.job import Amount, Delay, Job, Program, Repeat, SchedulingPoint, Stage, Transfer
from dask_hpc.sim.model.machine import Failures, Machine, NodeFailure
from dask_hpc.sim.model.workload import Workload
from dask_hpc_policies.params import Bool, Choice, Duration, Int

#: Bytes of an element.
TYPES = {"char": 1, "int": 4, "float": 4, "double": 8}
#: Nodes of the machine, and processes of a node (sections 8.1 and 9.3).
NODES = 16
PROCESSES = 48
#: Bytes per second of a node's link: 100 Gbit/s.
LINK_BYTES_S = 100e9 / 8
#: Ours: bytes per second of the file system, and of a node that copies into the buffer it is read from.
FILE_SYSTEM_BYTES_S = 50e9
COPY_BYTES_S = 10e9
#: Seconds that telling the agents takes (ours; a whole commit of 8 MB took 0.8 to 1 ms, section 9.3.1), and
#: asking whether there are others (0.002 s when there are none, section 9.4.1.1).
MESSAGE_S = 0.0005
PROBE_S = 0.002


@generator(
    "synthetic",
    Int("cp_size", 100_000, lo=1, hi=10_000_000_000, label="Size",
        help="elements that each of the 48 processes of a node has, and saves"),
    Choice("cp_type", "float", tuple(TYPES), label="Type", help="what an element is: 1, 4, 4 or 8 bytes"),
    Duration("cp_interval", 10.0, lo=0.001, hi=1e7, label="Interval", help="time between two checkpoints"),
    Int("cp_count", 1000, lo=1, hi=100_000, label="Steps", help="how often the array is changed"),
    Bool("cp_mpiio", True, label="MPI-IO", help="every checkpoint is written to the file system meanwhile"),
    Bool("enable_ichk", False, label="Agents", help="every checkpoint is moved to other nodes beside steps"),
    Duration("fault_inject", 10.0, lo=0.001, hi=1e9, none_ok=True, label="Fault",
             help="when the application is killed, once"),
    Duration("probe_interval", 5.0, lo=0.001, hi=1e7, label="Probes",
             help="time between two questions for other agents; without agents there are none"),
    Bool("is_invasive", True, label="Invasive", help="it may be resized, after each checkpoint"),
    Duration("step_s", 1.0, lo=0.001, hi=1e6, label="Step", help="time of a step"),
    Int("nodes", 4, lo=1, hi=NODES, unit="nodes", label="Nodes", help="nodes that it starts on"),
)  # fmt: skip
def synthetic(
    *,
    seed: int,
    cp_size: int,
    cp_type: str,
    cp_interval: float,
    cp_count: int,
    cp_mpiio: bool,
    enable_ichk: bool,
    fault_inject: float | None,
    probe_interval: float,
    is_invasive: bool,
    step_s: float,
    nodes: int,
) -> Workload:
    """One application that saves an array every so often: to the file system, to other nodes, or both.

    Published: the keys up to `is_invasive` with these values, and the order within a step: the array is
    changed, it is saved when the interval has passed, the fault, the probe. 16 nodes of 48 processes with
    links of 100 Gbit/s.

    Ours: the time of a step (it is the same on any size, as every process has its own array), the bandwidth
    of the file system and of copies, the time of a message. A process sees that an interval has passed at
    the end of a step, so that it is a whole number of steps. A checkpoint to other nodes holds the
    application up for a message and a copy, and is moved while it goes on; one that has not been moved when
    the next is due is not waited for, as in the source (equation 6.3): that one is left out. It survives the
    failure of its nodes and is read back over their links. The fault strikes once, not each time the
    application has run for so long: with the values of the listing it would never end. An invasive
    application may have any size and is resized after checkpoints, one a scheduling point.
    """
    process_bytes = cp_size * TYPES[cp_type]
    node_bytes = float(PROCESSES * process_bytes)
    each = _steps(cp_interval, step_s)
    probe = _steps(probe_interval, step_s) if enable_ichk else 0
    low, high = (1, NODES) if is_invasive else (nodes, nodes)
    save: list[Stage] = [SchedulingPoint()] if enable_ichk or is_invasive else []
    if cp_mpiio:
        size_bytes: Amount = BySize(low, tuple(node_bytes * n for n in range(low, high + 1)))
        save.append(Transfer(size_bytes=size_bytes, purpose="checkpoint"))
    level = Level(
        survives="domain",
        blocking_s=MESSAGE_S + node_bytes / COPY_BYTES_S,
        node_bytes=node_bytes,
        path="link",
        restart_s=MESSAGE_S + node_bytes / LINK_BYTES_S,
    )
    job = Job(
        id="synthetic",
        name="synthetic",
        submit_s=0.0,
        kind="malleable" if is_invasive else "rigid",
        start_nodes=nodes,
        min_nodes=low,
        max_nodes=high,
        data_bytes=node_bytes * nodes,
        program=Program(stages=tuple(_loop(cp_count, step_s, each, probe, save)), resize="points"),
        checkpoints=Checkpoints(levels=(level,)) if enable_ichk else None,
    )
    fault = () if fault_inject is None else (_fault(fault_inject),)
    machine = Machine(
        nodes=NODES,
        link_bytes_s=LINK_BYTES_S,
        network_bytes_s=LINK_BYTES_S,
        file_system_bytes_s=FILE_SYSTEM_BYTES_S,
        failures=Failures(listed=fault),
    )
    notes = (f"a step of {step_s:g} s and a file system of {FILE_SYSTEM_BYTES_S / 1e9:g} GB/s are ours",)
    return Workload(name="", jobs=(job,), machine=machine, notes=notes)


def _steps(interval_s: float, step_s: float) -> int:
    """Steps after which an interval has passed."""
    return max(1, ceil(interval_s / step_s - 1e-9))


def _fault(at_s: float) -> NodeFailure:
    return NodeFailure(t_s=at_s, node=0, downtime_s=0.0, severity="process")


def _loop(count: int, step_s: float, each: int, probe: int, save: list[Stage]) -> Iterator[Stage]:
    """So many steps, what saves after every `each` of them, and a probe after every `probe` (0: never)."""
    done = 0
    while done < count:
        ahead = [every - done % every for every in (each, probe) if every]
        steps = min(count - done, *ahead)
        yield Repeat(stages=(Delay(seconds=step_s),), times=float(steps))
        done += steps
        if done % each == 0:
            yield from save
        if probe and done % probe == 0:
            yield Delay(seconds=PROBE_S)
