"""What stays of a panel in its cell: written anew now and then while something goes on."""

from __future__ import annotations

import re

import pytest

from dask_hpc_widgets.live import record
from dask_hpc_widgets.live.record import PERIOD_S, Record


@pytest.fixture
def shown(monkeypatch):
    monkeypatch.setattr(record, "_publish", lambda *told, **how: None)
    monkeypatch.setattr(record.time, "monotonic", lambda: 0.0)
    found = Record()
    assert not found.due("b", 9), "no cell shows it"
    found.show("twin", {}, "a", 1)
    return found


def test_it_is_written_once_a_minute_while_something_changes_and_at_once_in_another_phase(shown):
    wrote = [s for s in range(300) if shown.due("a", s if s < 200 else 200, float(s))]
    assert wrote == [60, 120, 180, 240], "the last change is not lost, and then there is nothing to write"
    assert shown.due("b", 200, 301.0)
    assert not shown.due("b", 200, 301.0 + 2 * PERIOD_S)


def test_what_could_not_be_written_is_due_again_when_its_time_has_come(shown):
    assert shown.due("b", 1, 5.0)
    shown.failed()
    assert not shown.due("b", 1, 6.0)
    assert shown.due("b", 1, 5.0 + PERIOD_S)


def test_it_names_the_time_that_it_is_of(panel):
    assert re.search(r"As it was on \d{4}-\d\d-\d\d at \d\d:\d\d:\d\d \(UTC[+-]\d{4}\)\.", panel.html())
