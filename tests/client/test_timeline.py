"""Pictures over time: of a cluster, of a job, of a simulation; a job looks the same in all of them."""

from __future__ import annotations

import re
import time
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

import dask_hpc
from dask_hpc.client.timelines import _predicted
from dask_hpc.report.page import build_report
from dask_hpc.report.picture import TimelinePicture
from dask_hpc.scheduler.dashboard.chart import chart
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.sim.run import simulate
from dask_hpc.sim.workloads.sources import load
from dask_hpc.trace.records import decode_line
from dask_hpc_widgets import views
from dask_hpc_widgets.views import Picture


@pytest.fixture(scope="module")
def seen():
    """What is known of a cluster on which a job was shrunk for another, of all who draw it, at one moment."""
    with (
        dask_hpc.LocalCluster(
            n_workers=4, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        cluster.get_client() as client,
    ):
        rt = dask_hpc.install(client, policy="pwma-fpsma")
        with rt.job("heat", min_nodes=1, max_nodes=4) as heat:
            kept = [client.map(time.sleep, [0.05] * 2000, pure=False)]
        with rt.job("late", nodes=2) as late:
            kept.append(client.map(time.sleep, [0.05] * 2000, pure=False))
        deadline_s = time.monotonic() + 30
        while late.status()["nodes"] < 2:
            assert time.monotonic() < deadline_s, "the second job starts"
            time.sleep(0.02)
        found = client.sync(rt.channel.ask, "picture", ended=9, decisions=9)
        yield {
            "rt": rt,
            "jobs": {"heat": heat, "late": late},
            "picture": Picture(**found),
            "whole": rt.timeline(),
            "past": rt.timeline(predict=False),
            "one": late.timeline(),
            "lines": rt.trace(),
            "records": list(_records(cluster)),
        }
        kept.clear()


def _records(cluster):
    return of(cluster.scheduler).engine.state.jobs.named


def test_one_job_has_one_letter_and_colour_in_every_view(seen):
    looks = {job.id: look for job in seen["jobs"].values() for look in [seen["whole"].spans.looks()[job.id]]}
    assert len({look.letter for look in looks.values()}) == 2
    told = {name: views.named(name).html(seen["picture"]) for name in ("jobs", "sizes", "nodes", "decisions")}
    report = build_report([decode_line(line) for line in seen["lines"]])
    drawn = chart(seen["records"], (), seen["picture"].status["now_s"], 60.0)
    pages = {"whole": seen["whole"]._repr_html_(), "one": seen["one"]._repr_html_(), "report": report}
    for name, job in seen["jobs"].items():
        look = looks[job.id]
        chip = f'<strong class="letter" style="border-bottom-color:{look.color}">{look.letter}</strong>'
        for view in ("jobs", "sizes", "decisions"):
            assert chip in told[view], view
        tile = rf'color:{look.color}">\s*<strong>[^<]*</strong><br><strong>{look.letter}</strong> {name}'
        assert re.search(tile, told["nodes"])
        assert f"{look.letter} {name}" in drawn.labels
        colours = dict(zip(drawn.columns["job"], drawn.columns["color"], strict=True))
        assert colours[f"{look.letter} {job.id}"] == look.color
        for page, html in pages.items():
            pattern = f'<pattern id="(?:dask-hpc-[0-9a-f]+-)?{look.fill_id}".*?fill="{look.color}"'
            assert re.search(pattern, html, re.DOTALL), page
            assert f"{look.letter} {name}" in html, page


def test_what_is_past_ends_now_and_what_is_predicted_begins_there(seen):
    spans = seen["whole"].spans
    assert spans.now_s is not None
    assert spans.now_s < spans.end_s
    for span in (*spans.node_spans, *spans.job_spans):
        assert span.start_s >= spans.now_s if span.predicted else span.end_s <= spans.now_s
    ends = {job: max(s.end_s for s in spans.job_spans if s.job == job) for job in spans.labels}
    assert min(ends.values()) > spans.now_s
    assert seen["past"].spans.now_s is None
    assert not any(span.predicted for span in seen["past"].spans.node_spans)
    assert "predicted by the simulator" in seen["whole"]._repr_html_()


def test_where_the_policy_cannot_be_run_here_the_past_is_drawn_and_why_is_said(seen):
    found = _predicted(seen["rt"].snapshot(), seen["picture"].jobs, {"policy": "theirs"})
    assert found[0] is None
    assert found[1].startswith("Nothing is predicted: UnknownPolicy: unknown policy 'theirs'")


def test_the_picture_agrees_with_the_status(seen):
    held = {node["id"]: node["job"] for node in seen["picture"].status["nodes"]}
    spans = seen["past"].spans
    assert {span.node: span.job for span in spans.node_spans if span.end_s == spans.end_s} == held
    shrunk = [mark for mark in spans.marks if mark.action == "shrink"]
    assert [(mark.job, mark.nodes) for mark in shrunk] == [(seen["jobs"]["heat"].id, 2)]
    assert shrunk[0].text


def test_a_job_alone_has_its_nodes_and_who_had_them(seen):
    spans = seen["one"].spans
    assert len(spans.nodes) == 2
    assert set(spans.labels.values()) == {"heat", "late"}
    assert spans.start_s > 0


def test_it_is_one_well_formed_drawing_that_says_what_it_shows(seen):
    root = ElementTree.fromstring(seen["whole"].svg())
    names = {"s": "http://www.w3.org/2000/svg"}
    assert root.find("s:title", names).text == "This cluster, pwma-fpsma"
    assert "4 nodes and 2 jobs over" in root.find("s:desc", names).text
    ids = {one.get("id") for one in root.iter() if one.get("id")}
    assert set(root.get("aria-labelledby").split()) <= ids
    assert {f"job{n}" for n in re.findall(r"url\(#job(\d+)\)", seen["whole"].svg())} <= ids
    rows = re.findall(r"<td>(heat|late)</td>", seen["whole"]._repr_html_())
    assert rows == ["heat", "late"], "the table twin has every job"


@pytest.mark.parametrize(("kind", "begins"), [("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF")])
def test_it_is_written_as(seen, tmp_path, kind, begins):
    path = tmp_path / f"run.{kind}"
    seen["whole"].save(path)
    assert path.read_bytes().startswith(begins)
    own = seen["whole"].spans.looks().values()
    if kind == "png":
        pixels = (255 * imread(path)[:, :, :3]).round().astype(int) @ [65536, 256, 1]
        assert {int(look.color[1:], 16) for look in own} <= {*np.unique(pixels)}
    elif kind == "svg":
        labels = [f">{look.letter} {name}<" for look, name in zip(own, ("heat", "late"), strict=True)]
        assert [one for one in labels + [look.color for look in own] if one not in path.read_text()] == []
    with pytest.raises(ValueError, match=r"allowed: names that end in \.svg, \.png, \.pdf"):
        seen["whole"].save(tmp_path / "run.gif")


def test_a_simulation_shows_itself_alike():
    picture = simulate(load("builtin:five-jobs"), "pwma-fpsma").timeline()
    assert isinstance(picture, TimelinePicture)
    assert repr(picture) == "<TimelinePicture 'five-jobs, pwma-fpsma' nodes=16 jobs=5 of 24 min>"
    assert "A J1" in picture.svg()


def test_names_from_users_are_text():
    spans = simulate(load("builtin:five-jobs"), "easy").spans()
    hostile = TimelinePicture(spans, "<script>alert('1')</script>", "<b>&")
    assert "<script" not in hostile._repr_html_()
    ElementTree.fromstring(hostile.svg())
