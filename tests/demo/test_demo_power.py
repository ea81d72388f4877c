"""The act of power: its sums by hand, and that a corridor is kept better than by chance."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from command_line import refused, run

from dask_hpc.demo.corridor import kept

_COMMAND = "from dask_hpc.cli import hpc; hpc(prog_name='dask hpc')"


def test_what_is_outside_is_counted_from_sample_to_sample():
    rows = [(0.0, 100.0, 200.0), (2.0, 300.0, 400.0)]
    draw = [(-0.5, 150.0), (0.5, 250.0), (1.0, 150.0), (2.5, 250.0), (3.5, 450.0), (4.2, 999.0)]
    # 50 W above for half a second; 50 W below for one; 50 W above for the last half
    found = kept(draw, rows, 4.0, 7)
    assert (found.outside_ws, found.outside_s, found.tasks) == (100.0, 2.0, 7)
    assert found.energy_j == 150 + 125 + 225 + 250 + 225


def test_an_act_that_there_is_not_is_refused_in_one_line():
    refused(run("demo", "--only", "heat"), 1, "no act 'heat' (--only); allowed: three-users, ")


@pytest.mark.slow
def test_a_corridor_that_moves_is_kept_beside_stock_dask_that_knows_none(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            _COMMAND,
            "demo",
            "--fast",
            "--only",
            "power",
            "--json",
            "--report",
            "report.html",
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["power"]
    # stock draws what it draws; how well the corridor is kept beside other tests is not what is tried here
    assert found["stock_outside_ws"][0] > 0
    assert found["outside_ws"][0] >= 0
    # who waits for watts takes longer, beside other tests much longer: nodes are idle meanwhile
    assert 0 < found["energy_kj"][0] <= 4 * found["stock_energy_kj"][0]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Watts of all nodes over time, and the bounds" in page
