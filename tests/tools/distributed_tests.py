"""Runs distributed's own tests on stock, then with ``dask_hpc.preload``: ``make test-distributed``.

Neither its wheel nor its source package has them, so they are cloned from its repository, at the tag of the
installed release, into ``build/distributed``; ``--source`` names a clone that is there already. The installed
distributed is what is tested. What fails with the preload, again when only such tests run, and not without it
is listed, and ends with 1.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import distributed

REPOSITORY = "https://github.com/dask/distributed"
BUILD = Path(__file__).resolve().parents[2] / "build" / "distributed"
#: Files of a run that names none.
CHOSEN = 5
WAYS = {"stock": "[]", "with the preload": '["dask_hpc.preload"]'}


def fetched(version: str) -> Path:
    """A clone of the repository at the tag of a release, made unless it is there.

    Raises
    ------
    SystemExit
        When it cannot be made; the message has how to do without.
    """
    clone = BUILD / f"clone-{version}"
    if not clone.exists():
        command = ["git", "clone", "--quiet", "--depth", "1", "--branch", version, REPOSITORY, str(clone)]
        if subprocess.run(command).returncode:
            raise SystemExit(f"no clone of {REPOSITORY} at {version}: name one with --source FOLDER")
    return clone


def laid_out(source: Path) -> Path:
    """A folder with the tests and their settings, from which the installed distributed is imported."""
    folder = BUILD / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source / "distributed" / "tests", folder / "tests")
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(source / name, folder / name)
    return folder


def chosen(names: Iterable[str], there: Sequence[str], seed: int) -> list[str]:
    """The named files, with or without their suffix; some at random when none is named."""
    wanted = [name if name.endswith(".py") else f"{name}.py" for name in names]
    missing = sorted(set(wanted) - set(there))
    if missing:
        raise SystemExit(f"no such files in distributed's tests: {', '.join(missing)}")
    return wanted or sorted(random.Random(seed).sample(there, min(CHOSEN, len(there))))


def failed(report: str) -> tuple[set[str], int]:
    """Names of the tests that failed, and how many there were, from pytest's report in JUnit's format."""
    cases = list(ElementTree.fromstring(report).iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return {f"{case.get('classname')}::{case.get('name')}" for case in bad}, len(cases)


def run(folder: Path, preload: str, tests: Sequence[str]) -> tuple[set[str], int]:
    """Run tests with a preload of schedulers: what failed, and of how many."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--junitxml", str(report), "--durations=0", *tests]
    environment = {**os.environ, "DASK_DISTRIBUTED__SCHEDULER__PRELOAD": preload}
    subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    if not report.exists():
        raise SystemExit(f"pytest did not come to an end: {' '.join(command)}")
    return failed(report.read_text(encoding="utf-8"))


def main() -> int:
    """Run both ways, and say what differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", help="files of distributed/tests; some at random by default")
    parser.add_argument("--source", type=Path, help="a clone of distributed's repository")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    folder = laid_out(options.source or fetched(distributed.__version__))
    there = sorted(path.name for path in (folder / "tests").glob("test_*.py"))
    files = chosen(options.files, there, options.seed)
    print(f"distributed {distributed.__version__}, seed {options.seed}: {' '.join(files)}", flush=True)
    found: dict[str, set[str]] = {}
    counts = []
    for way, preload in WAYS.items():
        found[way], count = run(folder, preload, [f"tests/{name}" for name in files])
        counts.append(count)
        print(f"{way}: {count} tests, {len(found[way])} failed", flush=True)
    if not counts[0] or len(set(counts)) > 1:
        raise SystemExit("nothing was compared: needed are tests, and as many with the preload as without")
    stock, ours = found.values()
    again = ours - stock
    if again:
        names = sorted({name.rpartition("::")[2].partition("[")[0] for name in again})
        tests = [*[f"tests/{name}" for name in files], "-k", " or ".join(names)]
        again &= run(folder, WAYS["with the preload"], tests)[0]
    for name in sorted(again):
        print(f"fails with the preload alone: {name}")
    return 1 if again else 0


if __name__ == "__main__":
    sys.exit(main())
