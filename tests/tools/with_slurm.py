"""Runs a command where there is a Slurm, a private one, that Dask's configuration describes.

    python tests/tools/with_slurm.py COMMAND [ARGUMENT ...]

The exit code is that of the command, or 1 when no Slurm could be started.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from private_slurm import PrivateSlurm, PrivateSlurmError


def dask_settings(folder: Path) -> dict[str, str]:
    """Environment that tells dask-jobqueue what it must know of this machine; workers write into `folder`."""
    return {
        "DASK_JOBQUEUE__SLURM__INTERFACE": "lo",
        "DASK_JOBQUEUE__SLURM__LOCAL_DIRECTORY": str(folder),
        "DASK_JOBQUEUE__SLURM__LOG_DIRECTORY": str(folder / "logs"),
    }


def main(command: list[str]) -> int:
    """See the module; returns the exit code."""
    if not command:
        print("usage: with_slurm.py COMMAND [ARGUMENT ...]", file=sys.stderr)
        return 2
    try:
        with PrivateSlurm() as slurm, tempfile.TemporaryDirectory() as folder:
            environment = {**slurm.environment, **dask_settings(Path(folder))}
            return subprocess.run(command, env=environment, check=False).returncode
    except PrivateSlurmError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
