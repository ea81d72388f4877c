"""Breaks chosen lines of the product, one at a time, and says which no test notices: ``make mutants``.

Each row of ``mutants.toml`` names a file, a text that stands there once, what is put in its place, and the
tests that must fail then. Rows are worked on in copies of the source tree, several at a time, one copy each;
the tree itself is never touched. First all named tests run with nothing broken: a test that fails anyway
would notice everything.

Exits with 1 when more than `MOST_SURVIVORS` rows survive, and with 2 when a row cannot be judged: its text is
not there, or its tests fail unbroken or cannot be collected.
"""

from __future__ import annotations

import argparse
import compileall
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_suffix(".toml")
#: Of all rows so many may go unnoticed.
MOST_SURVIVORS = 2
#: A broken line may also be noticed by a test that does not end.
LIMIT_S = 240
#: All of them, with nothing broken, must end in this time.
ALL_LIMIT_S = 1200
#: What is copied: the product, its tests, and what these read.
COPIED = ("dask_hpc", "policies", "widgets", "tests", "notebooks", "README.md", "pyproject.toml")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*", "node_modules")
_PASSED, _FAILED = 0, 1


@dataclass(frozen=True, slots=True)
class Mutant:
    """One row: a line, how it is broken, and who must notice."""

    file: str
    find: str
    replace: str
    #: Arguments of pytest, separated by spaces.
    tests: str
    #: What a user would suffer from it.
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a row."""

    mutant: Mutant
    #: ``killed``, ``survived``, or why it could not be judged.
    text: str
    took_s: float


def table(path: Path = TABLE) -> list[Mutant]:
    """All rows.

    Raises
    ------
    TypeError
        When a row lacks a field or has one that is not known.
    """
    return [Mutant(**row) for row in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]]


def wrong(mutants: Iterable[Mutant], root: Path = ROOT) -> list[str]:
    """Rows that break nothing, or not one place: one sentence each."""
    found = []
    for mutant in mutants:
        path = root / mutant.file
        count = path.read_text(encoding="utf-8").count(mutant.find) if path.is_file() else 0
        if count != 1:
            found.append(f"{mutant.file} has {mutant.find!r} {count} times; it must be there once")
        if mutant.find == mutant.replace:
            found.append(f"{mutant.file}: {mutant.find!r} is replaced by itself")
        absent = [name for name in mutant.tests.split() if not _is_there(name, root)]
        found += [f"{mutant.file}: there is no {name}" for name in absent]
    return found


def _is_there(tests: str, root: Path) -> bool:
    """Whether there is such a file or folder of tests, and in the file such a test."""
    file, _, test = tests.partition("::")
    name, path = test.rpartition("::")[2].partition("[")[0], root / file
    return path.exists() and (not test or f"def {name}(" in path.read_text(encoding="utf-8"))


def copy_tree(target: Path, root: Path = ROOT) -> Path:
    """A copy of the sources in the empty folder `target`, compiled so that a changed file is noticed."""
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=_LEFT_OUT)
        elif source.exists():
            shutil.copy2(source, target / name)
    # the time of a file says too little: it may be broken and mended within a second
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(target, quiet=2, invalidation_mode=mode)
    return target


def run_tests(
    tree: Path, tests: Iterable[str], limit_s: float = LIMIT_S
) -> subprocess.CompletedProcess[str] | None:
    """Run tests of a copy; None when they have not ended after `limit_s` seconds."""
    # no row needs what runs notebooks, which takes longer to load than most tests
    without = ["-p", "no:cacheprovider", "-p", "no:nbmake"]
    how = ["-x", "-q", *without, "--no-header", "--tb=short", "--show-capture=no"]
    command = [sys.executable, "-m", "pytest", *how]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("CI", None)
    with subprocess.Popen(
        [*command, *tests],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return None
    return subprocess.CompletedProcess(command, process.returncode, said)


def judge(mutant: Mutant, tree: Path) -> Verdict:
    """Break the line in a copy of the tree, run the tests, mend it."""
    path = tree / mutant.file
    whole = path.read_text(encoding="utf-8")
    began_s = time.monotonic()
    try:
        path.write_text(whole.replace(mutant.find, mutant.replace), encoding="utf-8")
        done = run_tests(tree, mutant.tests.split())
    finally:
        path.write_text(whole, encoding="utf-8")
    took_s = time.monotonic() - began_s
    if done is None or done.returncode == _FAILED:
        return Verdict(mutant, "killed", took_s)
    if done.returncode == _PASSED:
        return Verdict(mutant, "survived", took_s)
    return Verdict(mutant, f"pytest ended with {done.returncode}: {done.stdout[-2000:]}", took_s)


def unbroken(mutants: Iterable[Mutant], tree: Path) -> str | None:
    """Why the tests say nothing about a broken line: they fail with none; None when they pass."""
    tests = dict.fromkeys(name for mutant in mutants for name in mutant.tests.split())
    done = run_tests(tree, tests, limit_s=ALL_LIMIT_S)
    if done is None:
        return f"the tests, with nothing broken, do not end within {ALL_LIMIT_S} s"
    return None if done.returncode == _PASSED else f"with nothing broken: {done.stdout[-3000:]}"


def run(mutants: list[Mutant], processes: int, root: Path = ROOT) -> int:
    """Judge rows in so many copies at once, print what becomes of each; returns the exit code."""
    if found := wrong(mutants, root):
        print(*found, sep="\n")
        return 2
    processes = min(processes, len(mutants))  # a share of none would be the whole suite
    trees: SimpleQueue[Path] = SimpleQueue()

    def judged(mutant: Mutant) -> Verdict:
        tree = trees.get()
        try:
            return judge(mutant, tree)
        finally:
            trees.put(tree)

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(processes) as pool:
        copies = [copy_tree(Path(folder, str(number)), root) for number in range(processes)]
        shares = [mutants[number::processes] for number in range(processes)]
        for why in pool.map(unbroken, shares, copies):
            if why is not None:
                print(why)
                return 2
        for copy in copies:
            trees.put(copy)
        verdicts = []
        for verdict in pool.map(judged, mutants):
            verdicts.append(verdict)
            text = verdict.text.partition(":")[0]
            print(
                f"{text:9} {verdict.took_s:5.1f} s  {verdict.mutant.file}: {verdict.mutant.why}", flush=True
            )
    return summary(verdicts)


def summary(verdicts: list[Verdict]) -> int:
    """Print who survived and what could not be judged; returns the exit code."""
    survivors = [verdict.mutant for verdict in verdicts if verdict.text == "survived"]
    unclear = [verdict for verdict in verdicts if verdict.text not in ("survived", "killed")]
    for mutant in survivors:
        print(
            f"\nsurvived: {mutant.file}: {mutant.why}\n- {mutant.find}\n+ {mutant.replace}\n  {mutant.tests}"
        )
    for verdict in unclear:
        print(f"\nnot judged: {verdict.mutant.file}: {verdict.mutant.why}\n{verdict.text}")
    killed = len(verdicts) - len(survivors) - len(unclear)
    took_s = sum(verdict.took_s for verdict in verdicts)
    print(f"\n{killed} of {len(verdicts)} killed, {len(survivors)} survived; {took_s:.0f} s of tests")
    if unclear:
        return 2
    return 1 if len(survivors) > MOST_SURVIVORS else 0


def main() -> int:
    """See the module; returns the exit code."""
    parser = argparse.ArgumentParser(description="Break chosen lines, and see which of them no test notices.")
    parser.add_argument("--only", default="", help="rows whose file or reason contains this")
    parser.add_argument("--processes", type=int, default=2, help="copies worked on at once (default 2)")
    options = parser.parse_args()
    mutants = [one for one in table() if options.only in one.file or options.only in one.why]
    if not mutants:
        parser.error(f"no row of {TABLE.name} contains {options.only!r}")
    return run(mutants, options.processes)


if __name__ == "__main__":
    sys.exit(main())
