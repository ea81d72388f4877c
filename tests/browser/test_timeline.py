"""The timeline of the panel in JupyterLab: it moves while a cell computes.

It is watched for four seconds, or as many as ``$DASK_HPC_WATCH_S`` says.
"""

from __future__ import annotations

import os
import re

import axe
import measures
import pytest

pytestmark = pytest.mark.browser

pytest.importorskip("anywidget", reason="pip install 'dask-hpc[widgets]'")

CLUSTER = """
import time
import dask
import dask_hpc

dask.config.set({"hpc.power.source": "model", "hpc.power.model.idle": 70, "hpc.power.model.busy": 200})
cluster = dask_hpc.LocalCluster(n_workers=4, threads_per_worker=1, processes=False, dashboard_address=":0")
client = cluster.get_client()
rt = dask_hpc.install(client, policy="pwma-fpsma")

def step(i):
    time.sleep(0.1)

with rt.job("heat", min_nodes=1, max_nodes=4) as heat:
    hot = client.map(step, range(6000), key="heat")
rt.corridor(lower_w=0, upper_w=2000)
"""
WATCH_S = float(os.environ.get("DASK_HPC_WATCH_S", "4"))
#: While it runs, nothing else does in the kernel: a job comes, shrinks the other, and is waited for.
BUSY = f"""
with rt.job("late", nodes=2) as late:
    cold = client.map(step, range({round(20 * (WATCH_S + 4))}), key="late")
late.wait()
"""
#: A job that waits for all four nodes, of which the other keeps one.
WAITS = """
with rt.job("big", nodes=4) as big:
    large = client.map(step, range(400), key="big")
"""


#: How many pixels of a bound, and of the draw, the lane of power has, above 18 px of times.
_LANE = """(canvas) => {
  const scale = canvas.width / canvas.clientWidth, pen = canvas.getContext("2d");
  const wide = canvas.width - 150 * scale;
  const { data } = pen.getImageData(150 * scale, canvas.height - 70 * scale, wide, 52 * scale);
  const there = Array.from({ length: data.length / 4 }, (_, i) => [data[4 * i], data[4 * i + 1]]);
  const kinds = [([red, green]) => red > green + 60, ([red]) => red < 120];
  return kinds.map((kind) => there.filter(kind).length);
}"""


