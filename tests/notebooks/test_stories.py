"""The story notebooks run from any folder in a fresh kernel, and what is committed can be read as it is."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from story_runs import nbmake, texts

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
STORIES = sorted(NOTEBOOKS.glob("*.ipynb")) + sorted(NOTEBOOKS.glob("apps/*.ipynb"))
#: Runs with every run of the tests, as it needs no cluster; the others are left to the slow ones.
ALWAYS = "06_simulator"
SLURM = "05_slurm"
#: Folders and addresses of the machine on which outputs were made.
HOST = re.compile(
    r"(?<![\w.:/<])/(home|root|tmp|usr|var|opt|work|Users|srv)/\w|\b(tcp|tls|inproc|https?)://[\d\[]|\b127\.0\.0\.1\b"
)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def by_name(path: Path) -> str:
    return path.stem


def test_stories_are_numbered_without_gaps() -> None:
    numbers = [path.stem.partition("_")[0] for path in NOTEBOOKS.glob("*.ipynb")]
    assert sorted(numbers) == [f"{number:02}" for number in range(len(numbers))]


@pytest.mark.parametrize("path", STORIES, ids=by_name)
def test_a_committed_story_was_run_from_top_to_bottom_without_an_error_or_a_warning(path: Path) -> None:
    cells = code(read(path))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs
    assert [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"] == []


@pytest.mark.parametrize("path", STORIES, ids=by_name)
def test_a_committed_story_is_small_and_of_no_particular_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    notebook = read(path)
    assert len(text) < 500_000
    assert "widgets" not in notebook.metadata, "no widget state"
    assert "jupyter.widget" not in text, "of a widget, its static twin alone; run.py sees to it"
    assert not [cell.id for cell in notebook.cells if "execution" in cell.metadata], "no times of cells"
    assert set(notebook.metadata["language_info"]) == {"name"}, "no version of the Python it was run with"
    shown = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
    shown = re.sub(r'"image/png": "[^"]*"', "", shown)
    assert HOST.findall(shown) == []


@pytest.mark.parametrize("path", STORIES, ids=by_name)
def test_every_code_cell_of_a_story_is_introduced_and_clusters_are_closed(path: Path) -> None:
    notebook = read(path)
    kinds = [cell.cell_type for cell in notebook.cells]
    assert notebook.cells[0].source.startswith("# ")
    alone = [i for i, kind in enumerate(kinds) if kind == "code" and kinds[i - 1] != "markdown"]
    assert alone == []
    source = "\n".join(cell.source for cell in code(notebook))
    closing = re.findall(r"^( *)cluster\.close\(\)|^( *)with .*Cluster\(", source, re.MULTILINE)
    # an application is its last cell, and lives as long as its kernel
    assert bool(closing) == ("Cluster(" in source and path.parent.name != "apps")


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=by_name)
def test_the_last_that_a_numbered_story_shows_is_a_picture(path: Path) -> None:
    shown = [output for cell in code(read(path)) for output in cell.outputs]
    assert "image/png" in shown[-1].get("data", {}), "of what it was good for"


@pytest.mark.parametrize("path", STORIES, ids=by_name)
def test_what_a_story_links_to_is_there(path: Path) -> None:
    prose = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", prose)
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert missing == []


def test_what_was_committed_ran_where_it_should() -> None:
    assert "Slurm is there." in texts(read(NOTEBOOKS / f"{SLURM}.ipynb"))
    tuner = (NOTEBOOKS / "apps" / "policy_tuner.ipynb").read_text(encoding="utf-8")
    assert "8 nodes; 1 job running, 5 waiting" in tuner, "its work is kept"


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=() if p.stem == ALWAYS else pytest.mark.slow) for p in STORIES if p.stem != SLURM],
    ids=by_name,
)
def test_a_story_runs(path: Path, tmp_path: Path) -> None:
    before, after = read(path), nbmake(path, tmp_path)
    assert [shows(cell) for cell in code(after)] == [shows(cell) for cell in code(before)]


def shows(cell: Any) -> bool:
    """Whether a cell shows something; a log may have a line more or less on a busy machine."""
    return any(output.get("name") != "stderr" for output in cell.outputs)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_the_story_about_slurm_says_where_there_is_none_and_ends_well(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    folder = tmp_path / "run"
    folder.mkdir()
    # the interpreter's own folder, and no folder of Slurm's commands
    environment = dict(os.environ, PATH=os.pathsep.join((str(Path(sys.executable).parent), str(empty))))
    environment.pop("SLURM_CONF", None)
    notebook = nbmake(NOTEBOOKS / f"{SLURM}.ipynb", folder, environment)
    assert "no Slurm here" in texts(notebook)
