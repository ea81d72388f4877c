"""The processes of a study end with the one that started them, however that one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

#: Many long runs; a line when the first is done.
SCRIPT = """
from dask_hpc.sim.study import load_study, run_study

study = load_study("builtin:io-aware", overrides={"option.jobs": 400, "seed": range(500)})
run_study(study, jobs=2, progress=lambda done, all: print(done, flush=True))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_study(tmp_path: Path, how: signal.Signals) -> None:
    script = tmp_path / "study.py"
    script.write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
    ) as study:  # fmt: skip
        assert study.stdout is not None
        try:
            assert study.stdout.readline() == "1\n"
            children = psutil.Process(study.pid).children(recursive=True)
            assert len(children) >= 2
            study.send_signal(how)
            assert study.wait(timeout=60) != 0
        finally:
            study.kill()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
