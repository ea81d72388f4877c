"""What is installed from a wheel has all that it needs: templates, styles, settings."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

#: Kinds of files that are data, and where the sources of each package are.
DATA = {".html", ".css", ".yaml", ".typed"}
PACKAGES = {"dask_hpc": "dask_hpc", "dask_hpc_policies": "policies", "dask_hpc_widgets": "widgets"}

_RENDER = """
import sys
sys.path.insert(0, sys.argv[1])
import dask_hpc, dask_hpc_policies, dask_hpc_widgets
for package in (dask_hpc, dask_hpc_policies, dask_hpc_widgets):
    assert package.__file__.startswith(sys.argv[1]), package.__file__
from dask_hpc.report import build_report
from dask_hpc.trace.records import Header, NodeEvent
from dask_hpc_widgets import static
records = [Header(), NodeEvent(t_s=0.0, nodes=("w0",)), NodeEvent(t_s=1.0, nodes=("w0",), job="a")]
page = build_report(records)
assert "<svg" in page and "prefers-color-scheme" in page
assert "Nothing was decided yet" in static.decisions_html([], 0.0)
assert ".dask-hpc table" in static.policies_html(dask_hpc.policies())
status = {"policy": {"policy": "fcfs"}, "policy_failure": "", "jobs_running": 0, "jobs_pending": 0}
node = {"id": "w0", "job": "a", "state": "up", "workers": 1, "nthreads": 1, "memory_bytes": 0}
status |= {"now_s": 1.0, "pool_nodes": 1, "nodes": [node | {"walltime_left_s": None}]}
assert 'ul class="nodes"' in static.runtime_html("here", {"status": status})
"""


@pytest.fixture(scope="module")
def unpacked(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a wheel, as an installation has them."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_every_file_of_data_is_in_the_wheel(repository: Path, unpacked: Path) -> None:
    found = set()
    for package, root in PACKAGES.items():
        source = repository / (package if root == package else f"{root}/{package}")
        found |= {
            Path(package) / path.relative_to(source) for path in source.rglob("*") if path.suffix in DATA
        }
    assert Path("dask_hpc/report/templates/report.html") in found
    assert [str(path) for path in sorted(found) if not (unpacked / path).is_file()] == []


def test_pages_and_tables_come_out_of_an_installed_wheel(unpacked: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RENDER, str(unpacked)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
