"""What Dask users submit, in small: shapes of work whose tasks mostly sleep.

A sleeping task has a node of its own, however few cores the machine has. Each function takes a client, a
number of tasks and the seconds that each sleeps, submits, and returns futures; none blocks. Every call makes
data of its own, so that no two users share a key.
"""

from __future__ import annotations

import itertools
import operator
import time
from typing import Any

import numpy as np
from distributed import Client, Future

#: Tells the data of one call from that of another.
_numbers = itertools.count()
_FOLDS = 4
#: Independent draws of a task that computes: about 10 ms.
_DRAWS = 400_000


def sleeps(client: Client, tasks: int, task_s: float) -> list[Future]:
    """Independent tasks: downloads, external programs."""
    return client.map(time.sleep, [task_s] * tasks, pure=False)


def chain(client: Client, tasks: int, task_s: float) -> list[Future]:
    """Each task needs the one before: time steps, epochs."""
    link = None
    for _ in range(tasks):
        link = client.submit(_after, link, task_s, pure=False)
    assert link is not None
    return [link]


def _after(_: Any, task_s: float) -> float:
    time.sleep(task_s)
    return task_s


def pairs(client: Client, tasks: int, task_s: float) -> list[Future]:
    """Half of the tasks make something, the others each take one: load and clean."""
    made = client.map(_after, range(tasks // 2), [task_s] * (tasks // 2), pure=False)
    return client.map(_after, made, [task_s] * (tasks // 2), pure=False)


def tree(client: Client, tasks: int, task_s: float) -> list[Future]:
    """Half of the tasks are leaves, whose results are added two by two."""
    level = client.map(_after, range(tasks // 2), [task_s] * (tasks // 2), pure=False)
    while len(level) > 1:
        left, right = level[::2], level[1::2]
        odd = left[len(right) :]
        level = client.map(operator.add, left[: len(right)], right, pure=False) + odd
    return level


def array(client: Client, tasks: int, task_s: float) -> list[Future]:
    """The variance of an array of so many chunks: every chunk is used twice."""
    import dask.array as da

    number = next(_numbers)
    values = da.map_blocks(
        _chunk,
        task_s,
        number,
        chunks=((10_000,) * tasks,),
        dtype=np.float64,
        meta=np.empty(0),
        name=f"chunk-{number}",
    )
    return [client.compute(((values - values.mean()) ** 2).mean())]


def _chunk(task_s: float, number: int, block_id: tuple[int, ...] = (0,)) -> Any:
    time.sleep(task_s)
    return np.random.default_rng((number, *block_id)).standard_normal(10_000)


def dataframe(client: Client, tasks: int, task_s: float) -> list[Future]:
    """Orders in so many partitions are joined with customers and summed up by region."""
    import dask.dataframe as dd
    import pandas as pd

    number = next(_numbers)
    orders = dd.from_map(
        _orders,
        range(tasks),
        task_s=task_s,
        number=number,
        meta=_orders(0, 0.0, number),
        label=f"orders{number}",
    )
    customers = dd.from_pandas(
        pd.DataFrame({"customer": range(1000), "region": [(n + number) % 7 for n in range(1000)]}),
        npartitions=2,
    )
    joined = orders.merge(customers, on="customer")
    return [client.compute(joined.groupby("region").amount.sum())]


def _orders(partition: int, task_s: float, number: int) -> Any:
    import pandas as pd

    time.sleep(task_s)
    rng = np.random.default_rng((number, partition))
    return pd.DataFrame({"customer": rng.integers(0, 1000, 500), "amount": rng.integers(0, 100, 500)})


def learning(client: Client, tasks: int, task_s: float) -> list[Future]:
    """Least squares with a penalty on each fold of the data, and the penalty that does best."""
    number = next(_numbers)
    folds = client.map(_fold, range(_FOLDS), [number] * _FOLDS, pure=False)
    fits = max(1, tasks // _FOLDS)
    errors = [
        future
        for fold in folds
        for future in client.map(_fit, [fold] * fits, range(fits), [task_s] * fits, pure=False)
    ]
    return [client.submit(min, errors, pure=False)]


def _fold(fold: int, number: int) -> tuple[Any, Any]:
    rng = np.random.default_rng((number, fold))
    inputs = rng.standard_normal((400, 20))
    return inputs, inputs @ rng.standard_normal(20) + rng.standard_normal(400)


def _fit(fold: tuple[Any, Any], penalty: int, task_s: float) -> float:
    inputs, outputs = fold
    weights = np.linalg.solve(inputs.T @ inputs + penalty * np.eye(20), inputs.T @ outputs)
    time.sleep(task_s)
    return float(((inputs @ weights - outputs) ** 2).mean())


def computing(client: Client, tasks: int, task_s: float) -> list[Future]:
    """Tasks that draw random numbers for ten milliseconds besides, and their mean."""
    number = next(_numbers)
    draws = client.map(_draw, range(tasks), [number] * tasks, [task_s] * tasks, pure=False)
    return [client.submit(_mean, draws, pure=False)]


def _draw(task: int, number: int, task_s: float) -> float:
    time.sleep(task_s)
    return float(np.random.default_rng((number, task)).random(_DRAWS).mean())


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def wide_with_data(client: Client, tasks: int, task_s: float) -> list[Future]:
    """Every task makes a megabyte that two others look at."""
    number = next(_numbers)
    made = client.map(
        _megabyte, range(tasks // 3), [number] * (tasks // 3), [task_s] * (tasks // 3), pure=False
    )
    sums = client.map(_sum, made, [task_s] * len(made), pure=False)
    both = client.map(_sum_both, made, made[1:] + made[:1], [task_s] * len(made), pure=False)
    return [*sums, *both]


def _megabyte(task: int, number: int, task_s: float) -> Any:
    time.sleep(task_s)
    return np.random.default_rng((number, task)).random(131_072)


def _sum(values: Any, task_s: float) -> float:
    time.sleep(task_s)
    return float(values.sum())


def _sum_both(values: Any, others: Any, task_s: float) -> float:
    time.sleep(task_s)
    return float(values.sum() + others.sum())
