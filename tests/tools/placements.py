"""Applications to be placed, and what they are held against: brute force and a simulation of the pipeline.

Neither of the two uses a formula of the planner: they count cores and bytes.
"""

from __future__ import annotations

import heapq
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
from dask_hpc_policies.placement.plan import Placement

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
    return Application(
        platform=Platform(
            nodes=of,
            cores=cores,
            memory_bytes=1.0,
            bandwidth_bytes_s=10 ** chance.uniform(-3, 1),
            staging_memory_bytes=chance.choice([*[None] * 6, 0.5, 2.0]),
            max_staging_nodes=chance.choice([*[None] * 6, 1, 3]),
            simulation_nodes=chance.choice([*[None] * 6, chance.randint(1, of)]),
            helper_cores=chance.choice([*[None] * 6, chance.randrange(cores)]),
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
    if inside and mode == "asynchronous" and not 1 <= helpers < platform.cores:
        return math.inf
    on = platform.cores if mode == "synchronous" else platform.cores - helpers
    serial = simulation.serial_fraction
    first = simulation.one_core_s * (serial + (1 - serial) / (nodes * on))
    second = sum(
        taking_s(one, nodes * (platform.cores if mode == "synchronous" else helpers)) for one in inside
    )
    third = sum(
        taking_s(one, staging * platform.cores)
        + (one.memory_bytes if one.input_bytes is None else one.input_bytes)
        / (staging * platform.bandwidth_bytes_s)
        for one in outside
    )
    return max(first + second, third) if mode == "synchronous" else max(first, second, third)


def taking_s(one: Analysis, cores: int) -> float:
    """How long an analysis takes on so many cores (Amdahl 1967)."""
    return one.one_core_s * (one.serial_fraction + (1 - one.serial_fraction) / cores)


def brute_force(app: Application, mode: Mode) -> float:
    """The least step over all splits, nodes and helper cores; inf when nothing fits."""
    sides = {"auto": (True, False), "in-situ": (True,), "in-transit": (False,)}
    least_s = math.inf
    for split in itertools.product(*(sides[one.where] for one in app.analyses)):
        helpers = helper_cores(app, mode, any(split))
        for nodes, h in itertools.product(range(1, app.platform.nodes + 1), helpers):
            least_s = min(least_s, step_s(app, split, nodes, h, mode))
    return least_s


# ------------------------------------------------------------------ the pipeline, event by event


def helper_cores(app: Application, mode: Mode, in_situ: bool) -> Sequence[int]:
    """Helper cores that may be; those that are fixed are there whether anything runs on them or not."""
    if mode == "asynchronous" and app.platform.helper_cores is not None:
        return (app.platform.helper_cores,)
    return range(1, app.platform.cores) if mode == "asynchronous" and in_situ else (0,)


def simulated_run_s(app: Application, placement: Placement, steps: int) -> float:
    """When the last analysis of the last step ends.

    The simulation's cores, the helper cores and the staging nodes each do one thing after another: serial and
    parallel part of a step; analysis after analysis; transfer and analysis, one after another. Data of two
    steps have room: the simulation waits with a step until all analyses of the step before the last have
    ended.
    """
    platform, simulation = app.platform, app.simulation
    serial_s = simulation.one_core_s * simulation.serial_fraction
    synchronous = placement.mode == "synchronous"
    beside = platform.cores - placement.helper_cores
    helpers = platform.cores if synchronous else placement.helper_cores
    staging = platform.nodes - placement.nodes
    work = {
        "simulation": [serial_s, (simulation.one_core_s - serial_s) / (placement.nodes * beside)],
        "in situ": [
            taking_s(one, placement.nodes * helpers)
            for one in app.analyses
            if one.name in placement.in_situ
        ],
        "in transit": [
            seconds
            for one in app.analyses
            if one.name in placement.in_transit
            for seconds in (
                one.sent_bytes / platform.bandwidth_bytes_s / staging,
                taking_s(one, staging * platform.cores),
            )
        ],
    }
    # in this order, so that in synchronous mode the analyses come before the next step
    waiting: dict[str, list[int]] = {"in situ": [], "simulation": [1], "in transit": []}
    busy: set[str] = set()
    left = dict.fromkeys(range(1, steps + 1), 2)
    events: list[tuple[float, int, str, int, int]] = []
    order = itertools.count()
    now_s = 0.0

    def start() -> None:
        for lane, queue in waiting.items():
            if lane in busy or not queue:
                continue
            step = queue[0]
            if lane == "simulation" and (left.get(step - 2) or (synchronous and "in situ" in busy)):
                continue
            if lane == "in situ" and synchronous and "simulation" in busy:
                continue
            queue.pop(0)
            busy.add(lane)
            heapq.heappush(events, (now_s, next(order), lane, step, 0))

    start()
    while events:
        now_s, _, lane, step, done = heapq.heappop(events)
        if done < len(work[lane]):
            heapq.heappush(events, (now_s + work[lane][done], next(order), lane, step, done + 1))
            continue
        busy.remove(lane)
        if lane == "simulation":
            for other in ("in situ", "in transit"):
                waiting[other].append(step)
            if step < steps:
                waiting["simulation"].append(step + 1)
        else:
            left[step] -= 1
        start()
    return now_s
