"""Two example jobs: of a size that the cluster has, offered where there was no job, ended with the panel."""

from __future__ import annotations

import pytest
from distributed import Event
from panel_work import until

from dask_hpc_widgets.live.examples import examples


@pytest.mark.parametrize(("count", "most", "half"), [(1, 1, 1), (2, 2, 1), (5, 5, 2), (900, 8, 4)])
def test_they_fit_on_any_cluster(count, most, half):
    wide, late = examples(count, 2)
    assert wide.fields == {"min_nodes": 1, "max_nodes": most}
    assert late.fields == {"nodes": half}
    assert 0 < late.tasks < wide.tasks <= 5000
    assert examples(0, 2) == ()


def test_nothing_is_taken_from_plain_work_that_runs(rt, panel, client):
    held = client.submit(lambda: Event("go").wait(timeout=30), pure=False)
    until(lambda: any(client.processing().values()), "it runs")
    panel.examples.start.click()
    assert "not started: the cluster is at work (1 task on workers)" in panel.examples.says.value
    assert not panel.examples.start.disabled
    Event("go", client=client).set()
    held.result(timeout=30)
    assert not [one for one in rt.jobs() if one["name"].startswith("example-") and one["end_s"] is None]


def test_a_click_starts_two_jobs_that_end_with_the_panel(rt, client):
    panel = rt.panel()
    begin = panel.examples.start
    try:
        assert begin.layout.display is None
        begin.click()
        assert begin.disabled
        until(lambda: rt.find("example-wide").status()["nodes"] == 4, "it has all nodes")
        late = rt.find("example-late").status()
        assert (late["state"], late["min_nodes"]) == ("pending", 2), "fcfs: it waits for two of them"
        begin.click()
        assert (
            len([one for one in rt.jobs() if one["name"].startswith("example-") and one["end_s"] is None])
            == 2
        )
    finally:
        panel.close()
    until(lambda: all(one["end_s"] is not None for one in rt.jobs() if one["name"] != "default"), "they end")
