"""The pages on the scheduler's dashboard, in a real browser: live, readable, and safe from names."""

from __future__ import annotations

import time

import measures
import pytest
from distributed import Client

import dask_hpc
from dask_hpc.report.looks import look

pytestmark = pytest.mark.browser

#: Runs when it is taken for markup: the page then complains.
EVIL = "<img src=x onerror=\"console.error('evil')\">"
TIMEOUT_MS = 30_000
WIDTHS = (400, 1200)


@pytest.fixture(scope="module")
def client():
    with (
        dask_hpc.LocalCluster(
            n_workers=3, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def run_job(client, name):
    """A job that starts and ends."""
    runtime = dask_hpc.runtime(client)
    with runtime.job(name, min_nodes=1, max_nodes=3) as job:
        client.submit(len, name, pure=False).result(timeout=30)
    job.wait(30)
    return job.id


def opened(pages, client, path, width=1200, dark=False):
    page = pages.open(width=width, dark=dark)
    port = client.cluster.scheduler.http_server.port
    page.goto(f"http://127.0.0.1:{port}/{path}?minutes=2{'&theme=dark' if dark else ''}")
    return page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_can_be_read(pages, client, screenshots, dark):
    job = run_job(client, EVIL)
    decisions, jobs, checkpoints, io = (
        opened(pages, client, f"individual-hpc-{name}", WIDTHS[0], dark)
        for name in ("decisions", "jobs", "checkpoints", "io")
    )
    decisions.get_by_text(job).first.wait_for(timeout=TIMEOUT_MS)
    jobs.wait_for_function(_KNOWS, arg=job, timeout=TIMEOUT_MS)
    jobs.locator("canvas").first.wait_for(timeout=TIMEOUT_MS)
    checkpoints.get_by_text("Nothing is protected").wait_for(timeout=TIMEOUT_MS)
    io.get_by_text("Nothing is measured").wait_for(timeout=TIMEOUT_MS)
    for width in WIDTHS:
        for page in (decisions, jobs, checkpoints, io):
            page.set_viewport_size({"width": width, "height": 1000})
        look = f"{width}-{'dark' if dark else 'light'}"
        decisions.screenshot(path=screenshots / f"dashboard-decisions-{look}.png")
        jobs.screenshot(path=screenshots / f"dashboard-jobs-{look}.png")
        table = decisions.locator(".dask-hpc")
        assert len(measures.contrasts(table)) > 10
        assert measures.contrast_faults(table) == []
        assert measures.overflow_faults(table) == []
        assert measures.contrast_faults(checkpoints.locator(".dask-hpc")) == []
        assert measures.contrast_faults(io.locator(".dask-hpc")) == []
        # nothing has to be scrolled sideways
        fits = "document.documentElement.scrollWidth <= window.innerWidth"
        jobs.wait_for_function(fits, timeout=TIMEOUT_MS)


#: Whether the browser's copy of the document has a text.
_KNOWS = "text => window.Bokeh?.documents[0]?.to_json_string().includes(JSON.stringify(text).slice(1, -1))"


#: Jobs of a chart with their letters and colours, as the browser has them.
_COLORS = """() => {
  const found = new Set();
  const walk = (one) => {
    if (one === null || typeof one !== "object") return;
    const pairs = Array.isArray(one.entries) && one.entries.every(Array.isArray);
    const { job, color } = pairs ? Object.fromEntries(one.entries) : one;
    if (Array.isArray(job) && Array.isArray(color)) job.forEach((one, i) => found.add(`${one} ${color[i]}`));
    Object.values(one).forEach(walk);
  };
  walk(JSON.parse(window.Bokeh.documents[0].to_json_string()));
  return [...found];
}"""


def test_pages_follow_the_cluster_and_show_a_job_by_its_own_letter_and_colour(pages, client):
    decisions = opened(pages, client, "individual-hpc-decisions")
    jobs = opened(pages, client, "individual-hpc-jobs")
    decisions.locator(".dask-hpc").wait_for(timeout=TIMEOUT_MS)
    jobs.locator("canvas").first.wait_for(timeout=TIMEOUT_MS)
    name = f"late{time.monotonic_ns()}"
    assert not jobs.evaluate(_KNOWS, name)
    job = run_job(client, name)
    decisions.get_by_text(job).first.wait_for(timeout=TIMEOUT_MS)
    jobs.wait_for_function(_KNOWS, arg=job, timeout=TIMEOUT_MS)
    own = look(job)
    # without a node it is grey
    shown = {one for one in jobs.evaluate(_COLORS) if f" {job} " in one and not one.endswith(" #808080")}
    assert shown == {f"{own.letter} {job} {own.color}"}
    letter = decisions.locator("tr", has_text=job).first.locator(".letter")
    color = letter.evaluate("one => getComputedStyle(one).borderBottomColor")
    assert (letter.inner_text(), color) == (own.letter, f"rgb{tuple(bytes.fromhex(own.color[1:]))}")
