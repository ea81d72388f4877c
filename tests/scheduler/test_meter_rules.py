"""What is measured of a job, by phase and sample: the rules alone."""

from __future__ import annotations

from typing import Any

import pytest

from dask_hpc.scheduler.tables import meter as of_meter
from dask_hpc.scheduler.tables.meter import LEAST_TASKS, Meter


def ended(meter: Meter, tasks: int, comm_s: float = 0.0, compute_s: float = 1.0) -> None:
    """So many tasks have ended, each with so much communication and then computation."""
    for _ in range(tasks):
        rows = [{"action": "compute", "start": 5.0 + comm_s, "stop": 5.0 + comm_s + compute_s}]
        if comm_s:
            rows.insert(0, {"action": "transfer", "start": 5.0, "stop": 5.0 + comm_s})
        assert meter.observe(rows) == pytest.approx(comm_s + compute_s)


def of(meter: Meter, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in meter.rows()]


def test_a_clock_that_was_set_back_takes_no_time_away() -> None:
    meter = Meter()
    assert meter.observe([{"action": "compute", "start": 9.0, "stop": 5.0}]) == 0.0
    assert (meter.compute_s, meter.tasks) == (0.0, 1)
    assert meter.observe([{"action": "compute", "start": 5.0, "stop": 7.0}]) == 2.0
    assert meter.observe([{"action": "transfer", "start": 5.0, "stop": 8.0}]) == 3.0
    assert (meter.compute_s, meter.comm_s, meter.tasks) == (2.0, 3.0, 3)


def test_a_sample_is_closed_when_it_has_enough_tasks_and_is_old_enough_since_it_held_any() -> None:
    meter = Meter()
    assert not meter.sample(0.0, 10.0)
    # after a pause it begins anew
    assert not meter.sample(100.0, 10.0)
    ended(meter, LEAST_TASKS - 1, 1.0)
    assert not meter.sample(110.0, 10.0)
    ended(meter, 1, 1.0)
    assert not meter.sample(109.9, 10.0)
    assert meter.sample(110.0, 10.0)
    assert (meter.mtct, meter.mtct_previous, meter.tasks, meter.comm_s) == (1.0, None, 0, 0.0)
    ended(meter, LEAST_TASKS, 3.0)
    assert not meter.sample(119.9, 10.0)
    assert meter.sample(120.0, 10.0)
    assert (meter.mtct, meter.mtct_previous) == (3.0, 1.0)
    # over all of it: 16 s of communication to 8 s of computation
    assert of(meter, "mtct", "samples", "mtct_sample", "mtct_sample_previous") == [(2.0, 2, 3.0, 1.0)]
    assert meter.rows()[0]["m2p"] == pytest.approx(2 / 3)


def test_what_has_ended_before_anybody_looked_is_measured_from_then_on() -> None:
    meter = Meter()
    ended(meter, LEAST_TASKS)
    assert not meter.sample(5.0, 10.0)
    assert meter.sample(15.0, 10.0)
    meter.begin_phase(17.0, "next")
    assert meter.since_s == 17.0


def test_where_nothing_was_computed_there_is_no_share() -> None:
    meter = Meter()
    ended(meter, LEAST_TASKS, 1.0, 0.0)
    meter.close(1.0)
    assert of(meter, "mtct", "m2p", "comm_s") == [(None, None, 4.0)]


def test_a_phase_goes_on_when_it_comes_again_and_a_rigid_one_tells_policies_nothing() -> None:
    meter = Meter()
    ended(meter, 1, 1.0)
    meter.begin_phase(1.0, "rigid", elastic=False)
    # what was open is of the phase before, however little
    assert (meter.mtct, of(meter, "phase", "tasks")) == (1.0, [("", 1), ("rigid", 0)])
    ended(meter, LEAST_TASKS, 5.0)
    assert not meter.sample(1.9, 1.0)
    assert meter.sample(2.0, 1.0)
    assert (meter.mtct, meter.mtct_previous) == (1.0, None)
    ended(meter, 1)
    meter.begin_phase(3.0, "")
    assert of(meter, "phase", "elastic", "current", "tasks", "samples") == [
        ("", True, True, 1, 1),
        ("rigid", False, False, 5, 2),
    ]
    meter.begin_phase(4.0, "empty")
    meter.begin_phase(5.0, "rigid")
    # one that had no task is no row any more, and nothing was closed for it
    assert of(meter, "phase", "elastic", "samples") == [("", True, 1), ("rigid", True, 2)]
    ended(meter, 2)
    assert of(meter, "tasks") == [(1,), (7,)], "with what is open"


def test_a_job_of_another_size_is_measured_anew() -> None:
    meter = Meter()
    meter.resized(1.0)
    assert meter.rows()[0]["samples"] == 0
    ended(meter, 1, 1.0)
    meter.close(1.0)
    ended(meter, 1, 1.0)
    meter.resized(2.0)
    assert (meter.mtct, meter.mtct_previous, meter.tasks, meter.since_s) == (None, None, 0, 2.0)
    assert meter.rows()[0]["samples"] == 2


def test_so_many_phases_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_meter, "_PHASES_KEPT", 2)
    meter = Meter()
    for name in ("a", "b", "x" * of_meter._NAME_LENGTH):
        meter.begin_phase(0.0, name)
    assert [*meter.phases] == ["b", "x" * of_meter._NAME_LENGTH]
    for wrong in (7, "x" * (of_meter._NAME_LENGTH + 1)):
        with pytest.raises(ValueError, match="allowed: a text of at most 200 characters"):
            meter.begin_phase(0.0, wrong)  # type: ignore[arg-type]
