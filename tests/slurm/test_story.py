"""The notebook about Slurm runs on a real one, and what it tells is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from story_runs import nbmake, texts
from with_slurm import dask_settings, main

STORY = Path(__file__).resolve().parents[2] / "notebooks" / "05_slurm.ipynb"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_story_about_slurm_runs_there(cluster: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    told = texts(nbmake(STORY, folder, {**cluster.environment, **dask_settings(tmp_path)}))
    assert "Slurm is there." in told
    assert told.count("dask-worker RUNNING") == 2
    # the table at the end: what was there at once, what ran twice
    (ours,) = set(re.findall(r"^dask_hpc +(\d+) +(\d+)$", told, re.MULTILINE))
    ((there, twice),) = re.findall(r"^stock dask-jobqueue +(\d+) +(\d+)$", told, re.MULTILINE)
    assert ours == ("60", "0")
    assert int(there) < 60
    assert int(twice) > 0
    assert re.search(r"^Slurm jobs: 1\nresults there: 60$", told, re.MULTILINE)
    # nothing of it is left in the queue
    assert cluster.run("squeue", "-h", "--states=PENDING,RUNNING", "-o", "%j").split() == []


def test_the_command_needs_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err
