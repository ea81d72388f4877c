"""The panel as a page of Voila: alive, readable, with nothing fetched from elsewhere."""

from __future__ import annotations

import re

import axe
import measures
import pytest
from lab_page import write

pytestmark = pytest.mark.browser

pytest.importorskip("voila", reason="pip install voila")

#: What Voila's own template asks other machines for, and does without (they are not reached here), and
#: extensions of JupyterLab that need more of it than Voila has.
_NOT_OURS = re.compile(
    r"fontawesome-free|/mathjax/|jupyter-server-proxy|'dask-labextension:plugin' failed"
    r"|labextensions/@jupyter-notebook/lab-extension/"
)
APP = """
import dask_hpc

cluster = dask_hpc.LocalCluster(n_workers=4, threads_per_worker=1, processes=False, dashboard_address=":0")
rt = dask_hpc.install(cluster.get_client(), policy="fcfs")
rt.panel()
"""


def test_a_page_of_voila_starts_with_two_examples_and_is_tuned(pages, server, screenshots):
    from playwright.sync_api import expect

    write(server.notebooks / "app.ipynb", [APP])
    page = pages.open(width=1200)
    page.goto(server.page("voila/render/app.ipynb"), timeout=60_000)
    box = page.locator(".dask-hpc-panel")
    box.wait_for(timeout=60_000)
    expect(page.get_by_text("decides:").filter(visible=True)).to_have_count(1)
    box.get_by_role("button", name="Start two example jobs").click()
    shown = box.get_by_role("group", name="Timeline")
    expect(shown).to_contain_text("example-wide on 4")
    expect(box.get_by_role("button", name="Start two example jobs")).to_be_hidden()
    box.get_by_label("Policy", exact=True).select_option("pwma-fpsma")
    box.get_by_role("button", name="Simulate", exact=True).click()
    expect(shown).to_contain_text("as chosen (pwma-fpsma) all jobs of then end")
    box.get_by_role("button", name="Apply to cluster").click()
    box.get_by_role("button", name="Go ahead").click()
    expect(shown).to_contain_text(re.compile("example-wide on 2, . example-late on 2"))
    page.screenshot(path=screenshots / "voila.png", full_page=True)
    assert axe.violations(box) == []
    assert not [*measures.contrast_faults(box), *measures.overflow_faults(box)]
    box.get_by_role("button", name="Close panel").click()
    expect(box).to_have_count(0)
    expect(page.get_by_text("decides:").filter(visible=True)).to_have_count(1)
    pages.faults[:] = [fault for fault in pages.faults if not _NOT_OURS.search(fault)]
    # first the page, which would complain of a kernel that vanishes
    pages.close()
    server.shut_kernels()
