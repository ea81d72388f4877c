"""Work on a cluster whose workers are ended from outside: what was started, what was lost."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import Client, get_worker

PATIENCE_S = 60.0
_ROOT = Path(__file__).resolve().parents[2]
#: Where workers that are started from a shell find the package and this module.
PATHS = os.pathsep.join(
    [*(str(_ROOT / name) for name in ("", "policies", "widgets")), str(Path(__file__).resolve().parent)]
)

#: A program that is started with these forks its workers from one process that has imported what they need.
FORKED = {"DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "forkserver"}


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until `condition()` is true and give its value."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.02)
    return value


def mark(path: str, name: str, nap_s: float) -> str:
    """A task with a side effect: one line for every time it is started."""
    with open(path, "a") as file:
        file.write(f"{name}\n")
    time.sleep(nap_s)
    return name


def where(_: Any) -> str:
    """A task that tells the name of its worker."""
    return str(get_worker().name)


def held(gate: str, number: int) -> int:
    """A task that lasts until there is the file `gate`."""
    until(lambda: os.path.exists(gate), gate)
    return number


class Marks:
    """Tasks with side effects, counted where they happen."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self.path = folder / "starts"

    def submit(self, name: str, count: int, nap_s: float, worker: str | None = None) -> list[Any]:
        """Tasks called `name` and a number, first of all on `worker` if one is given."""
        names = [f"{name}-{i}" for i in range(count)]
        where = {} if worker is None else {"workers": [worker], "allow_other_workers": True}
        return self.client.map(mark, [str(self.path)] * count, names, nap_s=nap_s, key=names, **where)

    def started(self) -> Counter[str]:
        """How often each task was started."""
        return Counter(self.path.read_text().split()) if self.path.exists() else Counter()


def lost(client: Client) -> tuple[int, int, set[bool]]:
    """Computed and scattered results lost with workers, and whether their end was expected."""
    rows = [row for _, row in client.get_events("all") if row.get("action") == "remove-worker"]
    computed = sum(len(row["lost-computed-tasks"]) for row in rows)
    scattered = sum(len(row["lost-scattered-tasks"]) for row in rows)
    return computed, scattered, {row["expected"] for row in rows}


def workers(client: Client) -> dict[str, str]:
    """Addresses of connected workers by name."""
    # not `scheduler_info`: a client keeps its answer where its periodic look puts one without workers
    rows = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    return {str(row["name"]): address for address, row in rows.items()}


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """These variables of the environment, as those of a Slurm; processes started in it find the package."""
    before = dict(os.environ)
    os.environ.update(variables)
    os.environ["PYTHONPATH"] = PATHS
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
