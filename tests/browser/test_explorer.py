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


def test_policies_are_compared_and_everything_is_readable_and_reached(open_notebook, screenshots):
    from playwright.sync_api import expect

    lab = open_notebook(CELL)
    box = lab.output(0).locator(".dask-hpc-explorer")
    run = box.get_by_role("button", name="Run", exact=True)
    faults = []

    def measure(state, again=False):
        def keep(look):
            lab.keep(box, screenshots / f"explorer-{state}-{look}.png")

        found = measures.faults(lab, box, keep, controls=10, again=again)
        faults.extend(f"{state}-{fault}" for fault in found)

    run.click()
    expect(box.get_by_role("table", name=re.compile("^Metrics of"))).to_contain_text("Makespan")
    # the first results are there before the last
    expect(run).to_be_enabled()
    measure("results")
    field = box.get_by_role("textbox").first
    field.fill("<b>no</b>")
    expect(box.get_by_role("alert").first).to_be_visible()
    expect(run).to_be_disabled()
    measure("error", again=True)
    assert not faults, "\n".join(faults)
    box.get_by_role("button", name="Close explorer").click()
    expect(box).to_have_count(0)
