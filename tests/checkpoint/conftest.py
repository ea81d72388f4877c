"""What several tests of this folder start from."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for managers of this test alone; they end when it is gone."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        monkeypatch.setenv("DASK_HPC__NODE__MEMORY_FOLDER", folder)
        yield Path(folder)
