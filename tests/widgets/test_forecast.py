"""What the timeline shows of the future: jobs go on where they are, and the tiles say what was predicted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from panel_states import ASSUMED_S, FCFS, MALLEABLE, ROWS, STATE, large, many_changes

from dask_hpc.sim.what_if import simulate_from
from dask_hpc.trace.records import encode_line
from dask_hpc_widgets.live.forecast import Forecast, outdated
from dask_hpc_widgets.live.forecast import forecast as forecast_of
from dask_hpc_widgets.live.tiles import tiles
from dask_hpc_widgets.live.timeline import TimelinePart
from dask_hpc_widgets.live.what_if import what_if
from dask_hpc_widgets.views import Picture

NODES = [{"id": f"n{i}", "job": "j-1", "state": "up"} for i in range(4)]
JOBS = [
    {"id": "j-1", "name": "heat", "state": "running", "submit_s": 1.0, "min_nodes": 1, "max_nodes": 4},
    {"id": "j-2", "name": "late", "state": "pending", "submit_s": 80.0, "min_nodes": 2, "max_nodes": 2},
]


@pytest.fixture(scope="module")
def forecast():
    return what_if(STATE, ROWS, FCFS, MALLEABLE, ASSUMED_S).forecast


def now(now_s=100.0, **status):
    given = {"now_s": now_s, "nodes": NODES, "pool_nodes": 4, "nodes_at_work": 3, "jobs_pending": 1, **status}
    return Picture(status=given, jobs=JOBS)


def told(picture, forecast=None):
    return {one.label: (one.value, one.more) for one in tiles(picture, forecast)}


def test_jobs_go_on_where_they_are(forecast):
    runs, chosen = forecast.rows
    assert runs[0] == ("j-1", 100.0, 200.0, ["n0", "n1", "n2", "n3"])
    # the chosen policy has it give up its last two nodes at once, and they come back
    assert chosen[:2] == (
        ("j-1", 100.0, pytest.approx(205.0), ["n0", "n1"]),
        ("j-2", 100.0, 110.0, ["n2", "n3"]),
    )
    assert ("j-1", 110.0, pytest.approx(205.0), ["n2", "n3"]) in chosen


def test_a_job_that_has_the_last_nodes_goes_on_there():
    held = replace(STATE.jobs[0], nodes=2, max_nodes=2, remaining_s=50.0)
    nodes = tuple(replace(node, job=None if i < 2 else "j-1") for i, node in enumerate(STATE.nodes))
    state = replace(STATE, nodes=nodes, jobs=(held,), idle_nodes=2)
    found = forecast_of(simulate_from(state, FCFS), None, state.nodes)
    assert found.rows == ((("j-1", 100.0, 150.0, ["n2", "n3"]),), ())
    assert found.end_s == pytest.approx(150.0)


def test_tiles_are_what_the_cluster_says_and_what_was_predicted(forecast):
    assert told(now()) == {
        "Nodes at work": ("3 of 4", ""),
        "Jobs waiting": ("1", "the longest 20 s: late"),
        "Next start": ("not known", "Simulate predicts it"),
        "Gain if applied": ("not known", "Simulate predicts it"),
    }
    found = told(now(), forecast)
    assert found["Next start"] == ("in 1.6 min", "late, predicted")
    assert found["Gain if applied"][0].startswith("mean turnaround 47.5 s shorter, the last end 5 s earlier")
    _, start_s = forecast.next_start(["j-2"])
    # as what is said of why a job waits, and not "in 0 s"
    assert told(now(now_s=start_s - 0.44), forecast)["Next start"][0] == "in under a second"
    assert told(now(now_s=300.0), forecast)["Next start"] == ("overdue", "late; simulate again")


def test_of_several_jobs_that_wait_the_longest_wait_and_the_first_start_are_told():
    later = {**JOBS[1], "id": "j-3", "name": "later", "submit_s": 90.0}
    found = replace(now(jobs_pending=2), jobs=[JOBS[0], later, JOBS[1]])
    assert told(found)["Jobs waiting"] == ("2", "the longest 20 s: late")
    other = replace(STATE.jobs[1], id="j-3", submit_s=3.0, min_nodes=4, max_nodes=4)
    state = replace(STATE, jobs=(*STATE.jobs, other))
    then = forecast_of(simulate_from(state, FCFS, default_s=ASSUMED_S), None, state.nodes)
    first, start_s = then.next_start(["j-3", "j-2"])
    assert (first, start_s) == ("j-2", pytest.approx(160.0))
    assert told(found, then)["Next start"] == ("in 1 min", "late, predicted")


def test_what_is_stale_is_not_told_as_if_it_were_not(forecast):
    old = replace(forecast, stale="applied since")
    assert told(now(), old)["Gain if applied"] == ("stale", "applied since")
    assert told(now(), old)["Next start"] == ("not known", "simulate again")


HEAT, LATE = (
    {"id": f"j-{i}", "name": name, "state": "running", "end_s": None}
    for i, name in ((1, "heat"), (2, "late"))
)
NEW = {**LATE, "id": "j-3", "name": "new"}
RESIZED = {"reason_code": "user-request", "result": "done", "job": "j-1", "t_s": 101.0}


@pytest.mark.parametrize(
    ("jobs", "decisions", "why"),
    [
        ([HEAT, LATE], [], ""),
        ([HEAT], [], ""),
        ([{**HEAT, "state": "completed", "end_s": 150.0}, LATE], [], ""),
        ([{**HEAT, "state": "cancelled", "end_s": 150.0}, LATE], [], "Job heat has been cancelled since"),
        ([{**HEAT, "name": "", "state": "failed", "end_s": 150.0}], [], "Job j-1 has failed since"),
        ([HEAT, LATE, NEW], [], "Job new has come since"),
        # it had ended before anything was predicted
        ([HEAT, LATE, {**NEW, "state": "cancelled", "end_s": 99.0}], [], ""),
        ([HEAT, LATE, {**NEW, "is_default": True}], [], ""),
        # anybody may call a job so
        ([HEAT, LATE, {**NEW, "name": "default"}], [], "Job default has come since"),
        ([HEAT, LATE], [RESIZED], "Somebody has resized j-1 since"),
        ([HEAT, LATE], [{**RESIZED, "t_s": 99.0}], ""),
        ([HEAT, LATE], [{**RESIZED, "result": "refused"}], ""),
        ([HEAT, LATE], [{**RESIZED, "reason_code": "idle-nodes"}], ""),
        # a node has got another role, or has left plain work
        ([HEAT, LATE], [{**RESIZED, "job": ""}], ""),
        ([HEAT, LATE], [{**RESIZED, "job": "j-0"}], ""),
    ],
)
def test_what_no_run_could_know_of_makes_a_prediction_one_of_before(forecast, jobs, decisions, why):
    picture = replace(now(), jobs=jobs, decisions=decisions)
    assert outdated([forecast.runs, forecast.chosen], forecast.nodes, picture) == why


@pytest.mark.parametrize(
    ("now_s", "nodes", "why"),
    [
        (101.0, NODES[1:], "1 node fewer since"),
        (101.0, [{**NODES[0], "state": "lost"}, *NODES[1:]], "1 node fewer since"),
        (101.0, [*NODES, {**NODES[0], "id": "n4"}, {**NODES[0], "id": "n5"}], "2 nodes more since"),
        (101.0, NODES, ""),
        # it was told before the state that was gone on from
        (99.0, NODES[1:], ""),
        # and this by another runtime
        (9.0, NODES, "The cluster has begun anew since"),
    ],
)
def test_a_prediction_is_of_the_nodes_that_there_were(forecast, now_s, nodes, why):
    assert outdated([forecast.runs], forecast.nodes, now(now_s, nodes=nodes)) == why


def test_a_run_that_is_missing_leaves_its_row_and_gain_open(forecast):
    alone = Forecast(runs=None, chosen=forecast.chosen)
    assert [run is None for _, run in alone.lanes] == [True, False]
    assert alone.gain() == ""
    assert told(now(), alone)["Next start"] == ("not seen", "as it runs")
    assert told(now(), alone)["Gain if applied"] == ("not known", "what runs is not known here")


def test_a_gain_is_of_the_same_jobs(forecast):
    runs = tuple(replace(run, end_s=None) if run.id == "j-2" else run for run in forecast.runs.runs)
    stuck = replace(forecast.runs, runs=runs)
    assert replace(forecast, runs=stuck).gain() == "1 job more ends"
    assert replace(forecast, chosen=stuck).gain() == "1 job fewer ends"
    # as many end, but others
    runs = tuple(replace(run, end_s=None) if run.id == "j-1" else run for run in forecast.chosen.runs)
    other = replace(forecast.chosen, runs=runs)
    told = replace(forecast, runs=stuck, chosen=other).gain()
    assert told == "none that can be told: no job ends in both"
    third = replace(runs[0], id="j-3", end_s=150.0)
    both = replace(forecast, runs=replace(stuck, runs=(*stuck.runs, third)))
    both = replace(both, chosen=replace(other, runs=(*runs, replace(third, end_s=140.0))))
    told = "mean turnaround 10 s shorter, the last end 10 s earlier, over the 1 job that ends in both"
    assert both.gain() == told


def test_the_browser_is_told_of_both_rows_in_small_pieces_and_again_when_it_asks(forecast):
    part = TimelinePart(now())
    sent = []
    part.box.send = sent.append
    part.predict(forecast)
    part.heard(now())
    (head,) = [one for one in sent if "lanes" in one]
    assert [(one["title"], one["policy"], one["known"]) for one in head["lanes"]] == [
        ("as it runs", "fcfs", True),
        ("as chosen", "pwma-fpsma", True),
    ]
    assert (head["from"], head["end"]) == (100.0, pytest.approx(210.0))
    assert [one["left"] for one in head["lanes"]] == [0, 0]
    names = [event[1] for event in part._events.all if event[0] == "job"]
    rows = [
        [(names[job], begin, ranges) for job, begin, _, ranges in one["spans"]]
        for one in sent
        if "lane" in one
    ]
    assert rows[0] == [("j-1", 100.0, [0, 4]), ("j-2", 200.0, [0, 2])]
    assert rows[1][:2] == [("j-1", 100.0, [0, 2]), ("j-2", 100.0, [2, 2])]
    sent.clear()
    part.heard(now())
    assert not any("lanes" in one for one in sent), "said once"
    part._asked({"ask": "all"}, lambda job: None)
    assert head in sent
    sent.clear()
    stuck = tuple(replace(run, end_s=None) if run.id == "j-2" else run for run in forecast.runs.runs)
    part.predict(replace(forecast, runs=replace(forecast.runs, runs=stuck)))
    part.heard(now())
    (head,) = [one for one in sent if "lanes" in one]
    assert [one["left"] for one in head["lanes"]] == [1, 0], "not all end"
    sent.clear()
    part.predict(replace(forecast, stale="applied since"))
    part.heard(now())
    assert [one["stale"] for one in sent if "lanes" in one] == ["applied since"]
    assert "Nodes over time, as chosen (stale: applied since)" in part.html()
    part.box.close()


def test_a_page_of_a_large_cluster_is_filled_in_small_messages_and_not_many():
    state, nodes = large()
    lines = [encode_line(one) for one in many_changes()]
    happened = {"lines": lines, "number": len(lines), "whole": True}
    picture = Picture(status={"now_s": 100.0, "nodes": nodes, "pool_nodes": 500}, happened=happened)
    part = TimelinePart(picture)
    sent = []
    part.box.send = sent.append
    part.predict(forecast_of(simulate_from(state, FCFS), simulate_from(state, MALLEABLE), state.nodes))
    part.heard(replace(picture, happened={"lines": [], "number": len(lines), "whole": False}))
    sent.clear()
    part._asked({"ask": "all"}, lambda job: None)
    sizes = [len(json.dumps(one, separators=(",", ":"))) for one in sent]
    assert max(sizes) <= 8_000
    assert sum(sizes) <= 300_000
    assert len([one for one in sent if "lane" in one]) > 2, "in pieces"
    part.box.close()
