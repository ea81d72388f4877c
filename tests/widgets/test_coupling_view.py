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
    assert found[7:10] == ["old", "failed rank 0 is gone", "3"]
    assert "where most blocks are" in shown(flow_row(analyses={"peak": analysis()}))


def test_names_are_escaped_and_what_is_too_much_is_counted() -> None:
    evil = shown(flow_row(name=EVIL, reason=EVIL, when_full=EVIL, analyses={EVIL: analysis(where=EVIL)}))
    assert EVIL not in evil
    assert "failed:" not in evil
    many = shown(*[flow_row(analyses={f"peak-{i}": analysis() for i in range(8)})] * 25)
    assert many.count("<tr>") == 1 + 20
    assert many.count("peak-") == 20 * 5
    assert many.count("; and 3 more") == 20
    assert "5 more are not shown; rt.flows()" in many
