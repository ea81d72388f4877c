"""The parts of a panel agree with each other and with the cluster, at every update and in every picture."""

from __future__ import annotations

import json
import re
from itertools import groupby

import pytest

pytestmark = pytest.mark.browser

pytest.importorskip("anywidget", reason="pip install 'dask-hpc[widgets]'")

#: Five jobs on four nodes, resized by the policy; what the cluster has answered is kept by its time.
CLUSTER = """
import asyncio
import time
import dask_hpc

cluster = dask_hpc.LocalCluster(n_workers=4, threads_per_worker=1, processes=False, dashboard_address=":0")
client = cluster.get_client()
rt = dask_hpc.install(client, policy="pwma-fpsma")

panel = rt.panel()
for tick in panel.ticks.values():
    tick.value = True
answers, heard = {}, panel.timeline.heard

def noted(answer):
    status = answer.status
    rows = {row["name"]: [row["state"], row["nodes"]] for row in answer.jobs}
    told = [status["jobs_running"], status["jobs_pending"], status["nodes_at_work"], status["pool_nodes"]]
    answers[f"{status['now_s']:.2f}"] = [told, rows]
    heard(answer)

panel.timeline.heard = noted
panel
"""
RUN = """
tasks = 80
jobs, kept = [], []
for i, name in enumerate(("heat", "late", "cold", "wide", "last")):
    with rt.job(name, min_nodes=1, max_nodes=4 - i % 2) as job:
        kept.append(client.map(time.sleep, [0.1] * tasks, pure=False, key=f"nap-{name}"))
    jobs.append(job)
    await asyncio.sleep(0.5)
while rt.status()["jobs_running"] + rt.status()["jobs_pending"]:
    await asyncio.sleep(0.1)
"""
#: Collects what the page shows at each update of timeline or tables, under the time of the cluster there, and
#: each text of the head.
_WATCH = """([timeline, tables]) => {
  const head = timeline.closest(".dask-hpc-panel").querySelector(".widget-html");
  window.seen = { timeline: {}, tables: {}, heads: [head.innerText] };
  const look = () => {
    window.seen.timeline[Number(timeline.dataset.now).toFixed(2)] = {
      tiles: [...timeline.querySelectorAll("dd")].map((one) => one.innerText),
      told: timeline.querySelector("p").innerText,
      head: head.innerText,
    };
    const rows = [...tables.querySelectorAll('table[aria-label="Jobs"] tbody tr')];
    const cell = (row, label) => row.querySelector(`td[data-label="${label}"]`).innerText;
    window.seen.tables[Number(tables.dataset.now).toFixed(2)] =
      rows.map((row) => [cell(row, "Job"), cell(row, "State"), cell(row, "Nodes")]);
  };
  const heads = new MutationObserver(() => window.seen.heads.push(head.innerText));
  heads.observe(head, { childList: true, subtree: true });
  for (const figure of [timeline, tables]) {
    new MutationObserver(look).observe(figure, { attributes: true, attributeFilter: ["data-updates"] });
  }
}"""
#: Jobs that stay, so that every part has something of them.
STAY = """
for name in ("stay", "wait"):
    with rt.job(name, nodes=3) as job:
        kept.append(client.map(time.sleep, [0.1] * 3000, pure=False, key=f"nap-{name}"))
job.why_waiting()
"""
#: What a page shows of jobs, by kind: text beside the letter, letter, colour (where there is one).
_LOOKS = """() => {
  const found = { letters: [], tiles: [], rows: [], fills: [], options: [] };
  const color = (element, side) => getComputedStyle(element)[`border${side}Color`];
  for (const one of document.querySelectorAll(".letter")) {
    found.letters.push([one.parentElement.innerText, one.innerText, color(one, "Bottom")]);
  }
  for (const one of document.querySelectorAll("ul.nodes > li")) {
    const letter = one.querySelectorAll("strong")[1];
    if (letter) found.tiles.push([one.innerText, letter.innerText, color(one, "Left")]);
  }
  for (const one of document.querySelectorAll("svg.dask-hpc-timeline rect")) {
    const fill = /url\\(#(.+)\\)/.exec(one.getAttribute("fill") ?? ""), title = one.querySelector("title");
    const drawn = fill && document.getElementById(fill[1])?.querySelector("rect");
    // a fill of the twin of a panel, which is hidden, would not be seen
    const own = drawn && one.closest("svg.dask-hpc-timeline").contains(drawn);
    if (fill && title) found.fills.push([title.textContent, "", own ? getComputedStyle(drawn).fill : "none"]);
  }
  for (const one of document.querySelectorAll("svg.dask-hpc-timeline > text")) {
    const [, letter, name] = /^([A-Z]+) (.+)$/.exec(one.lastChild.textContent) ?? [];
    if (name) found.rows.push([name, letter, ""]);
  }
  for (const one of document.querySelectorAll(".dask-hpc-live select option")) {
    const [letter, name] = one.innerText.split(" ");
    found.options.push([name ?? "", letter, ""]);
  }
  return found;
}"""
#: Colours of the pixels around a point of a canvas.
_PIXELS = """(canvas, [x, y]) => {
  const scale = canvas.width / canvas.clientWidth, pen = canvas.getContext("2d");
  const { data } = pen.getImageData((x - 2) * scale, (y - 7) * scale, 4 * scale, 14 * scale);
  const color = (_, i) => `rgb(${[...data.slice(4 * i, 4 * i + 3)].join(", ")})`;
  return [...new Set(Array.from({ length: data.length / 4 }, color))];
}"""
NAMES = ("heat", "late", "cold", "wide", "last", "stay", "wait")


