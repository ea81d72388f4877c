"""What processes tell each other through a folder: all say something, and hear what each has said.

The process of rank 0 collects and answers, so that the others read one file a round. Files get their names
by a rename, so that nobody reads half of one. Each run has a folder of its own: what one that was killed has
left is not taken for an answer, because every process draws a word that rank 0 has to repeat.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from dask_hpc.checkpoint.locks import Lock
from dask_hpc.checkpoint.names import is_pack
from dask_hpc.checkpoint.store_threads import PATIENCE_S, Asked, SilentStoreError
from dask_hpc.clock import stopwatch_s
from dask_hpc.errors import CheckpointError

T = TypeVar("T")
#: What names the folder of the run, and what says that a process has given up.
_CALL, _GIVEN_UP = "call", "given-up"
#: Seconds between two looks, first and at most.
_LOOK_S = 0.001, 0.05


class FolderExchange:
    """A call is a round: each process gives a value, as JSON has it, and gets those of all, by rank.

    For one thread at a time. After an error the processes are out of step: all further rounds fail.

    Parameters
    ----------
    folder
        On a file system that all processes see; made by rank 0.
    rank, size
        Which of how many processes this is.
    timeout_s
        Seconds that the others are waited for.

    Raises
    ------
    CheckpointError
        When the others do not come or have been told another size, or another run has the folder.
    """

    def __init__(self, folder: Path, rank: int, size: int, timeout_s: float) -> None:
        self._base, self._rank, self._size, self._timeout_s = folder, rank, size, timeout_s
        self._round = 0
        self._failed: str | None = None
        self._lock: Lock | None = None
        self._folder = folder
        #: The folder may be on a mount that hangs: whoever waits can be interrupted, and hears of it at last.
        self._ask = Asked(folder, timeout_s + PATIENCE_S)
        word = uuid.uuid4().hex
        if rank == 0:
            self._asked(self._open, word)
        found = self([word, size]) if rank == 0 else self._asked(self._joined, word)
        if any(told != size for _, told in found):
            self._release()
            sizes = ", ".join(str(told) for _, told in found)
            raise CheckpointError(
                f"the processes do not know how many they are: {sizes}; give all the same size"
            )

    def __call__(self, value: Any) -> list[Any]:
        """A round; raises CheckpointError when another process does not come in time or has given up."""
        found: list[Any] = self._asked(self._round_of, value)
        return found

    def _asked(self, act: Callable[..., T], *arguments: Any) -> T:
        try:
            return self._ask(act, *arguments)
        except SilentStoreError:
            self._failed = self._failed or f"{self._base} has not answered for {self._timeout_s:g} s"
            raise self._over() from None

    def _round_of(self, value: Any) -> list[Any]:
        self._post(f"{self._round}-{self._rank}", value)
        if self._rank == 0:
            found = self._until(self._collected, "the other processes")
            self._post(f"{self._round}", found)
            # all have come to this round, so nobody reads the answer of the one before any more
            self._remove(f"{self._round - 1}", *(f"{self._round}-{rank}" for rank in range(self._size)))
        else:
            found = self._until(lambda: self._read(f"{self._round}"), "the process of rank 0")
        self._round += 1
        return found

    def give_up(self, reason: str) -> None:
        """Have the others not wait for this process any more."""
        self._failed = self._failed or reason
        with suppress(SilentStoreError):
            Asked(self._base, PATIENCE_S)(self._tell, reason)

    def _tell(self, reason: str) -> None:
        with suppress(OSError, CheckpointError):
            self._write(self._folder, _GIVEN_UP, f"rank {self._rank} has given up: {reason}")
        self._release()

    def close(self) -> None:
        """Leave for good; rank 0 waits for the others, and removes the folder of the run."""
        # who has waited for a store that hangs does so once
        ask = self._ask if self._failed is None else Asked(self._base, PATIENCE_S)
        with suppress(SilentStoreError):
            ask(self._leave)

    def _leave(self) -> None:
        if self._rank:
            self._post(f"{self._round}-{self._rank}", None)
        elif self._failed is None:
            self._post(f"{self._round}-0", None)
            with suppress(CheckpointError):
                self._until(self._collected, "the other processes")
            shutil.rmtree(self._folder, ignore_errors=True)
        self._release()

    def _open(self, word: str) -> None:
        try:
            self._base.mkdir(mode=0o700, exist_ok=True)
            self._lock = Lock.attempt(self._base)
            if self._lock is None:
                raise CheckpointError(
                    f"another run has {self._base}: let it end, or give this session another name"
                )
            left = [path for path in self._base.iterdir() if path.is_dir()]
            self._folder = self._base / word
            self._folder.mkdir(mode=0o700)
            self._write(self._base, _CALL, word)
            # not before nobody is called there any more: who comes to it writes to it
            for path in left:
                shutil.rmtree(path, ignore_errors=True)
        except OSError as error:
            raise CheckpointError(
                f"{self._base} cannot be written to: {error.strerror or error}; look at its permissions and "
                "at the space there"
            ) from None

    def _joined(self, word: str) -> list[Any]:
        def answer() -> list[Any] | None:
            # the folder may be that of a run that was killed, until rank 0 has come
            with suppress(ValueError, IndexError):
                called = self._base / _checked(json.loads((self._base / _CALL).read_text()))
                if called != self._folder:
                    self._write(called, f"0-{self._rank}", [word, self._size])
                    self._folder = called
                told = self._read("0")
                if told is not None and told[self._rank][0] == word:
                    return list(told)
            return None

        found = self._until(answer, "the process of rank 0")
        self._round = 1
        return found

    def _collected(self) -> list[Any] | None:
        there = set(os.listdir(self._folder))
        if any(f"{self._round}-{rank}" not in there for rank in range(self._size)):
            return None
        return [self._read(f"{self._round}-{rank}") for rank in range(self._size)]

    def _until(self, look: Callable[[], T | None], whom: str) -> T:
        end_s, pause_s = stopwatch_s() + self._timeout_s, _LOOK_S[0]
        while self._failed is None:
            with suppress(OSError):
                if (found := look()) is not None:
                    return found
                if self._round or self._rank == 0:
                    self._failed = self._read(_GIVEN_UP)
            if stopwatch_s() >= end_s:
                self._failed = f"it has waited {self._timeout_s:g} s for {whom}"
                self._tell(self._failed)
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOOK_S[1])
        raise self._over()

    def _over(self) -> CheckpointError:
        return CheckpointError(
            f"rank {self._rank} of {self._size} cannot go on: {self._failed}; run it again"
        )

    def _read(self, name: str) -> Any:
        """What is said in a file; None: nothing yet."""
        try:
            return json.loads((self._folder / name).read_text())
        except FileNotFoundError:
            return None

    def _post(self, name: str, value: Any) -> None:
        try:
            self._write(self._folder, name, value)
        except OSError as error:
            self._failed = self._failed or f"{self._folder} cannot be written to: {error.strerror or error}"

    def _write(self, folder: Path, name: str, value: Any) -> None:
        part = folder / f".{name}-{self._rank}"
        part.write_text(json.dumps(value))
        os.rename(part, folder / name)

    def _remove(self, *names: str) -> None:
        for name in names:
            (self._folder / name).unlink(missing_ok=True)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()


def _checked(word: Any) -> str:
    if not is_pack(str(word)):
        raise ValueError(f"{word!r} is no name of the folder of a run")
    return str(word)
