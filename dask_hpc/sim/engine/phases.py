"""How long the parts of a coupled run take for one step, and what is measured of that.

Rules of the file: a function of what the run is, its seed and the step's split; nothing is kept. The models
are those of the planner (Honoré 2020, sections 3.2 and 3.3), with noise.
"""

from __future__ import annotations

import random

from dask_hpc.sim.model.coupled import Coupled
from dask_hpc_policies.placement.learner import Sample, scaled
from dask_hpc_policies.placement.times import staged_s
from dask_hpc_policies.placement.view import Split

#: Lanes whose times are those of the phases of a step, of which the last two are those of analyses; and the
#: one of who reads.
SIMULATION = "simulation"
ANALYSING = ("in_situ", "in_transit")
PHASES = (SIMULATION, *ANALYSING)
READER = "reader"
#: What a step of the simulation is called beside analyses, none of which has such a name.
STEP = ""
#: What is measured, by name.
Samples = tuple[tuple[str, Sample], ...]


def taking(spec: Coupled, seed: int, lane: str, step: int, split: Split) -> tuple[float, Samples]:
    """Seconds that a lane takes for a step, and what is measured of it."""
    if lane == READER:
        assert spec.reader is not None
        return spec.reader.seconds + sum([s for number, s in spec.reader.stalls if number == step]), ()
    simulation, platform = spec.application.simulation, spec.application.platform
    synchronous, staging = spec.mode == "synchronous", split.staging(platform.nodes)
    if lane == SIMULATION:
        cores = split.nodes * (platform.cores if synchronous else platform.cores - split.helper_cores)
        work_s = simulation.one_core_s * _noise(spec, seed, SIMULATION, step)
        seconds = scaled(work_s, simulation.serial_fraction, cores)
        sample = Sample(core_s=work_s, wall_s=seconds, cores=cores, memory_bytes=simulation.memory_bytes)
        return seconds, ((STEP, sample),)
    inside = lane == "in_situ"
    cores = staging * platform.cores
    if inside:
        cores = split.nodes * (platform.cores if synchronous else split.helper_cores)
    serial_s, parallel_s = 0.0, 0.0
    sent_s, samples = list[float](), list[tuple[str, Sample]]()
    for one in spec.application.analyses:
        if (one.name in split.in_situ) is not inside:
            continue
        work_s = spec.work_s(one.name, one.one_core_s, step) * _noise(spec, seed, one.name, step)
        seconds = scaled(work_s, one.serial_fraction, cores)
        alone_s = work_s * one.serial_fraction
        serial_s, parallel_s = serial_s + alone_s, parallel_s + seconds - alone_s
        if not inside:
            sent_s.append(one.sent_bytes / (platform.bandwidth_bytes_s * staging))
        samples.append(
            (
                one.name,
                Sample(
                    core_s=work_s,
                    wall_s=seconds,
                    cores=cores,
                    memory_bytes=one.memory_bytes,
                    input_bytes=one.sent_bytes,
                ),
            )
        )
    return serial_s + staged_s(parallel_s, sent_s, platform.pipelined), tuple(samples)


def _noise(spec: Coupled, seed: int, what: str, step: int) -> float:
    if not spec.noise:
        return 1.0
    # by name, so that it does not depend on the order in which things happen
    return random.Random(f"{seed} {spec.flow} {step} {what}").lognormvariate(0.0, spec.noise)
