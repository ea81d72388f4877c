"""The simulation explorer in JupyterLab, for people without a cluster."""

from __future__ import annotations

import re

import measures
import pytest

pytestmark = pytest.mark.browser

CELL = """
import dask_hpc
dask_hpc.explore()
"""
WIDTHS = (400, 800, 1200)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_policies_are_compared_and_everything_is_readable_and_reached(open_notebook, screenshots, dark):
    from playwright.sync_api import expect

    lab = open_notebook(CELL, dark=dark)
    box = lab.output(0).locator(".dask-hpc-explorer")
    run = box.get_by_role("button", name="Run", exact=True)
    faults = []

    def measure(state):
        for width in WIDTHS:
            lab.page.set_viewport_size({"width": width, "height": 1000})
            name = f"{state}-{width}-{'dark' if dark else 'light'}"
            lab.keep(box, screenshots / f"explorer-{name}.png")
            faults.extend(f"{name}: {fault}" for fault in measures.faults(box, controls=10))

    run.click()
    expect(box.get_by_role("table", name=re.compile("^Metrics of"))).to_contain_text("Makespan")
    measure("results")
    field = box.get_by_role("textbox").first
    field.fill("<b>no</b>")
    expect(box.get_by_role("alert").first).to_be_visible()
    expect(run).to_be_disabled()
    measure("error")
    assert not faults, "\n".join(faults)
    box.get_by_role("button", name="Close explorer").click()
    expect(box).to_have_count(0)
