"""Our command line, run in the process of the test, and how it says no."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from dask_hpc.cli import hpc


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(hpc, list(arguments), prog_name="dask hpc", env=environment)


def read(*arguments: str) -> dict[str, Any]:
    """What a command that succeeds says as JSON."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refused(result: Result, code: int, *parts: str) -> None:
    """`result` is one line on stderr that holds `parts`, nothing on stdout, and exit code `code`."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: ")
    for part in parts:
        assert part in lines[0], lines[0]
