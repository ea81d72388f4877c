"""The panel of 100 jobs on 500 nodes, all views open: on one page, sorted and searched by keyboard, quick."""

from __future__ import annotations

from pathlib import Path

import axe
import many_jobs
import measures
import pytest

pytestmark = pytest.mark.browser

pytest.importorskip("anywidget", reason="pip install 'dask-hpc[widgets]'")

#: Of the panel with all views open, on a page 1,200 px wide.
HIGH = 1600
FRAME_MS = 50.0
CELL = f"""
import sys
import dask_hpc
sys.path.insert(0, {str(Path(many_jobs.__file__).parent)!r})
import many_jobs

cluster = dask_hpc.LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0")
client = cluster.get_client()
panel = many_jobs.opened(dask_hpc.install(client))
panel
"""
#: How long drawing the tables took, each time, over some updates.
_TOOK = """(figure) => new Promise((done) => {
  const times = [];
  const end = () => { seen.disconnect(); done(times); };
  const seen = new MutationObserver(() => { if (times.push(Number(figure.dataset.took)) === 4) end(); });
  seen.observe(figure, { attributes: true, attributeFilter: ["data-updates"] });
  setTimeout(end, 20000);
})"""


def test_a_large_cluster_fits_on_a_page(open_notebook, screenshots):
    from playwright.sync_api import expect

    lab = open_notebook(CELL)
    box = lab.output(0).locator(".dask-hpc-panel")
    tables = box.locator(".dask-hpc-tables")
    rows = tables.get_by_role("table", name="Jobs", exact=True).locator("tbody tr")
    expect(rows).to_have_count(many_jobs.JOBS)
    expect(tables.locator("ul.heat li")).to_have_count(many_jobs.NODES)
    expect(tables).to_contain_text("40 jobs: ")
    took = tables.evaluate(_TOOK)
    lab.keep(box, screenshots / "many-jobs.png")
    assert len(took) == 4
    assert sorted(took)[len(took) // 2] <= FRAME_MS, took
    assert box.bounding_box()["height"] <= HIGH

    # sorted by keyboard, both ways and not at all
    head = tables.get_by_role("columnheader", name="Job", exact=True).first
    head.get_by_role("button").press("Enter")
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect(rows.first).to_contain_text("job-000")
    lab.page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "descending")
    expect(rows.first).to_contain_text("job-099")
    lab.page.keyboard.press("Enter")
    expect(rows.first).to_contain_text("job-000")

    # searched and filtered
    search = tables.get_by_role("searchbox", name="Search")
    search.fill("job-04 running")
    expect(rows).to_have_count(10)
    expect(tables.get_by_role("status")).to_have_text("10 found")
    search.fill("")
    tables.get_by_label("State").select_option("pending")
    expect(rows).to_have_count(many_jobs.JOBS - many_jobs.RUNNING)
    assert not [*measures.contrast_faults(tables), *measures.overflow_faults(tables)]
    assert axe.violations(tables) == []

    # a view that is closed is gone
    lab.output(0).get_by_role("checkbox", name="Nodes", exact=True).uncheck()
    expect(tables.locator("ul.heat")).to_have_count(0)
