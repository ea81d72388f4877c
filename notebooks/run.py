"""Runs notebooks from top to bottom, each in a kernel of its own, without a browser, and keeps their outputs.

    python notebooks/run.py [NAME ...] [--fast] [--set NAME=VALUE] [--output FOLDER]
    python notebooks/run.py --stories [NAME ...] [--output FOLDER]

A notebook in ``notebooks/benchmarks`` has one cell with the tag ``parameters``, which gives its parameters
their defaults; those of the command line come in a cell after it. It leaves what it measured as JSON beside
itself, ``NAME.json``. Without options these are run in their place and saved with their outputs; with
``--output`` they, and their JSON, go to that folder, with other parameters to a temporary one.

``--stories`` are the numbered ones in ``notebooks``, and those in ``notebooks/apps``: they have no parameters
and leave nothing but their outputs. What a widget showed is kept as its static twin alone, if it has one: its
state is large, and nothing to look at without a kernel. ``05_slurm`` needs a Slurm that gives it two nodes;
``make notebooks STORIES=05_slurm`` starts one for it.

The exit code is 1 when a notebook broke off.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

HERE = Path(__file__).resolve().parent / "benchmarks"
#: Where stories are: what is shown to users, not measured.
STORIES = HERE.parent
#: Parameters of a short run, which every benchmark has.
FAST = {"fast": True}
#: How outputs refer to widgets that live in a kernel.
WIDGET = "application/vnd.jupyter.widget-view+json"


class NotebookError(Exception):
    """A notebook that cannot be run, or broke off; the message says where and why."""


def names(folder: Path = HERE) -> list[str]:
    """Names of the notebooks there are, without ending."""
    return sorted(path.stem for path in folder.glob("*.ipynb"))


def stories(folder: Path = STORIES) -> dict[str, Path]:
    """Stories by name, in order of their numbers, applications last."""
    return {path.stem: path for place in (folder, folder / "apps") for path in sorted(place.glob("*.ipynb"))}


def parameters_cell(notebook: Any, name: str) -> int:
    """Number of the cell with the tag ``parameters``.

    Raises
    ------
    NotebookError
        When there is none, or more than one.
    """
    tagged = [i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", ())]
    if len(tagged) != 1:
        raise NotebookError(
            f"{name}: {len(tagged)} cells have the tag 'parameters', one must (cell toolbar, Tags)"
        )
    return tagged[0]


def run(
    source: Path,
    folder: Path,
    parameters: Mapping[str, Any],
    progress: Callable[[int, int], None] = lambda cell, cells: None,
) -> dict[str, Any]:
    """Run the notebook `source` in `folder`, save it there with its outputs; returns the JSON that it left.

    Parameters
    ----------
    parameters
        Values that replace those of the parameters cell.
    progress
        Called with the number of the cell that begins (from 1) and that of all cells.

    Raises
    ------
    NotebookError
        When it cannot be run, a cell fails (with its number, and the error), or no JSON was left.
    """
    name = source.stem
    notebook = nbformat.read(source, as_version=4)
    place = parameters_cell(notebook, name)
    unknown = [key for key in parameters if f"{key} =" not in notebook.cells[place].source]
    if unknown:
        raise NotebookError(f"{name}: the parameters cell does not set {', '.join(unknown)}")
    given = "\n".join(f"{key} = {value!r}" for key, value in parameters.items())
    if given:
        cell = nbformat.v4.new_code_cell(f"# given when it was run\n{given}")
        notebook.cells.insert(place + 1, cell)
    left = folder / f"{name}.json"
    left.unlink(missing_ok=True)
    execute(notebook, name, folder, progress)
    nbformat.write(notebook, folder / source.name)
    try:
        found: dict[str, Any] = json.loads(left.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NotebookError(f"{name}: {left.name} was not left beside it: {error}") from None
    return found


def tell(source: Path, folder: Path, progress: Callable[[int, int], None] = lambda cell, cells: None) -> None:
    """Run the story `source` in `folder` and save it there with its outputs.

    Raises
    ------
    NotebookError
        When a cell fails (with its number, and the error).
    """
    notebook = nbformat.read(source, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    execute(notebook, source.stem, folder, progress)
    # Which Python it was run with is noise when the outputs are made again.
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, folder / source.name)


def execute(notebook: Any, name: str, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Run all cells of `notebook` in `folder`; their outputs replace those they had.

    Raises
    ------
    NotebookError
        When a cell fails (with its number, and the error).
    """
    cells = len(notebook.cells)
    client = NotebookClient(
        notebook,
        timeout=None,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
        on_cell_start=lambda cell, cell_index: progress(cell_index + 1, cells),
        store_widget_state=False,
    )
    try:
        client.execute()
    except (CellExecutionError, DeadKernelError) as error:
        failed = next((i for i, cell in enumerate(notebook.cells) if _failed(cell)), None)
        if failed is None or isinstance(error, DeadKernelError):
            raise NotebookError(f"{name}: {error}") from None
        source_text = notebook.cells[failed].source
        told = f"{error.ename}: {error.evalue}"
        raise NotebookError(f"{name}, cell {failed + 1}: {told}\n\n{source_text}") from None
    for cell in notebook.cells:
        # When each cell ran tells readers nothing, and differs each time.
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _static(output)]


