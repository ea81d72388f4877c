"""A preload of workers that a nanny on this machine has started: an interrupt leaves them alone.

Ctrl-C in a terminal, and a notebook that interrupts a cell, signal whoever runs there and all that was
started from there. Workers would end with it, and what they hold; whoever has started them closes them where
that is meant.
"""

from __future__ import annotations

import signal
import threading
from typing import Any


def dask_setup(worker: Any) -> None:
    """Have the process of a worker go on when it is interrupted."""
    if worker.nanny is not None and threading.current_thread() is threading.main_thread():
        # what is ignored would be so by programs that tasks start, too
        signal.signal(signal.SIGINT, _goes_on)


def _goes_on(number: int, frame: Any) -> None: ...
