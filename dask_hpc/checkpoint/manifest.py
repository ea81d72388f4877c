"""The manifest of a version: written last, and all that is believed about its files.

Rules of the file: what is read is checked in full before anything is made of it. A manifest is JSON with a
digest of its content, so that a cut or edited one is noticed; one that was made to fit leads nowhere but to
files of its own version, whose bytes it must know, and never to code.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from typing import Any

from dask_hpc.checkpoint import layout
from dask_hpc.checkpoint.dtypes import from_json
from dask_hpc.checkpoint.inside import parts, read_inside
from dask_hpc.checkpoint.names import checked_name, is_pack, is_sealed
from dask_hpc.checkpoint.plan import Array, Plan, Written
from dask_hpc.checkpoint.sealing import is_signed, read_key
from dask_hpc.checkpoint.sealing import signature as signature_of
from dask_hpc.errors import CheckpointError
from dask_hpc_policies.codec import decode, encode

#: Name of its file.
FILE = "manifest.json"
#: Layout of what it says.
SCHEMA = 3
#: Not in its text.
_BESIDE = ("digest", "signature")
#: Larger ones are not read: ten million blocks have less.
MOST_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a version holds."""

    #: Without the contents of its files.
    plan: Plan
    version: int
    created_s: float
    levels: tuple[str, ...]
    #: Length and crc32c of each file that is no block, by path.
    files: Mapping[str, tuple[int, int]]
    #: Offset, length, crc32c of each block, by the order of the plan.
    blocks: tuple[tuple[int, int, int], ...]
    #: Digests of opaque blocks by number.
    digests: Mapping[str, str]
    #: Names of the packs that opaque blocks are in, by number.
    packs: Mapping[str, str]
    #: Bytes of all files but this one.
    bytes: int
    #: Of its text, and who has written that, if it is encrypted; beside what it says.
    digest: str = ""
    signature: str = ""

    @property
    def is_sealed(self) -> bool:
        """Whether it, or something that it shares with an earlier version, is encrypted."""
        return self.plan.sealed is not None or any(map(is_sealed, self.packs.values()))

    def written(self, number: int) -> Written:
        """What is known of a block, counted over all arrays."""
        told = str(number)
        return Written(*self.blocks[number], self.digests.get(told), self.packs.get(told))


def dump(manifest: Manifest, key: bytes | None = None) -> bytes:
    """A manifest as its file; with the key of what is encrypted, signed."""
    return seal(SCHEMA, plain(manifest), key)


def plain(manifest: Manifest) -> dict[str, Any]:
    """A manifest as JSON, without the contents of its files."""
    content: dict[str, Any] = encode(replace(manifest, plan=replace(manifest.plan, files={})))
    content["plan"].pop("files")
    for name in _BESIDE:
        content.pop(name)
    return content


def seal(schema: int, content: Any, key: bytes | None = None) -> bytes:
    """Content as a file that says when it was cut or edited; with a key, who has written it."""
    text = _text(content)
    digest = _digest(text)
    signed = "" if key is None else f'"signature": "{signature_of(digest, key)}", '
    head = f'{{"schema": {schema}, "blake2b": "{digest}", {signed}"content": '
    return head.encode() + text + b"}"


def check_signed(folder: str, manifest: Manifest, key_file: str | None = None) -> bytes | None:
    """The key of an encrypted version; None: it is not encrypted.

    Raises
    ------
    CheckpointError
        When there is no key, or somebody else has written the manifest.
    """
    if not manifest.is_sealed:
        return None
    try:
        key = read_key(key_file)
    except CheckpointError as error:
        raise CheckpointError(f"{folder} cannot be opened: {error}") from None
    if manifest.plan.sealed is not None and not is_signed(manifest.digest, manifest.signature, key):
        raise CheckpointError(
            f"{folder} cannot be opened: the key is another one, or somebody else has changed it; give the "
            "key that it was written with, or restore another version"
        )
    return key


class UnreadManifestError(CheckpointError):
    """The file system has not given a manifest that is there: nobody knows what is wrong with it."""


def read(folder: str) -> Manifest:
    """The manifest of the version in `folder`.

    Raises
    ------
    CheckpointError
        When there is none, or it is not what was written; the message names the file and the remedy.
        `UnreadManifestError`: when it cannot be read.
    """
    path = os.path.join(folder, FILE)
    try:
        content = read_inside(folder, FILE, MOST_BYTES)
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} is no version of a checkpoint: it has no {FILE}; give the folder of one, such as "
            "STORE/NAME/000001 (dask hpc checkpoint ls lists them)"
        ) from None
    except OSError as error:
        raise UnreadManifestError(
            f"{path} cannot be read: {error.strerror or error}; look at the permissions and the disk, or "
            "restore another version"
        ) from None
    try:
        return _parse(content)
    except (ValueError, RecursionError, CheckpointError) as error:
        raise CheckpointError(
            f"{path} is not a manifest as it was written: {error}; restore another version, or remove this "
            "one"
        ) from None


