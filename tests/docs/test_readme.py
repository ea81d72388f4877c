"""The texts: every example runs as printed from a file of its own, every link leads somewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from outside import FORKED

from dask_hpc.cli import hpc

ROOT = Path(__file__).resolve().parents[2]
#: Folders that hold no texts of ours.
_NOT_OURS = {".venv", ".venv-previous", ".git", "build", ".pytest_cache", ".hypothesis", ".ipynb_checkpoints"}
TEXTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in sorted(ROOT.rglob("*.md"))
    if not _NOT_OURS & set(path.relative_to(ROOT).parts)
}
EXAMPLES = [
    (name, number, code)
    for name, text in TEXTS.items()
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
]
#: What an example prints, by its file: that of its first ones, in their order.
PRINTS = {
    "README.md": ("21065.8331", "44 0.0845"),
    "dask_hpc/checkpoint/README.md": ("store/heat/000003 has step 30 and was written in",),
    "dask_hpc/program/README.md": ("4 88.622692545275",),
    "widgets/README.md": ("212 W",),
}
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def run(code: str, folder: Path) -> str:
    """What an example prints that is run in a folder."""
    script = folder / "example.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, cwd=folder,
        env={**os.environ, **FORKED}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def links(text: str) -> list[str]:
    """Where the links and pictures of a text lead."""
    return re.findall(r"\]\(([^)\s]+)\)", _FENCED.sub("", text))


def anchors(text: str) -> set[str]:
    """What the headings of a text are called in links to them."""
    headings = re.findall(r"^#+ +(.*)$", _FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.strip().lower()).replace(" ", "-") for one in headings}


def test_the_readme_is_read_to_its_end():
    assert len(TEXTS["README.md"].splitlines()) <= 200
    assert {(name, len(told) - 1) for name, told in PRINTS.items()} <= {one[:2] for one in EXAMPLES}


@pytest.mark.parametrize(
    ("name", "number", "code"), EXAMPLES, ids=[f"{name}-{number}" for name, number, _ in EXAMPLES]
)
def test_an_example_runs_as_printed(name, number, code, tmp_path):
    said = run(code, tmp_path)
    told = PRINTS.get(name, ())[number : number + 1]
    assert all(text in said for text in told), said


def test_a_program_that_has_written_its_last_version_has_nothing_to_do_when_it_is_run_again(tmp_path):
    code = next(code for name, _, code in EXAMPLES if name == "dask_hpc/checkpoint/README.md")
    assert "has step 30" in run(code, tmp_path)
    assert run(code, tmp_path) == ""


def test_ten_lines_and_simulations_in_25_lines_are_that_long():
    lengths = {(name, number): len(code.splitlines()) for name, number, code in EXAMPLES}
    assert lengths["README.md", 0] == 10
    assert lengths["README.md", 1] <= 25
    assert lengths["dask_hpc/program/README.md", 0] == 25


@pytest.mark.parametrize("name", TEXTS)
def test_every_link_leads_somewhere(name):
    dead = []
    for link in links(TEXTS[name]):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (ROOT / name).parent / target if target else ROOT / name
        if not path.exists():
            dead.append(link)
        elif anchor and anchor not in anchors(path.read_text(encoding="utf-8")):
            dead.append(f"{link}: no such heading")
    assert dead == []


def test_every_readme_is_reached_from_the_first_one():
    found, todo = set(), ["README.md"]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        for link in links(TEXTS[name]):
            target = (ROOT / name).parent / link.partition("#")[0]
            target = target / "README.md" if target.is_dir() else target
            if target.suffix == ".md" and target.exists():
                todo.append(str(target.resolve().relative_to(ROOT)))
    assert set(TEXTS) - found == set()


def test_the_policies_that_the_readme_compares_differ():
    command = re.search(r"`dask hpc (compare [^`]*)`", TEXTS["README.md"])[1]
    done = CliRunner().invoke(hpc, [*command.split(), "--json"])
    assert done.exit_code == 0, done.output
    makespans_s = [one["makespan_s"] for one in json.loads(done.stdout)["runs"]]
    assert len(set(makespans_s)) == len(makespans_s) > 1


def test_what_is_called_a_file_in_the_help_of_rules_is_one(tmp_path):
    (tmp_path / "series.csv").write_text("t_s,price,carbon\n0,50,30\n3600,150,80\n")
    said = " ".join(CliRunner().invoke(hpc, ["power", "plan", "--help"]).stdout.split())
    rules = re.findall(r"\{[^}]*\}", said)
    (tmp_path / "rules.yaml").write_text(f"[{', '.join(rules)}]")
    assert "--rules FILE" in said
    given = ["power", "plan", str(tmp_path / "series.csv"), "--rules", str(tmp_path / "rules.yaml"), "--json"]
    (_, lower_w, _), (_, _, upper_w) = json.loads(CliRunner().invoke(hpc, given).stdout)["steps"]
    assert (lower_w, upper_w) == (3000, 2000)
