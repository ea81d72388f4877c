"""ESP, a hundred times as fast, inside one allocation, on workers that ``srun`` has started."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from outside import PATHS

#: One job: scheduler, sixteen workers and the comparison.
SCRIPT = """
    {python} -m distributed.cli.dask_scheduler --host 127.0.0.1 --port 0 --no-dashboard \\
        --scheduler-file {folder}/scheduler.json &
    scheduler=$!
    until [ -s {folder}/scheduler.json ]; do sleep 0.2; done
    srun --ntasks=16 --overcommit {python} -m distributed.cli.dask_worker --host 127.0.0.1 --no-dashboard \\
        --no-nanny --nthreads 1 --memory-limit 0 --local-directory {folder} \\
        --scheduler-file {folder}/scheduler.json &
    workers=$!
    {python} -m dask hpc parity builtin:esp-10 --speed {speed} --task-length "{length}" --policy {policy} \\
        --malleable-share {malleable} --cluster {folder}/scheduler.json --json
    code=$?
    kill $workers $scheduler
    wait
    exit $code
"""


#: Speed and length of tasks of one run after the other; see the test outside of Slurm.
SCALES = (("100", "120 ms"), ("100", "120 ms"), ("33", "363 ms"), ("20", "600 ms"))


def _run(cluster: Any, folder: Path, **choice: object) -> tuple[str, str, dict[str, Any]]:
    """Final state of the job, what it complained of, and what it found."""
    script = SCRIPT.format(python=sys.executable, folder=folder, **choice)
    (folder / "job.sh").write_text("#!/bin/sh\n" + textwrap.dedent(script))
    environment = f"--export=ALL,PYTHONPATH={PATHS},DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=False"
    files = (f"--output={folder}/out", f"--error={folder}/err", f"--chdir={folder}")
    number = int(cluster.submit(f"sh {folder}/job.sh", "--nodes=6", "--exclusive", environment, *files))
    state = cluster.wait_for(number, "COMPLETED", "FAILED", "TIMEOUT", timeout_s=180)
    said = (folder / "err").read_text()[-3000:]
    return state, said, json.loads((folder / "out").read_text() or "{}")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("policy", "malleable", "changes"), [("easy", 0, 30), ("pwma-fpsma", 1, 51)])
def test_esp_in_one_allocation_does_the_same_as_simulated(
    cluster: Any, tmp_path: Path, policy: str, malleable: int, changes: int
) -> None:
    for number, (speed, length) in enumerate(SCALES):
        folder = tmp_path / str(number)
        folder.mkdir()
        state, said, found = _run(
            cluster, folder, policy=policy, malleable=malleable, speed=speed, length=length
        )
        assert found, said
        if found["same_sequence"]:
            break
    wrong = {name: found[name] for name in ("missing", "extra", "swaps", "close_events", "task_overrun")}
    assert found["same_sequence"], wrong
    assert len(found["live"]) == found["changes"] == changes
    # what is claimed, and what is not: see the test outside of Slurm
    assert 0.99 < found["makespan_ratio"] < 2.0, wrong
    assert (found["holds"], state) == (
        (True, "COMPLETED") if found["makespan_ratio"] <= 1.1 else (False, "FAILED")
    ), said
