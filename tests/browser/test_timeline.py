"""The timeline of the panel in JupyterLab: it moves while a cell computes."""

from __future__ import annotations

import re

import measures
import pytest

pytestmark = pytest.mark.browser

pytest.importorskip("anywidget", reason="pip install 'dask-hpc[widgets]'")

CLUSTER = """
import time
import dask_hpc

cluster = dask_hpc.LocalCluster(n_workers=4, threads_per_worker=1, processes=False, dashboard_address=":0")
client = cluster.get_client()
rt = dask_hpc.install(client, policy="pwma-fpsma")

def step(i):
    time.sleep(0.1)

with rt.job("heat", min_nodes=1, max_nodes=4) as heat:
    hot = client.map(step, range(6000), key="heat")
"""
#: While it runs, nothing else does in the kernel: a job comes, shrinks the other, and is waited for.
BUSY = """
with rt.job("late", nodes=2) as late:
    cold = client.map(step, range(160), key="late")
late.wait()
"""


def test_it_moves_while_a_cell_computes(open_notebook, screenshots):
    from playwright.sync_api import expect

    lab = open_notebook(CLUSTER, "rt.panel()", BUSY, run=2)
    shown = lab.output(1).get_by_role("group", name="Timeline")
    shown.wait_for()
    expect(shown).to_contain_text("At work: A heat on 4.")
    lab.select(2)
    lab.page.keyboard.press("Control+Enter")
    prompt = lab.notebook.locator(".jp-CodeCell").nth(2).locator(".jp-InputPrompt")
    expect(prompt).to_have_text("[*]:")
    expect(shown).to_contain_text(re.compile("A heat on 2, . late on 2"))
    gaps = lab.page.evaluate(
        """(figure) => new Promise((done) => {
          const times = [performance.now()];
          const seen = new MutationObserver(() => times.push(performance.now()));
          seen.observe(figure, { attributes: true, attributeFilter: ["data-now"] });
          setTimeout(() => { seen.disconnect(); times.push(performance.now());
            done(times.slice(1).map((t, i) => t - times[i])); }, 4000);
        })""",
        shown.element_handle(),
    )
    expect(prompt).to_have_text("[*]:")
    assert len(gaps) >= 4
    assert max(gaps) < 1000, gaps
    lab.keep(shown, screenshots / "timeline.png")
    assert not [*measures.contrast_faults(shown), *measures.overflow_faults(shown)]
    # who has what is said where the mouse is
    shown.locator("canvas").hover(position={"x": 95, "y": 5})
    expect(shown.get_by_role("status")).to_contain_text("A heat")