def test_it_moves_while_a_cell_computes(open_notebook, screenshots):
    from playwright.sync_api import expect

    lab = open_notebook(CLUSTER, "panel = rt.panel()\npanel", BUSY, WAITS, "cluster.close()", run=2)
    shown = lab.output(1).get_by_role("group", name="Timeline")
    shown.wait_for()
    expect(shown).to_contain_text("At work: A heat on 4.")
    panel = lab.output(1).locator(".dask-hpc-panel")
    panel.get_by_label("Power").check()
    energy = panel.get_by_role("table", name="Who has drawn what").locator("td").nth(1)
    expect(energy).to_be_visible()
    # the corridor is a lane of the picture, and a chart of its view
    expect(panel.get_by_role("img", name=re.compile("^The draw over .*at most 2000 W"))).to_be_visible()
    expect(shown).to_contain_text(re.compile(r"Now \d+ W are drawn, at most 2000 W\."))
    # what was drawn grows into it
    canvas = shown.locator("canvas").element_handle()
    lab.page.wait_for_function(f"(canvas) => Math.min(...({_LANE})(canvas)) > 50", arg=canvas)
    lab.select(2)
    lab.page.keyboard.press("Control+Enter")
    prompt = lab.notebook.locator(".jp-CodeCell").nth(2).locator(".jp-InputPrompt")
    expect(prompt).to_have_text("[*]:")
    expect(shown).to_contain_text(re.compile("A heat on 2, . late on 2"))
    expect(panel.locator("p").first).to_contain_text("4 nodes; 2 jobs running, 0 waiting")
    gaps = lab.page.evaluate(
        """([figure, ms]) => new Promise((done) => {
          const times = [performance.now()];
          const seen = new MutationObserver(() => times.push(performance.now()));
          seen.observe(figure, { attributes: true, attributeFilter: ["data-now"] });
          setTimeout(() => { seen.disconnect(); times.push(performance.now());
            done(times.slice(1).map((t, i) => t - times[i])); }, ms);
        })""",
        [shown.element_handle(), 1000 * WATCH_S],
    )
    expect(prompt).to_have_text("[*]:")
    print(f"{WATCH_S:g} s of a busy cell: {len(gaps) - 1} updates, at most {max(gaps):.0f} ms apart")
    assert len(gaps) >= WATCH_S
    assert max(gaps) < 1000, gaps
    # views that are no tables go on as well
    drawn = energy.inner_text()
    expect(energy).not_to_have_text(drawn)
    expect(prompt).to_have_text("[*]:")
    # what a person wants meanwhile waits for the kernel, and says so
    choose = shown.get_by_role("combobox", name="Job")
    choose.select_option(choose.locator("option", has_text="heat").get_attribute("value"))
    shown.get_by_role("button", name="Cancel job").click()
    expect(shown).to_contain_text("Asked what is lost with A heat. The kernel answers when it is free")
    panel.get_by_role("button", name="Copy as code").click()
    late = panel.get_by_role("button", name="Copy as code (waits for the cell that runs)")
    expect(late).to_be_visible()
    expect(shown.get_by_role("status").first).to_have_text("What was clicked waits for the cell that runs.")
    lab.keep(shown, screenshots / "timeline.png")
    assert not [*measures.contrast_faults(shown), *measures.overflow_faults(shown)]
    # who has what is said where the mouse is, and why where a decision is marked
    shown.locator("canvas").hover(position={"x": 95, "y": 17})
    expect(shown.get_by_role("status").first).to_contain_text(re.compile("A heat.*; predicted "))

    # what is to come stands beside it, on the same axis, and says that it is predicted
    expect(prompt).to_have_text(re.compile(r"\[\d+\]:"))
    expect(shown).to_contain_text("It cannot be taken back.")
    expect(panel.locator(".dask-hpc-waits")).to_have_count(0)
    expect(shown.get_by_role("status").first).not_to_contain_text("waits for the cell")
    shown.get_by_role("button", name="Keep it").click()
    expect(shown).to_contain_text("Nothing was cancelled.")
    lab.select(3)
    lab.page.keyboard.press("Control+Enter")
    expect(shown).to_contain_text("big for")
    expect(shown).to_contain_text("Next startnot known")
    lab.output(1).get_by_role("button", name="Simulate", exact=True).click()
    expect(shown).to_have_attribute("data-lanes", "2")
    expect(shown).to_contain_text("as chosen (pwma-fpsma) all jobs of then end in")
    # of the job that runs with the interval, in words and as a whisker
    expect(shown).to_contain_text(re.compile(r", A heat ends in .+ \(.+ to .+\); as chosen"))
    expect(shown).to_have_attribute("data-ends", "1")
    expect(shown).to_contain_text(re.compile(r"Next startin .* big, predicted"))
    lab.keep(shown, screenshots / "timeline-predicted.png")
    ahead = _hover(shown, lambda now, to: (now + to) / 2)
    expect(shown.get_by_role("status").first).to_contain_text(
        re.compile(r"as it runs: . (heat|big) from .*, predicted")
    )
    assert ahead > 0

    # a job says what blocks it, by keyboard alone
    choose.select_option(choose.locator("option", has_text="big").get_attribute("value"))
    choose.press("Tab")
    lab.page.keyboard.press("Enter")
    expect(shown).to_contain_text("big needs 4 nodes; 0 idle; heat 4.")
    expect(shown).to_contain_text("As things are it starts in")

    # it is resized and cancelled so, too; what cannot be is refused, what is lost is asked about
    size = shown.get_by_label("Nodes", exact=True)
    size.fill("9")
    size.press("Tab")
    lab.page.keyboard.press("Enter")
    expect(shown).to_contain_text("nodes is '9'; allowed: a whole number from 4 (its min_nodes) to 4")
    lab.page.keyboard.press("Tab")
    lab.page.keyboard.press("Enter")
    sure = shown.get_by_role("group", name="Cancel big?")
    expect(sure.get_by_role("button", name="Keep it")).to_be_focused()
    lab.keep(shown, screenshots / "timeline-cancel.png")
    assert not [*measures.contrast_faults(shown), *measures.overflow_faults(shown)]
    assert axe.violations(shown) == []
    lab.page.keyboard.press("Tab")
    lab.page.keyboard.press("Enter")
    expect(shown).to_contain_text(re.compile(r"big \(big-.*\) is cancelled: cancelled in the panel"))
    expect(choose).to_be_focused()

    # the window of time is moved by keys
    shown.get_by_role("button", name="Zoom in").press("Home")
    wide = _seen(shown)
    lab.page.keyboard.press("+")
    assert _seen(shown) == pytest.approx(wide / 2, rel=0.2)
    # something is seen however far one goes
    for key in ("-", "ArrowLeft", "ArrowRight"):
        for _ in range(30):
            lab.page.keyboard.press(key)
        assert float(shown.get_attribute("data-from")) < float(shown.get_attribute("data-now"))
        assert float(shown.get_attribute("data-to")) > 0
    assert _seen(shown) <= 3600 + 1
    shown.get_by_label("Range").select_option("1 min")
    assert _seen(shown) == pytest.approx(60)
    shown.get_by_role("button", name="Show all").click()
    assert not [*measures.contrast_faults(shown), *measures.overflow_faults(shown)]
    assert axe.violations(shown) == []

    # when nothing comes, that is said
    lab.select(4)
    lab.page.keyboard.press("Control+Enter")
    expect(shown.get_by_role("status").first).to_contain_text("Nothing new for")
    expect(shown).to_have_class(re.compile("old"))


def _seen(shown):
    """Seconds that the picture shows."""
    return float(shown.get_attribute("data-to")) - float(shown.get_attribute("data-from"))


def _hover(shown, choose):
    """Put the mouse where `choose` says, given the time of now and of the right end; gives the seconds."""
    begin, end, now = (float(shown.get_attribute(f"data-{name}")) for name in ("from", "to", "now"))
    t = choose(now, end)
    canvas = shown.locator("canvas")
    width = canvas.bounding_box()["width"]
    canvas.hover(position={"x": 90 + (width - 90) * (t - begin) / (end - begin), "y": 35})
    return t - now
