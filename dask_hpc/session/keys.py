"""The key of a session: its processes and the managers of its hosts know each other by it, and nobody else.

A manager listens on a port that anybody who reaches the host can connect to. Where the configuration names
no certificates (``distributed.comm.require-encryption``), a session makes a key of its own: the process of
rank 0 draws it, the others hear it as they hear each other, and every host keeps it beside its manager, in a
folder of the user alone, for the run that comes next.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

from distributed import Security

from dask_hpc.errors import CheckpointError

_FILE = "session.key"
_MOST_BYTES = 100_000


def drawn() -> str:
    """A new key, as `security` takes it; raises CheckpointError when none can be made."""
    try:
        made = Security.temporary()
    except ImportError:
        raise CheckpointError(
            "managers answer those who have the session's key alone, and keys are made by the package "
            "cryptography: install dask-hpc[checkpoint], or set distributed.comm.require-encryption and "
            "distributed.comm.tls"
        ) from None
    return json.dumps({"key": made.tls_worker_key, "certificate": made.tls_worker_cert})


def security(key: str) -> Security:
    """What a key stands for: both sides have to show it."""
    told = json.loads(key)
    certificate = told["certificate"]
    return Security(
        require_encryption=True,
        tls_ca_file=certificate,
        tls_worker_cert=certificate,
        tls_worker_key=told["key"],
    )


def kept(folder: Path) -> str:
    """The key that a host has; empty: none."""
    try:
        descriptor = os.open(folder / _FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(descriptor, encoding="utf-8") as file:
        return file.read(_MOST_BYTES)


def keep(folder: Path, key: str) -> None:
    """Have a host keep a key."""
    if kept(folder) == key:
        return
    # several processes of the host may do so at once
    part = folder / f".{_FILE}-{uuid.uuid4().hex}"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(key)
    os.replace(part, folder / _FILE)
