"""How a random sequence is made from a seed."""

from __future__ import annotations

import random

from stress_operations import OPERATIONS
from stress_plans import Operation, Sequence, random_settings

from dask_hpc_policies import registry


def make_sequence(seed: int, length: int = 40) -> Sequence:
    """The sequence that belongs to a seed; every third one is calm."""
    rng = random.Random(seed)
    calm = seed % 3 == 2
    names = [name for name, (_, _, again) in OPERATIONS.items() if not (calm and again)]
    weights = [OPERATIONS[name][1] for name in names]
    operations = [
        Operation(name, rng.choice((0.0, 0.0, 0.005, 0.02, 0.05)), rng.randrange(1 << 30))
        for name in ("open_job", "submit", *rng.choices(names, weights, k=length - 2))
    ]
    return Sequence(
        seed=seed,
        workers=rng.randint(2, 5),
        nthreads=rng.choice((1, 1, 2)),
        stealing=rng.random() < 0.5,
        saturation=rng.choice((1.1, 1.1, 1.1, float("inf"))),
        late_s=rng.choice((0.0, 0.3)),
        policy=rng.choice(registry.names()),
        settings=random_settings(rng),
        operations=tuple(operations),
        calm=calm,
        uninstalls=rng.random() < 0.15,
    )
