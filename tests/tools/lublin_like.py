"""Random rigid jobs in the shapes that Lublin and Feitelson found, in whole seconds: a workload of no site.

Sizes are powers of two oftener than not and their logarithm is uniform in two pieces; logarithms of run times
are a mixture of two gamma distributions, the wider the job the likelier the longer one; those of gaps are
gamma (Lublin and Feitelson 2003, "The workload on parallel supercomputers"). Left out of it: the cycle of the
day, interactive jobs. Estimates are ours: round times that users ask for, the next one or a much longer one
(after Tsafrir et al. 2005).
"""

from __future__ import annotations

import random
from math import exp, log2

from dask_hpc.sim.model.job import Job
from dask_hpc.sim.model.workload import Workload

#: Seconds that users ask for: minutes and hours that are round.
ASKED_S = [
    60 * minutes for minutes in (1, 5, 10, 15, 30, 60, 120, 240, 360, 480, 720, 1080, 1440, 2160, 2880, 4320)
]


def lublin_like(jobs: int, nodes: int, seed: int, gap: float = 0.5) -> Workload:
    """So many jobs; the smaller `gap` (scale of the logarithms of the gaps), the higher the load."""
    draw = random.Random(seed)
    made, submit_s = [], 0
    for number in range(1, jobs + 1):
        submit_s += int(exp(draw.gammavariate(10.23, gap)))
        size = _size(draw, nodes)
        runtime_s = _runtime_s(draw, size)
        made.append(
            Job(
                id=str(number), submit_s=float(submit_s), start_nodes=size, min_nodes=size, max_nodes=size,
                runtime_s=float(runtime_s), walltime_s=float(_asked_s(draw, runtime_s)),
            )
        )  # fmt: skip
    return Workload(name=f"lublin-like, seed {seed}", jobs=tuple(made))


def _size(draw: random.Random, nodes: int) -> int:
    if draw.random() < 0.244:
        return 1
    low, high = 0.8, log2(nodes)
    middle = high - 2.5
    exponent = draw.uniform(low, middle) if draw.random() < 0.86 else draw.uniform(middle, high)
    return min(nodes, 2 ** round(exponent) if draw.random() < 0.576 else round(2**exponent))


def _runtime_s(draw: random.Random, size: int) -> int:
    short = draw.random() < min(1.0, max(0.0, -0.0054 * size + 0.78))
    logarithm = draw.gammavariate(4.2, 0.94) if short else draw.gammavariate(312.0, 0.03)
    return max(1, int(exp(min(logarithm, 12.0))))


def _asked_s(draw: random.Random, runtime_s: int) -> int:
    enough = [asked_s for asked_s in ASKED_S if asked_s >= runtime_s] or [runtime_s]
    # most ask for much more than they need
    return draw.choice(enough[: draw.choice([1, 2, 4, 8])])