def _counted(head):
    """Jobs that run and that wait, as the head says."""
    return tuple(map(int, re.search(r"(\d+) jobs? .*running, (\d+) waiting", head).groups()))


def test_every_number_is_the_clusters_at_every_update_and_a_job_looks_alike_everywhere(open_notebook):
    from playwright.sync_api import expect

    told = "import json\nprint(json.dumps(answers))"
    lab = open_notebook(CLUSTER, RUN, told, STAY, "rt", "rt.timeline()", run=1)
    box = lab.output(0).locator(".dask-hpc-panel")
    timeline, tables = box.get_by_role("group", name="Timeline"), box.locator(".dask-hpc-tables")
    lab.page.evaluate(_WATCH, [timeline.element_handle(), tables.element_handle()])
    lab.run_one(1)
    expect(box).to_contain_text("0 jobs running, 0 waiting")
    seen = lab.page.evaluate("window.seen")
    lab.run_one(2)
    answers = json.loads(lab.output(2).inner_text())
    checked, sizes = 0, set()
    times = sorted(answers, key=float)
    counts = {now: tuple(answers[now][0][:2]) for now in times}
    # the head has no time: it shows each answer in turn, and nothing else
    heads = [key for key, _ in groupby(map(_counted, seen.pop("heads")))]
    assert heads == [key for key, _ in groupby([heads[0], *counts.values()])]
    # what the panel began with is not among them
    seen = {
        part: {now: shown for now, shown in all.items() if float(now) >= float(times[0])}
        for part, all in seen.items()
    }
    for now, shown in seen["timeline"].items():
        (_, pending, at_work, pool), rows = answers[now]
        assert shown["tiles"][0] == f"{at_work} of {pool}", now
        assert shown["tiles"][1].split()[0] == str(pending), now
        told = dict(re.findall(r"\w+ (\w+) on (\d+)", shown["told"]))
        assert told == {name: str(nodes) for name, (state, nodes) in rows.items() if nodes}, now
        assert len(re.findall(r"\w+ for ", shown["told"])) == pending, now
        # the head is told next: it is of this answer, or still of the one before
        place = times.index(now)
        before = counts[times[place - 1]] if place else heads[0]
        assert _counted(shown["head"]) in (before, counts[now]), now
        checked += 1
    for now, shown in seen["tables"].items():
        _, rows = answers[now]
        told = {job.split()[1]: [state, int(nodes.split()[0])] for job, state, nodes in shown}
        assert told == rows, now
        sizes.update((name, nodes) for name, (_, nodes) in told.items())
    assert checked >= 10
    assert len(heads) >= 3
    # each end is a change of size, and so is what the policy does
    assert len(sizes) >= 12, "resized"

    # a job has one letter and one colour wherever it is shown
    for cell in (3, 4, 5):
        lab.run_one(cell)
    lab.output(0).locator(".dask-hpc-tables ul.nodes > li", has_text="stay").first.wait_for()
    lab.output(0).get_by_role("group", name="Timeline").locator("option", has_text="wait").wait_for(
        state="attached"
    )
    looks = {name: (set(), set()) for name in NAMES}
    for kind, shown in lab.page.evaluate(_LOOKS).items():
        there = set()
        for text, letter, color in shown:
            for name in re.findall(rf"\b({'|'.join(NAMES)})(?=\b)", text)[:1]:
                there.add(name)
                looks[name][0].update({letter} - {""})
                looks[name][1].update({color} - {""})
        assert "stay" in there, kind
    assert all(len(letters) == len(colors) == 1 for letters, colors in looks.values()), looks
    assert len(set().union(*(letters for letters, _ in looks.values()))) == len(NAMES)
    # and so on the canvas: at the right end, which is now, of the rows of the job that stays
    canvas = timeline.locator("canvas")
    x, found = canvas.bounding_box()["width"] - 5, 0
    (letter,), (color,) = looks["stay"]
    for row in range(4):
        y = 12 + 18 * row + 9
        canvas.hover(position={"x": x, "y": y})
        said = timeline.get_by_role("status").first.inner_text()
        colors = set(canvas.evaluate(_PIXELS, [x, y]))
        own = " stay " in said
        assert (color in colors) == own, (said, colors)
        assert not own or f": {letter} stay " in said
        found += own
    assert found == 3
