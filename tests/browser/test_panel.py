"""The panel in JupyterLab: a person tunes a cluster with it, at any width, light and dark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import measures
import pytest

from dask_hpc_policies import registry
from dask_hpc_policies.params import Parameters

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = pytest.mark.browser

#: One job has all nodes, for two minutes at least, and a smaller one waits for two of them, as nobody is
#: resized who ends within an hour.
CLUSTER = """
import time
import dask_hpc

cluster = dask_hpc.LocalCluster(n_workers=4, threads_per_worker=1, processes=False, dashboard_address=":0")
client = cluster.get_client()
policy = {"policy": "pwma-fpsma", "params": {"min_remaining_s": "1 h"}}
rt = dask_hpc.install(client, policy=policy)

def step(i):
    time.sleep(0.1)

with rt.job("heat", min_nodes=1, max_nodes=4, walltime="30 min"):
    heat = client.map(step, range(6000), key="heat")
with rt.job("late", nodes=2, walltime="10 min"):
    late = client.map(step, range(1000), key="late")
"""
PANEL = "rt.panel()"
TWIN = "from IPython.display import HTML\nHTML(rt.panel().html())"
GUARD = "Minimum remaining time (s)"


def _labels(policy):
    """Labels of the fields of a policy."""
    parameters = Parameters(getattr(registry.create(policy), "parameters", ()))
    return [f"{one.label} ({one.unit})" if one.unit else one.label for one in parameters]


class Panel:
    """What a person sees of the panel and does with it."""

    def __init__(self, lab, cell=1):
        self.lab, self.page = lab, lab.page
        self.box = lab.output(cell).locator(".dask-hpc-panel")
        self.box.wait_for()

    def button(self, name) -> Locator:
        return self.box.get_by_role("button", name=name, exact=True)

    def job(self, name) -> Locator:
        """The row of a job in the view of jobs."""
        named = self.page.get_by_text(name, exact=True)
        return self.box.get_by_role("table", name="Jobs", exact=True).locator("tbody tr", has=named)

    def show_all(self):
        for tick in self.box.get_by_role("checkbox").all():
            tick.check()

    def keep(self, path):
        self.lab.keep(self.box, path)


def _twin_faults(twin, pages, screenshots):
    """Of the static twin, in JupyterLab and on any page."""
    markup = twin.evaluate("element => element.outerHTML")
    assert "<style>" in markup
    # JupyterLab's own rule for tables in outputs aligns all cells to the right
    aligned = "cells => [...new Set(cells.map(cell => getComputedStyle(cell).textAlign))]"
    assert twin.locator("td:not(.number), th:not(.number)").evaluate_all(aligned) == ["left"]
    faults = measures.contrast_faults(twin) + measures.overflow_faults(twin)
    looks = {"light": "background: #fff; color: #000", "dark": "background: #111; color: #eee"}
    for look, colours in looks.items():
        page = pages.open(width=measures.WIDTHS[0])
        # what is folded away is read as well
        page.set_content(f"<body style='{colours}'>{markup.replace('<details', '<details open')}</body>")
        for width in measures.WIDTHS:
            page.set_viewport_size({"width": width, "height": 1000})
            shown = page.locator(".dask-hpc").first
            page.screenshot(path=screenshots / f"twin-{width}-{look}.png", full_page=True)
            assert len(measures.contrasts(shown)) > 30
            found = [*measures.contrast_faults(shown), *measures.overflow_faults(shown)]
            faults.extend(f"{look} at {width}: {fault}" for fault in found)
    return faults


def test_a_person_tunes_a_cluster_and_its_twin_is_readable_anywhere(open_notebook, pages, screenshots):
    from playwright.sync_api import expect

    panel = Panel(open_notebook(CLUSTER, PANEL, TWIN, run=2))
    box = panel.box
    expect(panel.job("heat")).to_contain_text("4 (malleable: 1 to 4)")
    expect(panel.job("late")).to_contain_text("pending")

    # what is wrong is said in its row, and cannot be had
    guard = box.get_by_label(GUARD)
    expect(guard).to_have_value("3600 s")
    guard.fill("soon")
    wrong = box.get_by_role("alert")
    expect(wrong).to_contain_text("'soon'")
    row = box.locator(".widget-gridbox", has=panel.page.get_by_label(GUARD))
    expect(row.get_by_role("alert")).to_have_count(1)
    for name in ("Simulate", "Apply to cluster"):
        expect(panel.button(name)).to_be_disabled()
    guard.fill("0 s")
    expect(wrong).to_have_count(0)

    # the effect is predicted, and nothing is changed
    panel.button("Simulate").click()
    effect = box.get_by_role("table", name=re.compile("^Metrics of"))
    expect(effect).to_contain_text("Makespan")
    expect(effect.locator("tbody tr", has_text="Mean wait")).to_contain_text("better")
    expect(panel.job("heat")).to_contain_text("4 (malleable")

    # a job would lose nodes: that is asked first, and a no is a no
    panel.button("Apply to cluster").click()
    expect(box).to_contain_text("A job loses nodes at once. Go ahead?")
    expect(box).to_contain_text("shrinks from 4 to 2 nodes")
    panel.button("Cancel").click()
    expect(box).to_contain_text("Nothing was changed.")
    expect(panel.button("Go ahead")).to_be_hidden()
    expect(panel.job("late")).to_contain_text("pending")

    panel.button("Apply to cluster").click()
    panel.keep(screenshots / "panel-asks.png")
    panel.button("Go ahead").click()
    expect(box).to_contain_text("Applied.")
    expect(panel.job("heat")).to_contain_text("2 (malleable: 1 to 4)")
    expect(panel.job("heat")).to_contain_text("1 down")
    expect(panel.job("late")).to_contain_text("running")
    # the same can be seen, and heard, in the view of sizes, a little later
    sizes = re.compile(r"heat: 4 nodes from .+ ago; 2 nodes from (?![0-2] s).+ ago")
    expect(box.get_by_role("img", name=sizes)).to_be_visible()
    panel.keep(screenshots / "panel.png")

    panel.button("Revert").click()
    expect(box).to_contain_text("Reverted.")
    expect(guard).to_have_value("3600 s")
    expect(panel.button("Revert")).to_be_disabled()

    # the same as code, copied without the clipboard that only secure pages have
    panel.button("Copy as code").click()
    expect(box.get_by_role("textbox", name="Code")).to_have_value(re.compile(r"rt\.update\(policy\)\n$"))
    without = "{ value: undefined, configurable: true }"
    panel.page.evaluate(f"Object.defineProperty(navigator, 'clipboard', {without})")
    panel.button("Copy").click()
    expect(box).to_contain_text("Copied.")
    panel.page.evaluate("delete navigator.clipboard")
    box.get_by_label("Policy file").press("Control+V")
    expect(box.get_by_label("Policy file")).to_have_value(re.compile("'policy': 'pwma-fpsma'"))

    panel.button("Close panel").click()
    expect(box).to_have_count(0)

    panel.lab.run_one(2)
    faults = _twin_faults(panel.lab.output(2).locator(".dask-hpc").first, pages, screenshots)
    assert not faults, "\n".join(faults)


#: Whether a form has so many fields, and one with something in it for each of these labels.
_FILLED = """([form, labels, count]) => {
  const fields = [...form.querySelectorAll("input[type=text], select")];
  const named = (field, label) => [...field.labels].some((one) => one.innerText.trim() === label);
  const filled = (label) => fields.some((one) => named(one, label) && one.value);
  return fields.length === count && labels.every(filled);
}"""


def _form_faults(panel):
    """Of the form of every policy."""
    box, faults = panel.box, []
    form = box.locator(".dask-hpc-form")
    policy = box.get_by_label("Policy", exact=True)
    names = [text.strip() for text in policy.locator("option").all_inner_texts()]
    assert len(names) > 10
    for name in names[1:]:
        policy.select_option(name)
        labels = _labels(name)
        panel.page.wait_for_function(_FILLED, arg=[form.element_handle(), labels, len(labels) + 2])
        found = [*measures.contrast_faults(form), *measures.room_faults(form, box)]
        faults.extend(f"{name}: {fault}" for fault in found)
    return faults


def test_every_form_and_everything_is_readable_and_reached(open_notebook, screenshots):
    from playwright.sync_api import expect

    panel = Panel(open_notebook(CLUSTER, PANEL))
    box = panel.box
    faults = _form_faults(panel)
    panel.show_all()
    guard = box.get_by_label(GUARD)

    def measure(state, controls, again=False):
        def keep(look):
            panel.keep(screenshots / f"panel-{state}-{look}.png")

        found = measures.faults(panel.lab, box, keep, controls=controls, again=again)
        faults.extend(f"{state}-{fault}" for fault in found)

    # all policies are tried, and the best for the job that waits is a click from the form and the picture
    goal = box.get_by_label("Goal")
    late = goal.locator("option", has_text="late").inner_text()
    goal.select_option(label=late)
    panel.button("Try all policies").click()
    choose = box.get_by_role("button", name=re.compile("^Choose "))
    expect(choose).to_be_visible()
    expect(box.get_by_role("table", name=f"Policies by {late.lower()}")).to_contain_text("as it runs")
    choose.click()
    name = choose.inner_text().removeprefix("Choose ")
    expect(box.get_by_label("Policy", exact=True)).to_have_value(name)
    timeline = box.get_by_role("group", name="Timeline")
    expect(timeline).to_contain_text(f"as chosen ({name}) all jobs of then end")
    box.get_by_label("Policy", exact=True).select_option(index=0)
    expect(guard).to_have_value("3600 s")
    guard.fill("0 s")
    # what was chosen before is predicted on the page until this is, and buttons move as it comes
    expect(timeline).to_contain_text("Stale: the settings have changed since")
    panel.button("Simulate").click()
    expect(box).to_contain_text("Simulated; the cluster was not touched.")
    expect(box).not_to_contain_text(re.compile("stale", re.IGNORECASE))
    panel.button("Apply to cluster").click()
    expect(panel.button("Go ahead")).to_be_visible()
    panel.button("Copy as code").click()
    expect(box.get_by_role("textbox", name="Code")).to_be_visible()
    texts = {one["text"] for one in measures.contrasts(box)}
    assert {"Simulate", "Apply to cluster", "Go ahead", "Revert", "policy.yaml", "heat"} <= texts
    measure("question", controls=22)
    guard.fill("soon")
    # a job that waits for long may have been told of meanwhile
    expect(box.get_by_role("alert").filter(has_text="'soon'")).to_be_visible()
    measure("error", controls=17, again=True)
    assert not faults, "\n".join(faults)


def test_a_page_that_is_loaded_again_shows_the_panel_as_it_is(open_notebook):
    from playwright.sync_api import expect

    lab = open_notebook(CLUSTER, PANEL)
    panel = Panel(lab)
    panel.box.get_by_label(GUARD).fill("soon")
    expect(panel.box.get_by_role("alert")).to_be_visible()
    lab.save()
    lab.reload()
    panel = Panel(lab)
    expect(panel.box.get_by_label(GUARD)).to_have_value("soon")
    expect(panel.box.get_by_role("alert")).to_contain_text("'soon'")
    panel.box.get_by_label(GUARD).fill("0 s")
    expect(panel.box.get_by_role("alert")).to_have_count(0)
    panel.button("Apply to cluster").click()
    panel.button("Go ahead").click()
    expect(panel.job("heat")).to_contain_text("1 down")


def test_several_panels_go_on_after_an_interrupt_and_leave_their_twins(open_notebook, pages):
    from playwright.sync_api import expect

    lab = open_notebook(CLUSTER, PANEL, PANEL, "time.sleep(600)", run=3)
    one, other = Panel(lab, 1), Panel(lab, 2)
    one.box.get_by_label(GUARD).fill("0 s")
    lab.interrupt(3)
    expect(lab.output(3)).to_contain_text("KeyboardInterrupt")
    one.button("Apply to cluster").click()
    one.button("Go ahead").click()
    expect(one.job("heat")).to_contain_text("1 down")
    expect(other.job("heat")).to_contain_text("1 down")
    expect(other.box).to_contain_text("it was not changed here")
    expect(other.box.get_by_label(GUARD)).to_have_value("0 s")
    one.button("Close panel").click()
    expect(one.box).to_have_count(0)
    other.show_all()
    expect(other.box).to_contain_text("4 held by jobs")

    # the twin stays where a panel was: at once when it is closed, and when the kernel has begun anew
    kept, live = (lab.output(cell).get_by_text("decides:") for cell in (1, 2))
    expect(kept).to_be_visible()
    expect(live).to_have_count(2)
    expect(live.first).to_be_hidden()
    lab.restart()
    lab.save()
    lab.reload()
    expect(lab.output(2).get_by_text("decides:")).to_be_visible()
    expect(kept).to_be_visible()
    expect(lab.output(2).get_by_text("Error displaying widget")).to_be_hidden()
    # JupyterLab complains of every panel without its kernel
    pages.faults[:] = [fault for fault in pages.faults if "widget model not found" not in fault]
