"""Managers of hosts, forked from the process that the tests' workers are forked from.

What one that starts anew takes is imports. So do still those that worker processes and programs of their own
start, and whatever else `HostProcess` runs.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping

import dask

from dask_hpc.worker.host_process import HostProcess, main
from dask_hpc.worker.left_behind import TARGET


def fork_managers() -> None:
    """Have this process start them so from now on."""
    anew = HostProcess.start

    def start(self: HostProcess) -> None:
        if self._target != TARGET:
            return anew(self)
        arguments = (str(self.folder), self.name, self._target, repr(self._linger_s))
        forked = multiprocessing.get_context("forkserver")
        process = forked.Process(target=_run, args=(arguments, dict(os.environ)))
        process.start()
        # ends at once, and leaves one that is not this process's
        process.join()

    HostProcess.start = start  # type: ignore[method-assign]


def _run(arguments: tuple[str, str, str, str], environment: Mapping[str, str]) -> None:
    """Be what `HostProcess.start` makes: in a session of its own, in the folder, with its log."""
    os.setsid()
    folder, name = arguments[:2]
    os.chdir(folder)
    log = os.open(f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for file, place in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(file, place)
    os.environ.clear()
    os.environ.update(environment)
    dask.config.refresh()
    main(*arguments)
