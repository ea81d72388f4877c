"""Applications to be placed, and brute force, which counts cores and bytes without the planner's formulas."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from dask_hpc_policies.placement.application import (
    ROUNDING_ERROR,
    WHERE,
    Analysis,
    Application,
    Mode,
    Platform,
    Simulation,
)

#: What the study takes as memory of all nodes together, in units of the simulation's.
STUDY_MEMORY = 1.33
STUDY_BANDWIDTHS = (0.1, 0.25, 0.5, 1.0)
STUDY_LOADS = (1.05, 1.15, 1.25, 1.33, 1.5, 1.75, 2.0)
STUDY_SAMPLES = 130


def study(chance: np.random.Generator, load: float, bandwidth: float, analyses: int = 8) -> Application:
    """An application of Honoré (2020, section 5.1).

    Parameters
    ----------
    load
        Memory of the simulation and all analyses, in units of the simulation's.
    bandwidth
        Of a node, as a share of its memory in a second.
    """
    one_core_s = 4000.0
    peaks = chance.uniform(size=analyses)
    peaks *= (load - 1) / peaks.sum()
    seconds = chance.uniform(0.01, 0.10, size=analyses) * one_core_s
    node_bytes = STUDY_MEMORY / 50
    return Application(
        platform=Platform(
            nodes=50, cores=8, memory_bytes=node_bytes, bandwidth_bytes_s=bandwidth * node_bytes
        ),
        simulation=Simulation(one_core_s=one_core_s, memory_bytes=1.0),
        analyses=tuple(
            Analysis(name=f"a{i}", one_core_s=float(s), memory_bytes=float(p))
            for i, (s, p) in enumerate(zip(seconds, peaks, strict=True))
        ),
    )


def any_application(chance: random.Random, most: int = 6, nodes: int = 12) -> Application:
    """A small one of any kind; it may have room for nothing."""
    of, cores = chance.randint(1, nodes), chance.choice([1, 2, 3, 4, 4, 6, 8])
    fixed = chance.choice([*[None] * 6, chance.randrange(cores)])
    return Application(
        platform=Platform(
            nodes=of,
            cores=cores,
            memory_bytes=1.0,
            bandwidth_bytes_s=10 ** chance.uniform(-3, 1),
            staging_memory_bytes=chance.choice([*[None] * 6, 0.5, 2.0]),
            max_staging_nodes=chance.choice([*[None] * 6, 1, 3]),
            simulation_nodes=chance.choice([*[None] * 6, chance.randint(1, of)]),
            helper_cores=fixed,
            least_helper_cores=chance.choice([0, 0, 0, chance.randrange(cores)]) if fixed is None else 0,
            pipelined=chance.choice([False, False, True]),
        ),
        simulation=Simulation(
            one_core_s=100.0,
            memory_bytes=chance.uniform(0.1, 0.8) * of,
            serial_fraction=chance.choice([0.0, 0.0, 0.01, 0.3, 1.0]),
        ),
        analyses=tuple(
            Analysis(
                name=f"a{i}",
                one_core_s=chance.choice([0.0, *[chance.uniform(1, 80)] * 5]),
                memory_bytes=chance.choice([0.0, *[chance.uniform(0, 0.15) * of] * 5]),
                where=chance.choice((*WHERE, *["auto"] * 10)),  # type: ignore[arg-type]
                input_bytes=chance.choice([*[None] * 4, chance.uniform(0, 0.3) * of]),
                serial_fraction=chance.choice([*[0.0] * 6, 0.02, 0.3, 1.0]),
            )
            for i in range(chance.randint(0, most))
        ),
    )


def applications() -> st.SearchStrategy[Application]:
    """Drawn by hypothesis: `any_application`."""
    return st.randoms(use_true_random=False).map(any_application)


# ------------------------------------------------------------------ brute force


def step_s(app: Application, split: Sequence[bool], nodes: int, helpers: int, mode: Mode) -> float:
    """Time of a step, by the definitions of section 3.3; inf where something has no room."""
    pairs = list(zip(app.analyses, split, strict=True))
    inside = [one for one, here in pairs if here]
    outside = [one for one, here in pairs if not here]
    platform, simulation = app.platform, app.simulation
    staging = platform.nodes - nodes
    used_bytes = (simulation.memory_bytes + sum(one.memory_bytes for one in inside)) * (1 - ROUNDING_ERROR)
    if used_bytes > nodes * platform.memory_bytes:
        return math.inf
    sent = sum(one.memory_bytes for one in outside) * (1 - ROUNDING_ERROR)
    if platform.simulation_nodes not in (None, nodes):
        return math.inf
    if mode == "asynchronous" and platform.helper_cores not in (None, helpers):
        return math.inf
    if outside and not 1 <= staging <= (platform.max_staging_nodes or platform.nodes):
        return math.inf
    if outside and platform.staging_memory_bytes and sent > staging * platform.staging_memory_bytes:
        return math.inf
    if mode == "asynchronous" and helpers < platform.least_helper_cores:
        return math.inf
    if inside and mode == "asynchronous" and not 1 <= helpers < platform.cores:
        return math.inf
    on = platform.cores if mode == "synchronous" else platform.cores - helpers
    serial = simulation.serial_fraction
    first = simulation.one_core_s * (serial + (1 - serial) / (nodes * on))
    second = sum(
        taking_s(one, nodes * (platform.cores if mode == "synchronous" else helpers)) for one in inside
    )
    serial_s = sum(one.one_core_s * one.serial_fraction for one in outside)
    computing_s = sum(taking_s(one, staging * platform.cores) for one in outside) - serial_s
    sent_s = [
        (one.memory_bytes if one.input_bytes is None else one.input_bytes)
        / (staging * platform.bandwidth_bytes_s)
        for one in outside
    ]
    third = serial_s + computing_s + sum(sent_s)
    if platform.pipelined:
        third = serial_s + max([computing_s, *sent_s])
    return max(first + second, third) if mode == "synchronous" else max(first, second, third)


def taking_s(one: Analysis, cores: int) -> float:
    """How long an analysis takes on so many cores (Amdahl 1967)."""
    return one.one_core_s * (one.serial_fraction + (1 - one.serial_fraction) / cores)


def helper_cores(app: Application, mode: Mode, in_situ: bool) -> Sequence[int]:
    """Helper cores that may be; those that are fixed are there whether anything runs on them or not."""
    if mode == "asynchronous" and app.platform.helper_cores is not None:
        return (app.platform.helper_cores,)
    least = app.platform.least_helper_cores
    if mode == "asynchronous" and (in_situ or least):
        return range(max(1, least), app.platform.cores)
    return (0,)


def brute_force(app: Application, mode: Mode) -> float:
    """The least step over all splits, nodes and helper cores; inf when nothing fits."""
    sides = {"auto": (True, False), "in-situ": (True,), "in-transit": (False,)}
    least_s = math.inf
    for split in itertools.product(*(sides[one.where] for one in app.analyses)):
        helpers = helper_cores(app, mode, any(split))
        for nodes, h in itertools.product(range(1, app.platform.nodes + 1), helpers):
            least_s = min(least_s, step_s(app, split, nodes, h, mode))
    return least_s
