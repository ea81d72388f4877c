"""The examples in the README run as printed, from a file of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_readme_runs_as_printed(number, tmp_path):
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[number], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = {0: "21065.8331", 1: "4 88.622692545275"}
    assert expected[number] in done.stdout, done.stdout


def test_the_producer_of_the_readme_has_25_lines():
    assert [len(text.splitlines()) for text in EXAMPLES] == [10, 25]
