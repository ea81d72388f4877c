"""JupyterLab and a headless Chromium for the tests of this folder.

They carry the marker ``browser`` and are run by ``make test-browser`` in a process of their own: playwright
keeps an event loop on the main thread while a browser is open, which other tests could not stand. Where
Chromium, playwright or JupyterLab is not installed they are skipped with the reason.

Screenshots are kept below ``$DASK_HPC_SCREENSHOTS``, or in pytest's folder of temporary files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import chromium
import lab_server
import pytest
from lab_page import LabPage, write

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    OpenNotebook = Callable[..., LabPage]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed and report.when == "call":
        _keep_evidence(item, report)
    return report


def _keep_evidence(item: pytest.Item, report: pytest.TestReport) -> None:
    """Pictures of the pages of a test that has failed, and what was said in them and in the server."""
    found = getattr(item, "funcargs", {})
    if "pages" in found:
        found["pages"].failed = True
        name = re.sub(r"[^\w-]+", "-", item.name)[:80]
        for i, page in enumerate(found["pages"].all):
            page.screenshot(path=found["screenshots"] / f"failed-{name}-{i}.png", full_page=True)
        title = f"consoles; screenshots are in {found['screenshots']}"
        report.sections.append((title, "\n".join(found["pages"].said)))
    if "server" in found:
        report.sections.append(("end of the log of JupyterLab", found["server"].log[-5000:]))


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless browser with a fresh profile."""
    if why := chromium.missing():
        pytest.skip(why)
    with chromium.browser(tmp_path_factory.mktemp("home")) as program:
        yield program


@pytest.fixture(scope="package")
def server(repository: Path) -> Iterator[lab_server.JupyterServer]:
    """A running JupyterLab."""
    if why := lab_server.missing():
        pytest.skip(why)
    roots = [repository, repository / "policies", repository / "widgets"]
    with lab_server.JupyterServer(roots) as running:
        yield running


@pytest.fixture(scope="package")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where pictures of pages are kept."""
    named = os.environ.get("DASK_HPC_SCREENSHOTS")
    folder = Path(named).absolute() if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def pages(browser: Browser, screenshots: Path) -> Iterator[chromium.Pages]:
    """Opens pages; fails the test when one of them had anything to complain of."""
    opened = chromium.Pages(browser)
    yield opened
    opened.close()
    assert opened.faults == []


@pytest.fixture(scope="module")
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    """A page without JupyterLab, one for all tests of a module, as wide as its ``WIDTH`` says."""
    opened = chromium.Pages(browser)
    yield opened.open(width=request.module.WIDTH)
    opened.close()
    assert opened.faults == []


@pytest.fixture(scope="package")
def left() -> list[Page]:
    """The page with JupyterLab that a test has left to the next, if there is one."""
    return []


@pytest.fixture
def open_notebook(
    request: pytest.FixtureRequest, pages: chromium.Pages, server: lab_server.JupyterServer, left: list[Page]
) -> Iterator[OpenNotebook]:
    """Opens a notebook with these cells in JupyterLab, light, on a page so wide; runs them."""
    labs: list[LabPage] = []

    def opened(*cells: str, width: int = 1200, run: int | None = None) -> LabPage:
        name = f"{request.node.originalname}-{len(pages.all)}.ipynb"
        write(server.notebooks / name, list(cells))
        server.theme(dark=False)
        # while the page is loaded
        server.begin(name)
        before = left.pop() if left else None
        page = pages.open(width=width, page=before)
        lab = LabPage(page, server, name, left=before is not None)
        labs.append(lab)
        # while cells run, before anything is measured
        server.reserve()
        lab.run(len(cells) if run is None else run)
        return lab

    yield opened
    # first the pages, which would complain of kernels that vanish
    if labs and not pages.failed and not labs[0].reloaded:
        labs[0].leave()
        left.append(pages.leave(labs[0].page))
    pages.close()
    server.shut_kernels()
