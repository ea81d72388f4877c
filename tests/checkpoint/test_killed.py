"""Whatever is killed when: there are whole versions only, and the newest is what was written.

SIGKILL leaves to the system what was written but not made durable, a power cut does not: so the order of
writing, syncing and renaming is looked at too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = REPOSITORY / "tests" / "tools"


@pytest.fixture
def fast_folder() -> Iterator[str]:
    """A folder in memory where there is one: a process that is killed leaves the same in it."""
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield folder


def run(*arguments: str, timeout_s: float = 200) -> str:
    roots = [*(str(REPOSITORY / part) for part in (".", "policies", "widgets")), str(TOOLS)]
    done = subprocess.run(
        [sys.executable, *arguments],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(roots)),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_killed_at_any_write_there_are_whole_versions_only(fast_folder: str) -> None:
    points = int(run(str(TOOLS / "killed_writer.py"), fast_folder))
    # folders, metadata, blocks, index, manifest, renames, and what is collected
    assert points > 100


def test_a_session_killed_at_any_write_goes_on_from_its_newest_whole_version(fast_folder: str) -> None:
    alone, several = map(int, run(str(TOOLS / "killed_session.py"), fast_folder).split())
    assert alone > 40
    assert several > 20


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_a_cluster_killed_between_two_writes_goes_on_from_its_newest_whole_version(fast_folder: str) -> None:
    # every one of them, or of other levels: python tests/tools/killed_levels.py FOLDER L1,L2,L3 1
    told = run(str(TOOLS / "killed_levels.py"), fast_folder, "L1,L2,L3", "30", timeout_s=600)
    of_worker, of_scheduler = map(int, told.split())
    assert of_worker > 0
    assert of_scheduler > 0


TRACED = """
import os, sys
from pathlib import Path
from killed_writer import content
from saved import save
from write_points import Points
points = Points().wrap()
save(content(1), Path(sys.argv[1]))
print(*(f"{name} {path}" for name, path in points.done), sep="\\n")
"""


def test_all_is_durable_before_the_manifest_and_the_manifest_before_the_name(tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = [line.split(" ", 1) for line in run("-c", TRACED, str(store)).splitlines()]
    renamed = [place for place, (name, _) in enumerate(done) if name == "rename"]
    to_manifest, to_version = renamed
    draft = done[to_version][1]
    assert draft.startswith(str(store / "field" / ".000001-"))
    written: dict[str, int] = {}
    synced: dict[str, int] = {}
    for place, (name, path) in enumerate(done):
        if name in ("fsync", "fdatasync"):
            synced[path] = place
        elif name in ("write", "pwrite", "posix_fallocate", "ftruncate"):
            written[path] = place
        elif name in ("mkdir", "open"):
            # a new name changes its folder
            written[os.path.dirname(path)] = place
    manifests = {f"{draft}/.manifest.json", draft}
    contents = {path for path in written if path.startswith(draft)} - manifests
    assert len([path for path in contents if not path.endswith(".json")]) > 8
    for path in contents:
        assert written[path] < synced[path] < written[f"{draft}/.manifest.json"], path
    assert written[f"{draft}/.manifest.json"] < synced[f"{draft}/.manifest.json"] < to_manifest
    assert to_manifest < synced[draft] < to_version
    assert to_version < synced[str(store / "field")] < synced[str(store)]
    # that of a store that was not there before
    assert synced[str(tmp_path)] < to_manifest
