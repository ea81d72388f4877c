"""Results that hang on others begin although most workers were killed a moment ago."""

from __future__ import annotations

import random
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from distributed import Client, LocalCluster

from dask_hpc.chaos import kin


def test_a_family_waits_for_a_second_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):

        def sleep(seconds: float) -> None:
            cluster.scale(2)
            time.sleep(seconds)

        monkeypatch.setattr(kin, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
        made = kin.family(client, "scattered", 0, 4, str(notes), random.Random(1))
        assert made.first(client).isdisjoint(made.then(client))
