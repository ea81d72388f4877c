"""Services to what a session has in the memory of hosts: its managers compress and encrypt it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from saved import write_key
from session_memory import home

from dask_hpc import CheckpointSession
from dask_hpc.checkpoint.opening import open_checkpoint
from dask_hpc.checkpoint.record import parse, read_records
from dask_hpc.checkpoint.services import services_of
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.verify import verify
from dask_hpc.errors import CheckpointError

TEXT = b"what is written here is in the clear; " * 2000
KEY_FILE = "hpc.checkpoint.key-file"


def content() -> dict[str, np.ndarray]:
    """Arrays of all sorts; one of them is in more than one block, and noise becomes longer."""
    return {
        "text": np.frombuffer(TEXT, np.uint8).copy(),
        "large": np.arange(9_000_000, dtype=float),
        "noise": np.random.default_rng(7).integers(0, 256, 4090, np.uint8),
        "times": np.arange("2026-01", "2026-03", dtype="M8[D]"),
        "words": np.array(["", "one", "two" * 1000], "T"),
        "none": np.zeros((0, 3)),
        "one": np.array(True),
    }


def run(services: str | None, **options: Any) -> tuple[CheckpointSession, dict[str, np.ndarray]]:
    session = CheckpointSession("run", services=services, **{"levels": "L1", **options}).init()
    return session, {name: session.add(name, np.zeros_like(value)) for name, value in content().items()}


def assert_read(services: str | None, number: int, **options: Any) -> None:
    session, held = run(services, **options)
    with session:
        assert session.restart_all() == number
        for name, value in content().items():
            np.testing.assert_array_equal(held[name], value)


def test_managers_hold_what_a_session_writes_with_its_services(memory: Path, tmp_path: Path) -> None:
    with dask.config.set({KEY_FILE: write_key(tmp_path / "key")}):
        sizes = {}
        for number, services in enumerate(("plain", "compress", "encrypt", "compress+encrypt"), 1):
            session, held = run(services)
            with session:
                session.restart()
                for name, value in content().items():
                    held[name][...] = value
                row = session.commit().status()
                assert (row["version"], row["levels"], row["reason"]) == (number, ["L1"], "")
                sizes[services] = row["bytes"]
            folder, _ = home()
            stored = b"".join(path.read_bytes() for path in folder.glob("*.segment"))
            # of what repeats, once is enough
            assert (stored.count(TEXT[:38]) > 10) == (services == "plain")
            assert (TEXT[:38] in stored) == ("encrypt" not in services)
            (record,) = map(parse, read_records(str(folder)))
            assert services_of(record.manifest.plan) == services
            # what the run that reads it does to its own versions is of no matter
            assert_read(None, number)
        assert sizes["compress"] < sizes["compress+encrypt"] < sizes["plain"] / 3 < sizes["encrypt"]
    session, _ = run(None)
    with session, pytest.raises(CheckpointError, match=r"no key is named"):
        session.restart_all()
    with dask.config.set({KEY_FILE: write_key(tmp_path / "other")}):
        session, _ = run(None)
        with session, pytest.raises(CheckpointError, match=r"with another key|cannot be decrypted"):
            session.restart_all()


def test_a_version_in_memory_and_in_the_store_has_the_services_in_both(memory: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    both: dict[str, Any] = {"levels": ("L1", "L3"), "store": store}
    with dask.config.set({KEY_FILE: write_key(tmp_path / "key"), "hpc.checkpoint.services": "encrypt"}):
        session, held = run(None, **both)
        with session:
            for name, value in content().items():
                held[name][...] = value
            assert session.commit().status()["levels"] == ["L1", "L3"]
        version = Store(store).newest("run")
        assert services_of(version.manifest().plan) == "encrypt"
        assert verify(version) == []
        folder, _ = home()
        (record,) = map(parse, read_records(str(folder)))
        assert services_of(record.manifest.plan) == "encrypt"
        for path in folder.glob("*.segment"):
            path.write_bytes(bytes(path.stat().st_size))
        # memory is damaged: the store has it
        assert_read(None, 1, **both)
        found = open_checkpoint(version.path)
        np.testing.assert_array_equal(found["large"].values, content()["large"])


def test_without_a_key_nothing_is_in_memory_and_the_session_goes_on(memory: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    with dask.config.set({KEY_FILE: write_key(key)}):
        session, _ = run("encrypt")
        with session:
            session.commit()
            key.rename(tmp_path / "away")
            with pytest.raises(CheckpointError, match=r"key"):
                session.commit()
            folder, _ = home()
            assert len(read_records(str(folder))) == 1
            (tmp_path / "away").rename(key)
            assert session.commit().version == 2
            assert len(read_records(str(folder))) == 1
