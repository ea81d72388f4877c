"""How ElastiSim divides the payload of a task over the nodes of a job.

After the task types of ElastiSim's documentation, and its source of 2024 for the parts:

================  ==================================================================================
``uniform``       every node has the whole payload
``all_ranks``     divided over the n nodes (``total``, its older name, too)
``root_only``     the first node has it all
``even_ranks``    divided over nodes 0, 2, 4, ...
``odd_ranks``     divided over nodes 1, 3, 5, ...; one node alone has none
``vector``        a list with the payload of each node (rigid jobs)
================  ==================================================================================

Messages go through a crossbar of full-duplex links: a pattern takes the time of the link that carries most
in one direction. The payload is the sum of all messages; ``gather`` and ``scatter`` have n parts of it, of
which the first node keeps its own, and ``master_worker`` goes half each way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dask_hpc.sim.formats.amounts import Sizes, by_size, read_amount
from dask_hpc.sim.formats.fields import Field
from dask_hpc.sim.model.job import Amount

#: By pattern: how many of n nodes take part, and which part of the payload each of those has.
_VECTOR: Mapping[str, Callable[[int], tuple[int, float]]] = {
    "uniform": lambda n: (n, 1.0),
    "all_ranks": lambda n: (n, 1.0 / n),
    "total": lambda n: (n, 1.0 / n),
    "root_only": lambda n: (1, 1.0),
    "even_ranks": lambda n: ((n + 1) // 2, 1.0 / ((n + 1) // 2)),
    "odd_ranks": lambda n: (n // 2, 1.0 / (n // 2) if n > 1 else 0.0),
}
#: By pattern: which part of the payload the busiest link of n > 1 nodes carries in one direction.
_MATRIX: Mapping[str, Callable[[int], float]] = {
    "all_to_all": lambda n: 1.0 / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "master_worker": lambda n: 0.5,
    "ring": lambda n: 1.0 / n,
    "ring_clockwise": lambda n: 1.0 / n,
    "ring_counter_clockwise": lambda n: 1.0 / n,
}


def divided(payload: Field, pattern: Field, sizes: Sizes) -> tuple[Amount, Amount, Amount | None]:
    """What the busiest node has, what all have together, and how many take part (None: all)."""
    name = _lower(pattern).text((*_VECTOR, "vector"))
    if name == "vector":
        parts = _numbers(payload, sizes, sizes.low, "one number for each node")
        return max(parts), sum(parts), float(max(1, sum(part > 0 for part in parts)))
    part = _VECTOR[name]
    value = read_amount(payload, sizes)
    busiest = by_size(sizes, lambda n, v: v * part(n)[1], value)
    total = by_size(sizes, lambda n, v: v * part(n)[1] * part(n)[0], value)
    if name in ("uniform", "all_ranks", "total"):
        return busiest, total, None
    return busiest, total, by_size(sizes, lambda n, _: float(max(1, part(n)[0])))


def communication_s(payload: Field, pattern: Field, sizes: Sizes, link_bytes_s: float | None) -> Amount:
    """Seconds that the messages take; none when the links have no limit."""
    name = _lower(pattern).text((*_MATRIX, "matrix"))
    seconds_byte = 0.0 if link_bytes_s is None else 1.0 / link_bytes_s
    if name == "matrix":
        n = sizes.low
        cells = _numbers(payload, sizes, n * n, "one number for each pair of nodes")
        out = max(sum(cells[i * n + j] for j in range(n) if j != i) for i in range(n))
        into = max(sum(cells[i * n + j] for i in range(n) if j != i) for j in range(n))
        return max(out, into) * seconds_byte
    part = _MATRIX[name]
    value = read_amount(payload, sizes)
    return by_size(sizes, lambda n, v: v * part(n) * seconds_byte if n > 1 else 0.0, value)


def _numbers(payload: Field, sizes: Sizes, length: int, what: str) -> list[float]:
    if not sizes.rigid:
        payload.fail("the payload of each node can be given for rigid jobs only")
    parts = [part.number() for part in payload.sequence()]
    if len(parts) != length:
        payload.fail(f"expected {what}, {length} of them, got {len(parts)}")
    return parts


def _lower(word: Field) -> Field:
    return word.replaced(word.value.lower()) if isinstance(word.value, str) else word
