"""Notebooks run from top to bottom in a fresh kernel, and tell where they break off."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2] / "notebooks"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks_run", ROOT / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


runner = _load()


def written(folder: Path, *sources: str, tags: dict[int, str] | None = None) -> Path:
    """A notebook of code cells; `tags` by number of the cell."""
    notebook = nbformat.v4.new_notebook()
    for i, source in enumerate(sources):
        cell = nbformat.v4.new_code_cell(source)
        if tags and i in tags:
            cell.metadata["tags"] = [tags[i]]
        notebook.cells.append(cell)
    folder.mkdir(exist_ok=True)
    path = folder / "study.ipynb"
    nbformat.write(notebook, path)
    return path


LEAVES = "import json\nfrom pathlib import Path\nPath('study.json').write_text(json.dumps({'n': n}))"


@pytest.mark.parametrize(
    ("sources", "tags", "told"),
    [
        (["n = 1", LEAVES], {}, "0 cells have the tag 'parameters'"),
        (["n = 1", "n = 2", LEAVES], {0: "parameters", 1: "parameters"}, "2 cells have the tag"),
        (["m = 1", LEAVES], {0: "parameters"}, "the parameters cell does not set n"),
    ],
)
def test_a_notebook_that_cannot_be_run(
    tmp_path: Path, sources: list[str], tags: dict[int, str], told: str
) -> None:
    with pytest.raises(runner.NotebookError, match=told):
        runner.run(written(tmp_path, *sources, tags=tags), tmp_path, {"n": 3})


def test_parameters_replace_defaults_and_the_source_stays_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path / "in", "n = 1", LEAVES, tags={0: "parameters"})
    before = path.read_bytes()
    (tmp_path / "out").mkdir()
    cells: list[tuple[int, int]] = []
    found = runner.run(path, tmp_path / "out", {"n": 3}, lambda *cell: cells.append(cell))
    assert found == {"n": 3}
    assert cells == [(1, 3), (2, 3), (3, 3)]
    assert path.read_bytes() == before
    assert "n = 3" in (tmp_path / "out" / "study.ipynb").read_text()


def test_a_cell_that_fails_and_a_missing_result_are_told(tmp_path: Path) -> None:
    path = written(tmp_path, "n = 1", "1 / 0", tags={0: "parameters"})
    with pytest.raises(runner.NotebookError, match=r"(?s)study, cell 2: .*ZeroDivisionError"):
        runner.run(path, tmp_path, {})
    path = written(tmp_path, "n = 1", tags={0: "parameters"})
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(runner.NotebookError, match=r"study\.json was not left beside it"):
        runner.run(path, tmp_path, {})


SHOWS = "from IPython.display import display\ndisplay({}, raw=True)"


def test_of_a_widget_a_story_keeps_what_can_be_looked_at_without_a_kernel(tmp_path: Path) -> None:
    widget = {runner.WIDGET: {"model_id": "1"}, "text/plain": "Widget()"}
    twin = {**widget, "text/html": "<b>twin</b>"}
    path = written(tmp_path / "in", SHOWS.format(widget), SHOWS.format(twin), "6 * 7")
    (tmp_path / "out").mkdir()
    runner.tell(path, tmp_path / "out")
    notebook = nbformat.read(tmp_path / "out" / path.name, as_version=4)
    shown = [[dict(output.data) for output in cell.outputs] for cell in notebook.cells]
    assert shown == [[], [{"text/plain": "Widget()", "text/html": "<b>twin</b>"}], [{"text/plain": "42"}]]
    assert [cell.execution_count for cell in notebook.cells] == [1, 2, 3]
    assert not [cell for cell in notebook.cells if "execution" in cell.metadata]
    assert notebook.metadata["language_info"] == {"name": "python"}


def test_stories_come_in_order_of_their_numbers_and_applications_last(tmp_path: Path) -> None:
    for name in ("10_last", "apps/tuner", "02_first", "benchmarks/study"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.ipynb").touch()
    assert list(runner.stories(tmp_path)) == ["02_first", "10_last", "tuner"]


@pytest.mark.parametrize("name", runner.names())
def test_a_committed_notebook_has_one_parameters_cell_and_ran_without_errors(name: str) -> None:
    notebook = nbformat.read(runner.HERE / f"{name}.ipynb", as_version=4)
    cell = notebook.cells[runner.parameters_cell(notebook, name)]
    assert "fast = False" in cell.source
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    assert all(cell.execution_count == i for i, cell in enumerate(code, 1)), "run from top to bottom"
    outputs = [output for cell in code for output in cell.outputs]
    assert not [
        output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"
    ]
    text = (runner.HERE / f"{name}.ipynb").read_text(encoding="utf-8")
    assert len(text) < 500_000, "small enough to be looked at"
    check(json.loads((runner.HERE / f"{name}.json").read_text(encoding="utf-8")))


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", runner.names())
def test_a_notebook_runs_with_small_parameters(name: str, tmp_path: Path) -> None:
    check(runner.run(runner.HERE / f"{name}.ipynb", tmp_path, runner.FAST))


def check(found: dict[str, Any]) -> None:
    """What every notebook leaves: what was run by which version with which seeds, and both sides' numbers."""
    assert found["schema"] >= 1
    assert found["dask_hpc"]
    assert found["seeds"]
    assert "published" in found
    assert found["reproduced"]


def test_the_command_line_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, told in (
        (["nothing"], "no notebook 'nothing'"),
        (["--set", "seeds=x"], "VALUE must be JSON"),
        (["--set", "1a=3"], "not NAME=VALUE"),
        (["--stories", "esp"], "no notebook 'esp'; there are 00_tour"),
        (["--stories", "--fast"], "--stories have no parameters"),
    ):
        with pytest.raises(SystemExit):
            runner.main(arguments)
        assert told in capsys.readouterr().err
