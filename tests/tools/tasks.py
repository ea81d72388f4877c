"""Tasks and an actor that tests submit, also to workers in other processes."""

from __future__ import annotations

import time
from typing import Any

from distributed import get_client, secede, worker_client


def inc(value: int) -> int:
    """``value + 1``."""
    return value + 1


def slow_inc(value: int, delay_s: float = 0.01) -> int:
    """Take `delay_s`, then return ``value + 1``."""
    time.sleep(delay_s)
    return value + 1


class Counter:
    """An actor that counts."""

    n = 0

    def __init__(self, n: int = 0) -> None:
        self.n = n

    def add(self, m: int) -> int:
        """Add; returns the sum."""
        self.n += m
        return self.n


def add_to(counter: Any, m: int) -> int:
    """Call an actor."""
    return int(counter.add(m).result())


def fan_out(n: int) -> int:
    """Submit tasks, with `worker_client`."""
    with worker_client() as client:
        return sum(client.gather(client.map(slow_inc, range(n), pure=False)))


def fan_out_seceding(n: int) -> int:
    """Submit tasks, with `get_client` and `secede`."""
    client = get_client()
    futures = client.map(inc, range(n), pure=False)
    secede()
    return sum(client.gather(futures))
