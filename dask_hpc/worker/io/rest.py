"""What a process has read and written that is nobody's: not on the threads of its tasks, nor metered.

Libraries have threads of their own, as Zarr does. What these move is the process's count less all that is
known; the tasks that have waited meanwhile are taken for its cause.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from dask_hpc.worker.io.counters import of_process, of_thread


class ThroughFiles:
    """Bytes that metered stores have moved to and from files of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.read = self.write = 0

    def add(self, what: str, nbytes: int) -> None:
        """So many more were moved; `what` is read or write."""
        with self._lock:
            if what == "read":
                self.read += nbytes
            else:
                self.write += nbytes


through_files = ThroughFiles()


class Rest:
    """The rest of this process, from one look to the next; several workers may share it."""

    def __init__(self) -> None:
        #: Those who take part: each gives the ids of threads whose bytes are known.
        self._threads: list[Callable[[], Iterable[int]]] = []
        self._seen: dict[int, tuple[int, int]] = {}
        self._known = (0, 0)

    def join(self, threads: Callable[[], Iterable[int]]) -> None:
        """Know the bytes of these threads, too, and begin anew."""
        self._threads.append(threads)
        self._seen.clear()
        self.taken()

    def leave(self, threads: Callable[[], Iterable[int]]) -> None:
        """Undo `join`."""
        self._threads.remove(threads)

    def taken(self) -> tuple[int, int]:
        """Bytes read and written since the last look that nobody else has told of."""
        process = of_process()
        ids = {id for threads in self._threads for id in threads()}
        now = {id: of_thread(id)[:2] for id in ids}
        read, write = process.read - through_files.read, process.write - through_files.write
        more = read - self._known[0], write - self._known[1]
        for id, (read_now, write_now) in now.items():
            read_then, write_then = self._seen.get(id, (0, 0))
            # ids of threads are used again
            more = more[0] - max(0, read_now - read_then), more[1] - max(0, write_now - write_then)
        first, self._seen, self._known = not self._known[0], now, (read, write)
        return (0, 0) if first else (max(0, more[0]), max(0, more[1]))


#: Of this process.
rest = Rest()
