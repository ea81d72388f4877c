"""Encryption of what is in the store: AES-256-GCM with the key of a file that one user alone can read.

The key goes nowhere: each process that writes or reads blocks takes it from the file. What is sealed is bound
to the place that it is meant for (the associated data), so that exchanged blocks are noticed as changed ones
are. A nonce is drawn for each, which is good for four thousand million blocks a key (NIST SP 800-38D, 2007,
section 8.3).
"""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import dask
import numpy as np

from dask_hpc.errors import CheckpointError

#: Names the file.
SETTING = "hpc.checkpoint.key-file"
#: Bytes that sealing adds: the nonce before, the tag behind.
_NONCE, _TAG = 12, 16
ADDED = _NONCE + _TAG
#: The most that is sealed at once.
MOST = 2**31 - 1 - ADDED
_KEY_BYTES = 32
_MAKE = "make one with: (umask 077; openssl rand -hex 32 > FILE)"


def read_key(path: str | os.PathLike[str] | None = None) -> bytes:
    """The key in a file: 64 hexadecimal digits.

    Parameters
    ----------
    path
        None: what this process is configured with.

    Raises
    ------
    CheckpointError
        When there is no such file, others can read it, or it holds no key. No message has anything of it.
    """
    path = path or dask.config.get(SETTING, None)
    if path is None:
        raise CheckpointError(f"it is encrypted and no key is named: give key_file=..., or set {SETTING}")
    try:
        # a pipe would have the reader wait for ever
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise CheckpointError(
                    f"the key file {path} must be a file of yours that nobody else can read: chmod 600 {path}"
                )
            text = file.read(2 * _KEY_BYTES + 3)
    except OSError as error:
        raise CheckpointError(
            f"the key file {path} cannot be read: {error.strerror or error}; give another one, or {_MAKE}"
        ) from None
    try:
        key = bytes.fromhex(text.decode())
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise CheckpointError(f"the key file {path} holds no key of 64 hexadecimal digits; {_MAKE}")
    return key


def seal(parts: Iterable[Any], place: str, key: bytes) -> bytes:
    """Bytes that only the key gives back, and only for the place that they were sealed for.

    Raises
    ------
    ValueError
        When they are too many.
    """
    content = b"".join(parts)
    if len(content) > MOST:
        raise ValueError(f"it has {len(content)} bytes; allowed with encryption: {MOST}, make chunks smaller")
    nonce = os.urandom(_NONCE)
    made: bytes = nonce + _cipher(key).encrypt(nonce, content, place.encode())
    return made


def unseal(where: str, content: Any, place: str, key: bytes) -> np.ndarray:
    """What was sealed, in memory that may be written to.

    Parameters
    ----------
    where
        For the message.

    Raises
    ------
    ValueError
        When it was sealed with another key or for another place, or was changed.
    """
    from cryptography.exceptions import InvalidTag

    raw = memoryview(content)
    if len(raw) >= ADDED:
        try:
            found = _cipher(key).decrypt(raw[:_NONCE], raw[_NONCE:], place.encode())
            return np.frombuffer(bytearray(found), np.uint8)
        except InvalidTag:
            pass
    raise ValueError(f"{where} cannot be decrypted: the key is another one, or somebody has changed it")


def signature(digest: str, key: bytes) -> str:
    """What shows who has written a manifest with this digest: nobody else knows the key."""
    derived = blake2b(key=key, person=b"manifest").digest()
    return blake2b(digest.encode(), key=derived, digest_size=32).hexdigest()


def is_signed(digest: str, found: str, key: bytes) -> bool:
    """Whether `found` is the signature of a digest."""
    return hmac.compare_digest(signature(digest, key).encode(), found.encode())


def check_installed() -> None:
    """Raise CheckpointError when the package is absent that this needs."""
    _cipher(bytes(_KEY_BYTES))


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise CheckpointError(
            "encryption of checkpoints needs the package cryptography; get it with: "
            "pip install 'dask-hpc[checkpoint]'"
        ) from None
    return AESGCM(key)
