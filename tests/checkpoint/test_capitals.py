"""File systems that know no case: what differs by capitals alone is one folder there."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.array as da
import pytest
import xarray as xr
from saved import save
from unchanged import unchanged

from dask_hpc.checkpoint import versions
from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.store import Store
from dask_hpc.errors import CheckpointError

FIELD = da.arange(20, chunks=6)


def test_a_name_that_differs_by_capitals_alone_is_refused_where_its_file_system_takes_both_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    save(FIELD, tmp_path, "Field")
    save(FIELD, tmp_path, "field")
    (plan, _), listdir = describe(FIELD, "field"), os.listdir

    def alike(path: Any) -> list[str]:
        """As a file system lists what it has made one folder of both."""
        return ["Field"] if path == tmp_path else listdir(path)

    def refused(path: Any) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    with monkeypatch.context() as patch, unchanged(tmp_path):
        patch.setattr(os, "listdir", alike)
        with pytest.raises(CheckpointError, match="that of checkpoint 'Field': its file system knows no"):
            store.begin(plan)
        # of what nobody may list nobody can tell
        patch.setattr(versions, "os", SimpleNamespace(listdir=refused))
        assert store.home("field") == tmp_path / "field"


def test_variables_that_differ_by_capitals_alone_are_refused_where_their_file_system_takes_both_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = xr.Dataset({"t": ("x", da.arange(4, chunks=2)), "T": ("x", da.arange(4, chunks=2))})
    save(made, tmp_path)
    (plan, _), listdir = describe(made, "field"), os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [each for each in listdir(path) if each != "T"])
    with unchanged(tmp_path), pytest.raises(CheckpointError, match=r"'T' .* knows no case"):
        Store(tmp_path).begin(plan)