def _parse(raw: bytes) -> Manifest:
    found = unseal(raw, SCHEMA)
    content = found["content"]
    if found["schema"] == 1 and isinstance(content, dict):
        content.setdefault("packs", {})
    return of_plain(content, found["blake2b"], str(found.get("signature", "")))


def unseal(raw: bytes, newest: int) -> dict[str, Any]:
    """What `seal` gave: its schema, at most `newest`, digest and content; a signature, if there is one.

    Raises
    ------
    ValueError
        When it was cut or edited, or is of a schema that is not known.
    """
    if len(raw) > MOST_BYTES:
        raise ValueError(f"it is longer than {MOST_BYTES} bytes")
    try:
        found = json.loads(raw)
    except ValueError:
        raise ValueError("it is no JSON; it was cut or edited") from None
    if not isinstance(found, dict) or set(found) - {"signature"} != {"schema", "blake2b", "content"}:
        raise ValueError("it has not the fields schema, blake2b and content")
    if type(found["schema"]) is not int or not 1 <= found["schema"] <= newest:
        raise ValueError(
            f"its layout is {found['schema']!r:.80}, this version of dask_hpc reads 1 to {newest}; install "
            "the "
            "one that wrote it"
        )
    if found["blake2b"] != _digest(_text(found["content"])):
        raise ValueError("its content was changed after it was written")
    return found


def of_plain(content: Any, digest: str = "", signature: str = "") -> Manifest:
    """The manifest that `plain` gave, checked in full; `digest` and `signature` are beside its text.

    Raises
    ------
    ValueError, CheckpointError
        When it can be none.
    """
    if not isinstance(content, dict) or not isinstance(content.get("plan"), dict):
        raise ValueError("it has no plan")
    missing = [each.name for each in fields(Manifest) if each.name not in (*content, *_BESIDE)]
    if missing:
        raise ValueError(f"it does not say {', '.join(missing)}")
    beside = {"digest": digest, "signature": signature}
    content = {**content, **beside, "plan": {**content["plan"], "files": {}}}
    manifest = decode(Manifest, content)
    _check(manifest)
    return manifest


def _check(manifest: Manifest) -> None:
    """Raise ValueError for what no writer can have meant."""
    plan = manifest.plan
    checked_name(plan.name)
    if manifest.version < 1 or not math.isfinite(manifest.created_s):
        raise ValueError(f"it cannot be version {manifest.version} of {manifest.created_s}")
    for path, (length, crc) in manifest.files.items():
        parts(path)
        if length < 0 or not 0 <= crc < 2**32:
            raise ValueError(f"{path!r:.200} cannot have {length} bytes with the checksum {crc}")
    for array in plan.arrays:
        parts(array.path)
        check_array(array)
    for pack in manifest.packs.values():
        if not is_pack(pack):
            raise ValueError(f"{pack!r:.200} is no name of a pack")
    if plan.count != len(manifest.blocks):
        raise ValueError(f"it has {len(manifest.blocks)} blocks for the {plan.count} of its plan")
    for offset, length, crc in manifest.blocks:
        if not (0 <= offset < 2**63 and 0 <= length < 2**63 and 0 <= crc < 2**32):
            raise ValueError(f"no block is {length} bytes at {offset} with the checksum {crc}")


def check_array(array: Array) -> None:
    """Raise ValueError for an array that nobody can have written."""
    if len(array.shape) != len(array.chunks) or not all(array.chunks):
        raise ValueError(f"the chunks of {array.path!r:.200} are not those of an array of its shape")
    for length, lengths in zip(array.shape, array.chunks, strict=True):
        known = min(lengths) >= 0 and sum(lengths) == length
        if not known and not (array.kind == "opaque" and length == -1 and min(lengths) >= -1):
            raise ValueError(f"the chunks {lengths!r:.80} of {array.path!r:.200} do not make {length}")
    if array.kind == "opaque":
        if array.dtype is not None or array.encoding is not None:
            raise ValueError(f"{array.path!r:.200} is opaque and has a dtype")
        return
    dtype = from_json(array.dtype)
    allowed = {"T": ("text",), "O": ("text", "object")}.get(dtype.kind, (None, "int64", "masked", "raw"))
    if array.encoding not in allowed or dtype.hasobject and dtype.kind not in "TO":
        raise ValueError(f"{array.path!r:.200} cannot be {dtype} as {array.encoding}")
    if array.kind != "apart" and not layout.is_regular(array.chunks):
        raise ValueError(f"{array.path!r:.200} is a {array.kind}, but its chunks differ")
    fitting = {"shard": (None, "int64"), "grid": (None, "text")}.get(array.kind, (array.encoding,))
    if array.encoding not in fitting:
        raise ValueError(f"{array.path!r:.200} cannot be a {array.kind} as {array.encoding}")


def _text(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def _digest(text: bytes) -> str:
    return blake2b(text, digest_size=32).hexdigest()
