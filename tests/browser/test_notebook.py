"""The panel in Notebook 7: alive, readable, in full; a try is stopped, and a job resized, by clicks."""

from __future__ import annotations

import re

import measures
import pytest
from lab_page import LabPage, write

pytestmark = pytest.mark.browser

pytest.importorskip("anywidget", reason="pip install 'dask-hpc[widgets]'")
pytest.importorskip("notebook", reason="pip install 'notebook>=7'")

#: What Notebook says of itself, also of a notebook with nothing of ours in it: extensions of JupyterLab need
#: more of it than Notebook has, and a form of settings is asked for that is not there.
_NOT_OURS = re.compile(
    r"'dask-labextension:plugin' failed|reading 'schema'|'filebrowser:open-path' not registered"
)
#: Policies of somebody's own that think for long, as a package registers them.
SLOW = """
import time
from dask_hpc_policies.factories import fcfs

class Slow:
    def __init__(self, name="slow"):
        self.name, self.fcfs = name, fcfs()

    def initial_state(self):
        return self.fcfs.initial_state()

    def decide(self, view, state):
        time.sleep(0.7)
        return self.fcfs.decide(view, state)

def slower():
    return Slow("slower")
"""
CLUSTER = """
import sys
sys.path.insert(0, {folder!r})
import time
import dask_hpc

cluster = dask_hpc.LocalCluster(n_workers=4, threads_per_worker=1, processes=False, dashboard_address=":0")
client = cluster.get_client()
rt = dask_hpc.install(client, policy="fcfs")
with rt.job("heat", min_nodes=1, max_nodes=4):
    heat = client.map(time.sleep, [0.1] * 6000, pure=False, key="heat")
with rt.job("late", nodes=2):
    late = client.map(time.sleep, [0.1] * 2000, pure=False, key="late")
"""
#: Seconds of the cluster that a timeline shows.
_NOW = "element => Number(element.dataset.now)"


@pytest.fixture
def package(tmp_path):
    """A folder with the package of `SLOW`, installed there."""
    about = tmp_path / "slow-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n")
    points = ("[dask_hpc.policies]", "slow = slow_policy:Slow", "slower = slow_policy:slower")
    (about / "entry_points.txt").write_text("\n".join(points))
    (tmp_path / "slow_policy.py").write_text(SLOW)
    return str(tmp_path)


def test_it_is_as_in_jupyterlab_and_a_try_is_stopped_and_a_job_resized_by_clicks(
    pages, server, screenshots, package
):
    from playwright.sync_api import expect

    write(server.notebooks / "seven.ipynb", [CLUSTER.format(folder=package), "rt.panel()", "time.sleep(2)"])
    server.theme(dark=False)
    server.begin("seven.ipynb")
    address = server.page("notebooks/seven.ipynb")
    lab = LabPage(pages.open(width=1400), server, "seven.ipynb", address)
    # for the test that comes next
    server.reserve()
    lab.run(2)
    box = lab.output(1).locator(".dask-hpc-panel")
    shown = box.get_by_role("group", name="Timeline")
    expect(shown).to_contain_text(re.compile("At work: . heat on 4"))
    # not in a box of a few lines, as other long outputs are
    heights = "element => [element.scrollHeight, element.clientHeight]"
    inside, seen = lab.output(1).evaluate(heights)
    assert inside <= seen + 1
    # it moves while a cell computes
    lab.select(2)
    lab.page.keyboard.press("Control+Enter")
    prompt = lab.notebook.locator(".jp-CodeCell").nth(2).locator(".jp-InputPrompt")
    expect(prompt).to_have_text("[*]:")
    before = shown.evaluate(_NOW)
    expect(shown).not_to_have_attribute("data-now", f"{before:g}")
    expect(prompt).to_have_text("[*]:")
    expect(prompt).to_have_text(re.compile(r"\[\d+\]:"))

    # what was found before the click stays
    box.get_by_role("button", name="Try all policies").click()
    box.get_by_role("button", name="Stop trying").click()
    expect(box).to_contain_text(re.compile(r"Stopped: \d+ of \d+ not tried"))
    ranked = box.get_by_role("table", name="Policies by mean turnaround")
    expect(ranked).to_contain_text("fcfs, as it runs")
    expect(ranked).not_to_contain_text("slower")
    expect(box.get_by_role("button", name="Stop trying")).to_be_hidden()
    expect(box.get_by_role("button", name="Try all policies")).to_be_enabled()
    lab.keep(box, screenshots / "notebook-7.png")
    assert not [*measures.contrast_faults(box), *measures.overflow_faults(box)]

    # nodes are taken of a job when that was agreed to, and then as many as were named
    choose = shown.get_by_role("combobox", name="Job")
    choose.select_option(choose.locator("option", has_text="heat").get_attribute("value"))
    shown.get_by_label("Nodes", exact=True).fill("2")
    sure = shown.get_by_role("group", name="Resize heat?")
    for answer, came in (("Keep it", "Nothing was changed."), ("Go ahead", "has 2 nodes now; it had 4.")):
        shown.get_by_role("button", name="Resize job").click()
        expect(shown).to_contain_text("A job loses nodes at once. Go ahead?")
        expect(shown).to_contain_text(re.compile(r"\(heat\) shrinks from 4 to 2 nodes: the user asked for"))
        expect(shown).to_contain_text(re.compile("At work: . heat on 4"))
        sure.get_by_role("button", name=answer).click()
        expect(shown).to_contain_text(came)
        expect(sure).to_be_hidden()
    expect(shown).to_contain_text(re.compile("At work: . heat on 2, . late on 2"))
    pages.faults[:] = [fault for fault in pages.faults if not _NOT_OURS.search(fault)]
    # first the page, which would complain of a kernel that vanishes
    pages.close()
    server.shut_kernels()
