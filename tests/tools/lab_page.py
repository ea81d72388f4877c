"""JupyterLab as a person has it: a notebook is opened, its cells are run by keyboard, outputs read."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
from lab_server import JupyterServer

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Response

#: What JupyterLab and a kernel may take on a busy machine.
_LOAD_MS = 60_000
_RUN_MS = 90_000
#: Whether the notebook's kernel is there and waits.
_CONNECTED = """() => {
  const kernel = window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel;
  return kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
}"""
#: Opens a notebook beside what is open, and closes the one that is shown, saved or not; its kernel goes on.
_OPEN = """async (path) => {
  // nothing comes back: what it gives is the widget, all of which would be sent here
  await window.jupyterapp.commands.execute("docmanager:open", { path, factory: "Notebook" });
}"""
_CLOSE = "() => window.jupyterapp.shell.currentWidget.dispose()"
_IS_DARK = "() => document.body.dataset.jpThemeLight === 'false'"
#: Whether the kernel runs something.
_BUSY = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'busy'"


def _saved(answer: Response) -> bool:
    return answer.request.method == "PUT" and "/api/contents/" in answer.url and answer.ok


def write(path: Path, cells: list[str]) -> None:
    """A notebook with code cells for the kernel of this environment."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata={"kernelspec": kernel}
    )
    nbformat.write(notebook, path)


class LabPage:
    """One page with one notebook.

    Parameters
    ----------
    page
        An empty one, or one that `leave` has left.
    server
        What serves it.
    notebook
        Name of a file in the server's folder.
    address
        Where it is shown; empty: in JupyterLab.
    left
        Whether the page was left: JupyterLab is there, and opens the notebook light.
    """

    def __init__(
        self, page: Page, server: JupyterServer, notebook: str, address: str = "", *, left: bool = False
    ) -> None:
        self.page = page
        #: What JupyterLab asks a kernel then takes a while, and it complains of a notebook closed meanwhile.
        self.reloaded = False
        self.notebook = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook")
        if left:
            page.evaluate(_OPEN, notebook)
        else:
            page.goto(address or server.address(notebook), timeout=_LOAD_MS)
        self._loaded()
        if left and page.evaluate(_IS_DARK):
            self.theme(dark=False)

    def leave(self) -> None:
        """Close the notebook, and leave the page to another one: loading JupyterLab takes seconds."""
        self.page.evaluate(_CLOSE)
        self.notebook.wait_for(state="detached")

    def save(self) -> None:
        """Save the notebook, with what its cells show."""
        # shortcuts do not work from within a widget
        self.select(0)
        with self.page.expect_response(_saved, timeout=_LOAD_MS):
            self.page.keyboard.press("Control+s")

    def reload(self) -> None:
        """Load the page again; the kernel goes on."""
        self.reloaded = True
        self.page.reload(timeout=_LOAD_MS)
        self._loaded()

    def run(self, count: int) -> None:
        """Run so many cells from the first, each when the one before is done. Raises when one fails."""
        self.notebook.locator(".jp-CodeCell").first.wait_for(timeout=_LOAD_MS)
        self.select(0)
        for i in range(count):
            self.page.keyboard.press("Shift+Enter")
            self._wait(i)

    def run_one(self, cell: int) -> None:
        """Run a cell and wait for it. Raises when it fails."""
        self.select(cell)
        self.page.keyboard.press("Control+Enter")
        self._wait(cell)

    def theme(self, *, dark: bool) -> None:
        """Have JupyterLab light or dark from now on."""
        self.page.emulate_media(color_scheme="dark" if dark else "light")
        name = f"JupyterLab {'Dark' if dark else 'Light'}"
        self.page.evaluate(
            "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", name
        )
        self.page.locator(f"body[data-jp-theme-name='{name}']").wait_for(state="attached")
        # it fades for a moment, and does not bear that another theme is asked for meanwhile
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")

    def select(self, cell: int) -> None:
        """Make a cell the active one, in command mode."""
        self.notebook.locator(".jp-CodeCell .jp-InputPrompt").nth(cell).click()
        self.page.keyboard.press("Escape")

    def interrupt(self, cell: int) -> None:
        """Run a cell that takes long, and interrupt the kernel meanwhile."""
        from playwright.sync_api import expect

        self.select(cell)
        self.page.keyboard.press("Control+Enter")
        prompt = self.notebook.locator(".jp-CodeCell").nth(cell).locator(".jp-InputPrompt")
        expect(prompt).to_have_text("[*]:")
        self.page.wait_for_function(_BUSY)
        self.page.keyboard.press("i")
        self.page.keyboard.press("i")
        expect(prompt).to_have_text(re.compile(r"\[\d+\]:"))

    def restart(self) -> None:
        """Have the kernel begin anew; what cells show stays."""
        self.select(0)
        self.page.keyboard.press("0")
        self.page.keyboard.press("0")
        self.page.locator(".jp-Dialog .jp-mod-accept").click()
        self.page.wait_for_function(_CONNECTED, timeout=_LOAD_MS)

    def output(self, cell: int) -> Locator:
        """What a cell shows."""
        return self.notebook.locator(".jp-CodeCell").nth(cell).locator(".jp-Cell-outputArea")

    def keep(self, shown: Locator, path: Path) -> None:
        """A picture of all of an element, where pictures are asked for; the page is as high meanwhile."""
        if not os.environ.get("DASK_HPC_SCREENSHOTS"):
            return
        size, box = self.page.viewport_size, shown.bounding_box()
        assert size is not None
        assert box is not None
        self.page.set_viewport_size({"width": size["width"], "height": int(box["height"]) + 500})
        shown.screenshot(path=path)
        self.page.set_viewport_size(size)

    def _loaded(self) -> None:
        self.notebook.wait_for(timeout=_LOAD_MS)
        self.page.locator("#jupyterlab-splash").wait_for(state="detached", timeout=_LOAD_MS)
        # cells that are run before are quietly left out
        self.page.wait_for_function(_CONNECTED, timeout=_LOAD_MS)
        self._close_files()

    def _wait(self, cell: int) -> None:
        from playwright.sync_api import expect

        prompt = self.notebook.locator(".jp-CodeCell").nth(cell).locator(".jp-InputPrompt")
        expect(prompt).to_have_text(re.compile(r"\[\d+\]:"), timeout=_RUN_MS)
        types = [f'[data-mime-type="application/vnd.jupyter.{kind}"]' for kind in ("error", "stderr")]
        wrong = self.output(cell).locator(", ".join(types))
        if wrong.count():
            raise RuntimeError(f"cell {cell} said:\n" + "\n".join(wrong.all_inner_texts()))

    def _close_files(self) -> None:
        # the list of files takes 250 px, which on a narrow page is all there is
        files = self.page.locator("#jp-left-stack")
        if files.is_visible():
            self.page.keyboard.press("Control+b")
            files.wait_for(state="hidden")