def _static(output: Any) -> bool:
    """Take the widget out of an output; whether something is left to look at without a kernel."""
    data = output.get("data")
    if data is None or data.pop(WIDGET, None) is None:
        return True
    return bool(set(data) - {"text/plain"})


def _failed(cell: Any) -> bool:
    return any(output.get("output_type") == "error" for output in cell.get("outputs", ()))


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module; returns the exit code."""
    parser = argparse.ArgumentParser(description="Run notebooks and keep their outputs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="without its ending; default: all")
    parser.add_argument("--stories", action="store_true", help="those for users, not the benchmarks")
    parser.add_argument("--fast", action="store_true", help="small parameters: a look, not a measurement")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter, as JSON"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="leave results there; default: in place, with --fast or --set in a new temporary folder",
    )
    options = parser.parse_args(arguments)
    sources = stories() if options.stories else {name: HERE / f"{name}.ipynb" for name in names()}
    if unknown := [name for name in options.names if name not in sources]:
        parser.error(f"no notebook {unknown[0]!r}; there are {', '.join(sources)}")
    if options.stories and (options.fast or options.set):
        parser.error("--stories have no parameters: leave --fast and --set out")
    parameters: dict[str, Any] = dict(FAST) if options.fast else {}
    for text in options.set:
        key, equals, value = text.partition("=")
        try:
            parameters[key] = json.loads(value)
        except ValueError:
            parser.error(f'--set {text}: VALUE must be JSON, such as 3, true or "text"')
        if not (equals and key.isidentifier()):
            parser.error(f"--set {text}: not NAME=VALUE")
    # What is kept beside the notebooks is of their own parameters.
    output = options.output or (Path(tempfile.mkdtemp(prefix="notebooks-")) if parameters else None)
    failed = []
    for name in options.names or sources:
        source = sources[name]
        folder = (output or source.parent).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        began_s = time.monotonic()
        try:
            if options.stories:
                tell(source, folder, _progress(name))
            else:
                run(source, folder, parameters, _progress(name))
        except NotebookError as error:
            failed.append(name)
            print(f"\r{name:24} FAILED\n{error}", flush=True)
        else:
            print(f"\r{name:24} ok, {time.monotonic() - began_s:.1f} s{' ' * 12}", flush=True)
    print(f"broke off: {', '.join(failed) or 'none'}; results are in {output or 'their places'}")
    return 1 if failed else 0


def _progress(name: str) -> Callable[[int, int], None]:
    def show(cell: int, cells: int) -> None:
        if sys.stdout.isatty():
            print(f"\r{name:24} cell {cell} of {cells}", end="", flush=True)

    return show


if __name__ == "__main__":
    sys.exit(main())
