"""In a clone all packages are those of the clone, whatever was installed before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_all_packages_come_from_the_clone_though_others_are_installed(tmp_path):
    root = Path(__file__).resolve().parents[2]
    for name in ("dask_hpc_policies", "dask_hpc_widgets"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    code = (
        f"import sys; sys.path[:0] = [{str(root)!r}, {str(tmp_path)!r}]\n"
        "import dask_hpc, dask_hpc_policies, dask_hpc_widgets\n"
        "print(*(one.__file__ for one in (dask_hpc, dask_hpc_policies, dask_hpc_widgets)), sep='\\n')"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    folders = [Path(line).parents[1].relative_to(root).as_posix() for line in told.splitlines()]
    assert folders == [".", "policies", "widgets"]
