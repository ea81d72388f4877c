"""The view of coupled programs: how far each is, and where its analyses run."""

from __future__ import annotations

import re
from typing import Any

from coupled import flow_row

from dask_hpc_widgets import views
from dask_hpc_widgets.views import Picture
from dask_hpc_widgets.views.coupling import VIEW

EVIL = "<script>alert('x')</script>\"&"


def analysis(**said: Any) -> dict[str, Any]:
    return {"window": 1, "every": 1, "where": "auto", "first": 0} | said


def shown(*flows: dict[str, Any]) -> str:
    return str(VIEW.body(Picture(status={"coupling": list(flows)})))


def cells(html: str) -> list[str]:
    return [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", html)]


def test_it_is_registered_and_there_while_a_flow_is() -> None:
    assert views.named("coupling") is VIEW
    assert not VIEW.is_in(Picture(status={}))
    assert "rt.couple(" in VIEW.body(Picture(status={}))


def test_it_tells_of_each_flow_how_far_it_is_and_where_its_analyses_run() -> None:
    both = {"peak": analysis(window=3, every=2, where="in-situ"), "mean": analysis()}
    gone = flow_row(name="old", state="failed", reason="rank 0 is gone", size=None, analyses={})
    found = cells(shown(flow_row(analyses=both, split={"peak": "in-situ", "mean": "in-transit"}), gone))
    assert found[:6] == ["heat", "running", "3 of 4", "12", "1 of 2, then programs wait", "3.00 MiB"]
    assert found[6] == "peak in situ, 3 steps, at one of 2; mean in transit, each step"
    assert found[7:11] == ["", "old", "failed rank 0 is gone", "3"]
    assert "where most blocks are" in shown(flow_row(analyses={"peak": analysis()}))


def test_of_the_latest_step_with_values_it_tells_the_time_and_what_helpers_left() -> None:
    step = {"step_s": 0.25, "in_situ_work_share": 0.4, "helper_cores": 2, "idle_helper_core_s": 0.125}
    coming = step | {"step_s": None, "in_situ_work_share": None}
    found = cells(shown(flow_row(latest=[step, coming])))
    assert found[7] == "0.25 s, 40% of work in situ, 0.125 core s of helpers idle"
    assert cells(shown(flow_row(latest=[step | {"helper_cores": 0}])))[7] == "0.25 s, 40% of work in situ"
    assert cells(shown(flow_row(latest=[coming])))[7] == ""


def test_names_are_escaped_and_what_is_too_much_is_counted() -> None:
    evil = shown(flow_row(name=EVIL, reason=EVIL, when_full=EVIL, analyses={EVIL: analysis(where=EVIL)}))
    assert EVIL not in evil
    assert "failed:" not in evil
    many = shown(*[flow_row(analyses={f"peak-{i}": analysis() for i in range(8)})] * 25)
    assert many.count("<tr>") == 1 + 20
    assert many.count("peak-") == 20 * 5
    assert many.count("; and 3 more") == 20
    assert "5 more not shown; rt.flows()" in many
