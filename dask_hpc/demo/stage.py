"""Where an act plays: one cluster, with dask_hpc or without."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from distributed import Client

from dask_hpc.client.known import workers_of
from dask_hpc.client.runtime import Runtime

#: Worker processes at the beginning of each act, each a node with one thread.
NODES = 6
#: New workers may take this long to come.
_PATIENCE_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A cluster that has `NODES` nodes when an act begins."""

    client: Client
    #: None on stock Dask.
    runtime: Runtime | None
    #: Times and amounts of work are multiplied by this.
    scale: float = 1.0
    #: What the act says about itself while it plays, for the line of progress.
    told: dict[str, str] = field(default_factory=dict)

    @property
    def cluster(self) -> Any:
        """The cluster that the client was made for."""
        return self.client.cluster

    def fill(self) -> None:
        """Have `NODES` nodes again.

        Raises
        ------
        TimeoutError
            When they have not come in two minutes.
        """
        self.cluster.scale(NODES)
        self.client.wait_for_workers(NODES, timeout=_PATIENCE_S)

    def until_gone(self, address: str) -> None:
        """Wait until the scheduler has noticed that a worker is gone.

        Raises
        ------
        TimeoutError
            When it has not in two minutes.
        """
        deadline_s = time.monotonic() + _PATIENCE_S
        while address in self.workers().values():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"worker {address} is still there {_PATIENCE_S} s after it was killed")
            time.sleep(0.02)

    def workers(self) -> dict[str, str]:
        """Addresses of the workers by name, as the scheduler knows them now."""
        return {str(worker["name"]): address for address, worker in workers_of(self.client).items()}


def in_background(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Call a function in a thread that nobody has to wait for; what it gives, or raises, as a future."""
    future: Future[Any] = Future()

    def call() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:  # whoever asks the future gets it
            future.set_exception(error)

    threading.Thread(target=call, name=getattr(function, "__name__", None), daemon=True).start()
    return future
