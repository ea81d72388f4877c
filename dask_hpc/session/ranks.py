"""Processes that do something together: each its part, and all of them fail when one does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dask_hpc.errors import CheckpointError, CheckpointTypeError, CheckpointValueError, DaskHPCError
from dask_hpc.session.exchange import FolderExchange
from dask_hpc_policies import numeric
from dask_hpc_policies.params import shown


class Ranks:
    """One of several processes.

    Parameters
    ----------
    rank, size
        Which of how many.
    exchange
        Gives the values of all processes by rank for that of this one; values are what JSON has. None: there
        is one process, or `join` says where they speak.

    Raises
    ------
    CheckpointTypeError, CheckpointValueError
        When `exchange` is no function; when there is no such rank.
    """

    def __init__(self, rank: int, size: int, exchange: Callable[[Any], Sequence[Any]] | None) -> None:
        mine, most = numeric.whole(rank), numeric.whole(size)
        if mine is None or most is None or not 0 <= mine < most:
            raise CheckpointValueError(
                f"rank is {rank!r} and size {size!r}; allowed: rank from 0 to size - 1, whole numbers"
            )
        if not (exchange is None or callable(exchange)):
            raise CheckpointTypeError(
                f"exchange is {shown(exchange)}; allowed: a function such as comm.allgather, or None"
            )
        self.rank, self.size = mine, most
        self._exchange = exchange
        self._folder: FolderExchange | None = None
        #: Whether it has left the others, which have to be found anew then.
        self._given_up = False
        #: The process that has joined; 0: none has.
        self._process = 0

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process, which has no part in its versions."""
        return self._process not in (0, os.getpid())

    def check_process(self) -> None:
        """Raise CheckpointError in a child of the process."""
        if self.forked:
            raise CheckpointError(
                f"this session is of process {self._process}, of which this one was forked; call it there"
            )

    def join(self, make_folder: Callable[[], Path], timeout_s: float) -> None:
        """Find the others in a folder, if that is needed; raises CheckpointError when they do not come."""
        self._process = os.getpid()
        if self.size > 1 and (self._exchange is None or self._given_up):
            self._given_up = False
            self._folder = FolderExchange(make_folder(), self.rank, self.size, timeout_s)
            self._exchange = self._folder

    def together(self, act: Callable[[], Any]) -> list[Any]:
        """What `act` gives in each process, once it has ended in all.

        Raises
        ------
        CheckpointError
            When it has failed in another process.
        Exception
            What it raises in this one.
        """
        if self._exchange is None:
            return [act()]
        failure: Exception | None = None
        try:
            mine = {"value": act()}
        except Exception as error:
            # the others wait for what this process has to say
            failure, mine = error, {"error": f"{type(error).__name__}: {error}"}
        try:
            told = self._exchange(mine)
        finally:
            if failure is not None:
                raise failure
        if not isinstance(told, (list, tuple)) or [type(each) for each in told] != [dict] * self.size:
            raise CheckpointError(
                f"exchange has given {shown(told)}; needed: a list of what each of {self.size} processes has "
                "given it, by rank, as comm.allgather does"
            )
        for rank, each in enumerate(told):
            if "error" in each:
                raise CheckpointError(f"rank {rank} has failed: {each['error']}")
        return [each["value"] for each in told]

    def first(self, act: Callable[[], Any]) -> Any:
        """What `act` gives in the process of rank 0; raises as `together`."""
        return self.together(lambda: act() if self.rank == 0 else None)[0]

    def close(self) -> None:
        """Leave the others when there is nothing left to do together."""
        if self._folder is not None:
            self._folder.close()

    def give_up(self, reason: str) -> None:
        """Have the others not wait for this process."""
        if self._folder is not None:
            self._given_up = True
            self._folder.give_up(reason)


def caught(act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `act` gives; why it has failed, for all processes to hear, when it is about managers."""
    try:
        return act()
    except (OSError, ValueError, DaskHPCError) as error:
        return {"problem": str(error) or type(error).__name__}


def first_problem(told: Iterable[Mapping[str, Any]]) -> str:
    """The first of the problems that `caught` has found; empty: there is none."""
    return next((str(each["problem"]) for each in told if "problem" in each), "")
