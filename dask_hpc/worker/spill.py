"""Results in files: what a worker that has to go writes, and the task that brings it back.

Both ends run on workers. Values are serialised as Dask does when it spills to disk, which means pickle
for most types. A file is therefore read only when it is the very one that was written: in a folder and
with an owner that nobody else can write as, and with the digest that the scheduler was told. Names of
files come from the scheduler (`file_name`) and cannot lead out of the folder.
"""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from dask.utils import typename
from distributed import Reschedule, get_worker
from distributed.protocol.serialize import deserialize_bytes, serialize_bytelist

from dask_hpc.clock import stopwatch_s

#: Event topic in which a worker says why a file could not be read.
TOPIC = "hpc-spill"


def file_name(key: Any, number: int) -> str:
    """Name of the file of a key; `number` tells files of the same key apart."""
    return blake2b(f"{number} {key!r}".encode(), digest_size=20).hexdigest()


def make_private(folder: str) -> None:
    """Make a folder that is its owner's only, or accept one that is.

    Raises
    ------
    OSError
        When it cannot be made, or belongs to somebody else or is open to others.
    """
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder that is yours only (mode 0700)")


def problem(directory: str) -> str | None:
    """Why nothing can be written below a folder, which is made if need be; None when something can."""
    try:
        os.makedirs(directory, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return None
    except OSError as error:
        return f"{type(error).__name__}: {error}"


def write_file(folder: str, name: str, value: Any) -> tuple[str, int]:
    """Write a value to a new file; gives its digest and length in bytes.

    Raises
    ------
    OSError
        When the file cannot be written in whole; nothing is left of it then.
    Exception
        Whatever serialising the value raises.
    """
    frames = serialize_bytelist(value, on_error="raise")
    make_private(folder)
    path = os.path.join(folder, name)
    digest, length = blake2b(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb") as file:
            for frame in frames:
                digest.update(frame)
                length += file.write(frame)
    except BaseException:
        os.unlink(path)
        raise
    return digest.hexdigest(), length


def read_file(path: str, digest: str, length: int) -> Any:
    """The value in a file that `write_file` wrote.

    Raises
    ------
    OSError
        When the file cannot be read.
    ValueError
        When it is not what was written; it is not deserialised then.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_size != length:
            raise ValueError(f"{path} is not the file that was written: {found.st_size} of {length} bytes")
        # not bytes: arrays made from those could not be written to
        content = bytearray(length)
        read = file.readinto(content)
    if read != length or blake2b(content).hexdigest() != digest:
        raise ValueError(f"{path} is not what was written: its digest differs")
    return deserialize_bytes(content)


async def write(
    folder: str, names: Mapping[Any, str], within_s: float, dask_worker: Any
) -> dict[str, tuple[str, int, str] | str]:
    """Write results of the worker that this runs on to files called `names`.

    Returns
    -------
    dict
        By name of the file its digest, its length in bytes and the type of the value, or why there is none.
    """
    began_s = stopwatch_s()
    answers: dict[str, tuple[str, int, str] | str] = {}
    for key, name in names.items():
        left_s = within_s - (stopwatch_s() - began_s)
        try:
            if left_s <= 0:
                raise TimeoutError
            value = dask_worker.data[key]
            writing = asyncio.to_thread(write_file, folder, name, value)
            answers[name] = (*await asyncio.wait_for(writing, left_s), typename(type(value)))
        except TimeoutError:
            answers[name] = f"not written within {within_s:.1f} s"
        except Exception as error:  # types of users may raise anything when they are serialised
            answers[name] = f"{type(error).__name__}: {error}"
    return answers


def load(path: str, digest: str, length: int) -> Any:
    """The task that brings a result back.

    It never fails: when the file is not there or not what was written, it says so to the scheduler, which
    knows what else to do, and gives itself back.
    """
    try:
        return read_file(path, digest, length)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        get_worker().log_event(TOPIC, {"file": os.path.basename(path), "error": why})
        raise Reschedule from error
