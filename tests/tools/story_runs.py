"""Runs a story notebook as users are told to test theirs: by nbmake, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parents[2]
#: The sources under test, also where another version is installed.
SOURCES = os.pathsep.join(str(ROOT / folder) for folder in ("", "policies", "widgets"))
#: What a story may take on two cores beside another one; a single cell that takes longer is named by nbmake.
LIMIT_S = 200
CELL_LIMIT_S = 160


def nbmake(source: Path, folder: Path, environment: Mapping[str, str] | None = None) -> Any:
    """Run a copy of `source` in the empty `folder`; returns it with its new outputs.

    Raises
    ------
    AssertionError
        When a cell fails or takes too long, with what nbmake says, or when files were left.
    subprocess.TimeoutExpired
        When the whole takes too long.
    """
    copy = folder / source.name
    copy.write_bytes(source.read_bytes())
    command = [
        sys.executable, "-m", "pytest", "--nbmake", "--overwrite", f"--nbmake-timeout={CELL_LIMIT_S}",
        "-p", "no:cacheprovider", f"--rootdir={folder}", copy.name,
    ]  # fmt: skip
    variables = {**(os.environ if environment is None else environment), "PYTHONPATH": SOURCES}
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in folder.iterdir()] == [source.name], "a story leaves no files"
    return nbformat.read(copy, as_version=4)


def texts(notebook: Any) -> str:
    """All that its cells have written and shown as text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)
