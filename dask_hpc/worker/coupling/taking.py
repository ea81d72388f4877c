"""What one value of an analysis takes on its worker: seconds of a core, and what was fetched for it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dask_hpc.clock import epoch_s

#: Seconds that this thread has been ready and had no core; the second number, in nanoseconds (Linux).
_READY = Path("/proc/thread-self/schedstat")
#: So many of a worker's latest transfers are looked at.
_LATEST = 16


@contextmanager
def taken(worker: Any, needs: Mapping[Any, int], note: dict[str, Any], name: str) -> Iterator[None]:
    """Write into ``note[name]`` what a block of code has taken, unless it raises.

    That is a list: beginning and end (seconds since 1970), seconds of a core, bytes that were fetched from
    other workers for it and the seconds that this took, bytes that it reads. Of a core it has all its time
    but that in which it waited for one: who sleeps, or waits for a device, keeps the thread all the same.

    Parameters
    ----------
    needs
        Bytes of the data that it reads, by key.
    """
    begin_s, ready_s = epoch_s(), _ready_s()
    yield
    # within the time between both looks at the clock: else it could be longer than that
    waited_s = _ready_s() - ready_s
    end_s = epoch_s()
    core_s = max(0.0, end_s - begin_s - waited_s)
    note[name] = [begin_s, end_s, core_s, *_fetched(worker, needs), float(sum(needs.values()))]


def _ready_s() -> float:
    try:
        return int(_READY.read_bytes().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0  # another system


def _fetched(worker: Any, needs: Collection[Any]) -> tuple[float, float]:
    """Bytes and seconds of the transfers that have brought these data here, of the latest ones."""
    # the loop adds to it meanwhile
    for _ in range(3):
        try:
            latest = list(itertools.islice(reversed(worker.transfer_incoming_log), _LATEST))
            break
        except RuntimeError:
            continue
    else:
        return 0.0, 0.0
    mine = [one for one in latest if not one["keys"].keys().isdisjoint(needs)]
    return float(sum(one["total"] for one in mine)), float(sum(one["duration"] for one in mine))
