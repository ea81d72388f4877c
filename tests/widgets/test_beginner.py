"""From pip to a running panel in three cells: those of the text, in an environment of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "widgets" / "README.md").read_text(encoding="utf-8")
SECTION = TEXT.split("\n## In Jupyter\n")[1].split("\n## ")[0]
CELLS = re.findall(r"```py\n(.*?)```", SECTION, re.DOTALL)
WIDGET = "application/vnd.jupyter.widget-view+json"


def test_the_path_has_three_cells():
    assert len(CELLS) == 3
    assert CELLS[0].startswith("%pip install")


@pytest.mark.slow
def test_three_cells_lead_from_pip_to_a_panel(tmp_path, monkeypatch):
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    # what a notebook has before its first cell
    subprocess.run([python, "-m", "pip", "install", "--quiet", "ipykernel"], check=True)
    kernel = tmp_path / "jupyter" / "kernels" / "beginner" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    command = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": command, "display_name": "beginner", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    notebook.cells.append(nbformat.v4.new_code_cell("client.close(); cluster.close()"))
    resources = {"metadata": {"path": str(ROOT)}}
    NotebookClient(notebook, kernel_name="beginner", timeout=400, resources=resources).execute()
    twin, panel = (out["data"] for out in notebook.cells[2].outputs if out.output_type == "display_data")
    assert WIDGET in panel
    assert "4 nodes; 0 jobs running, 0 waiting" in re.sub("<[^>]*>", "", twin["text/html"])
