"""Every policy is tried from the present state, and the best by a goal is the best of what was run."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from panel_states import ASSUMED_S, FCFS, MALLEABLE, ROWS, STATE, job

from dask_hpc.errors import WorkloadError
from dask_hpc.sim import what_if as sim
from dask_hpc.sim.what_if import simulate_from
from dask_hpc_policies import registry
from dask_hpc_policies.codec import encode
from dask_hpc_policies.metrics import JobRun
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.power.view import PowerView
from dask_hpc_widgets.base.background import Cancelled
from dask_hpc_widgets.live.ranking import try_all


def test_every_policy_is_tried_and_the_one_that_runs_only_once():
    found = try_all(STATE, ROWS, FCFS, ASSUMED_S)
    assert found.tried[0].runs
    assert {one.name for one in found.tried} == set(registry.names())
    assert len(found.tried) == found.count == len(registry.names())
    other = {**MALLEABLE, "params": {**MALLEABLE["params"], "min_remaining_s": 5.0}}
    assert len(try_all(STATE, ROWS, other, ASSUMED_S).tried) == len(registry.names()) + 1


@pytest.mark.parametrize("goal", ["mean_turnaround_s", "makespan_s", "job:j-2", "job:j-1"])
def test_the_order_is_that_of_runs_of_their_own(goal):
    found = try_all(STATE, ROWS, FCFS, ASSUMED_S)
    values = [value for _, value in found.ranked(goal)]
    assert values == sorted(values)
    best, least_s = found.ranked(goal)[0]
    again = simulate_from(STATE, best.result.policy, default_s=100.0)
    assert best.result.policy == again.policy
    assert least_s == min(one.value(goal) for one in found.tried if one.result)


def test_the_best_is_better_than_what_runs_or_nobody():
    found = try_all(STATE, ROWS, FCFS, ASSUMED_S)
    best = found.best("job:j-2")
    # as it runs the short one waits 100 s for its 10 s
    assert found.tried[0].value("job:j-2") == pytest.approx(110)
    assert best.value("job:j-2") == pytest.approx(10)
    assert not best.runs
    # the long one is never better off than with all nodes: what runs stays
    assert found.best("job:j-1") is None
    assert found.best("job:gone") is None
    outcome = found.what_if(best)
    assert "_html" in vars(outcome), "made beside the loop of the kernel, as all of it is"
    assert list(outcome.runs) == ["fcfs, as it runs", f"{best.name}, as chosen"]
    html = found.html("job:j-2", "End of B <b>")
    assert "fcfs, as it runs" in html
    assert "1.7 min sooner" in html or "100 s sooner" in html
    assert "<b>" not in html


def test_who_has_a_job_wait_for_ever_is_not_best_by_the_times_of_the_others():
    # eight nodes never come: first come, first served, nobody behind starts either
    wide, behind = job(2, 0, 8, 8, 20), job(3, 0, 2, 2, 900)
    found = try_all(replace(STATE, jobs=(STATE.jobs[0], wide, behind)), ROWS, FCFS, ASSUMED_S)
    present = found.tried[0]
    assert present.unended("makespan_s") == 2
    for goal in ("mean_turnaround_s", "makespan_s"):
        ranked = found.ranked(goal)
        left = [one.unended(goal) for one, _ in ranked]
        assert left == sorted(left)
        assert left[0] == 1
        # it ends sooner, as it is the time of fewer
        assert present.value(goal) < ranked[0][1]
        assert found.best(goal) is ranked[0][0]
        html = found.html(goal, "x")
        assert "1 job of then never ends" in html
        assert "1 job more ends" in html
    assert present.unended("job:j-1") == 0


def leaving(tried, **ends):
    """What was tried, with jobs that end so many seconds after the state, or never."""
    after = tried.result.from_s
    runs = [
        JobRun(id=id, submit_s=after, start_s=after, end_s=None if end_s is None else after + end_s)
        for id, end_s in ends.items()
    ]
    return replace(tried, result=replace(tried.result, runs=tuple(runs)))


def test_those_that_leave_other_jobs_rank_by_the_jobs_that_end_under_all_of_them():
    made = try_all(STATE, ROWS, FCFS, ASSUMED_S)
    present, first, second = made.tried[:3]
    present = leaving(present, a=20, b=None, c=100)
    # a mean of 60 s as it runs, of 17.5 s here: the long one is not in it, and the other ends later
    found = replace(made, tried=(present, leaving(first, a=30, b=5, c=None)), count=2)
    assert found.ranked("mean_turnaround_s") == [(found.tried[0], 20.0), (found.tried[1], 30.0)]
    assert found.best("mean_turnaround_s") is None
    html = found.html("mean_turnaround_s", "x")
    assert "30 s over the 1 job that all of these end; 1 job of then never ends" in html
    assert "10 s later" in html
    # who leaves none is first, whatever the others take
    found = replace(found, tried=(*found.tried, leaving(second, a=500, b=500, c=500)))
    assert found.best("mean_turnaround_s") is found.tried[2]
    assert [one for one, _ in found.ranked("makespan_s")] == [found.tried[i] for i in (2, 0, 1)]
    assert "8.33 min</td>" in found.html("mean_turnaround_s", "x"), "of all jobs"


def test_one_under_which_fewer_jobs_end_is_not_best_where_the_others_have_none_in_common():
    made = try_all(STATE, ROWS, FCFS, ASSUMED_S)
    present, other, fewer = made.tried[:3]
    present = leaving(present, a=1, b=2, c=None, d=None)
    other = leaving(other, a=None, b=None, c=1, d=2)
    fewer = leaving(fewer, a=1, b=None, c=None, d=None)
    found = replace(made, tried=(present, other, fewer), count=3)
    for goal in ("mean_turnaround_s", "makespan_s"):
        assert found.ranked(goal)[-1] == (found.tried[2], 1.0)
        assert found.best(goal) is None


def test_a_job_that_never_ends_under_a_policy_is_in_the_table_and_last():
    made = try_all(STATE, ROWS, FCFS, ASSUMED_S)
    present, first = made.tried[:2]
    found = replace(made, tried=(leaving(present, a=None), leaving(first, a=7)), count=2)
    assert [value for _, value in found.ranked("job:a")] == [7.0, inf]
    assert found.best("job:a") is found.tried[1]
    html = found.html("job:a", "End of a")
    assert ">never<" in html
    assert ">ends<" in html
    found = replace(made, tried=(leaving(present, a=7), leaving(first, a=None)), count=2)
    assert found.best("job:a") is None
    assert ">never ends<" in found.html("job:a", "End of a")
    found = replace(made, tried=(leaving(present, a=None), leaving(first, a=None)), count=2)
    assert found.best("job:a") is None
    assert found.best("makespan_s") is None
    assert "no job ends under all of these; 1 job of then never ends" in found.html("makespan_s", "x")


def test_energy_is_a_goal_where_the_state_says_what_nodes_draw():
    assert try_all(STATE, ROWS, FCFS, ASSUMED_S).ranked("energy_j") == []
    power = encode(PowerView(idle_w=50.0, busy_w=120.0))
    found = try_all(replace(STATE, sections={"power": power}), ROWS, FCFS, ASSUMED_S)
    ranked = found.ranked("energy_j")
    assert len(ranked) == len(found.tried)
    # 4 nodes for 110 s, of which two are idle for the last 10 s
    assert found.tried[0].value("energy_j") == pytest.approx(4 * 100 * 120 + 10 * 2 * (120 + 50))
    html = found.html("energy_j", "Energy")
    assert "51.4 kJ" in html
    assert " kJ less" in html or " kJ more" in html


def test_one_that_fails_is_named_and_the_others_rank(monkeypatch):
    run = sim.simulate_from

    def failing(view, spec, **more):
        if spec["policy"] == "easy":
            raise ZeroDivisionError("by <zero>")
        return run(view, spec, **more)

    monkeypatch.setattr(sim, "simulate_from", failing)
    found = try_all(STATE, ROWS, FCFS, ASSUMED_S)
    assert "easy" not in {one.name for one, _ in found.ranked("makespan_s")}
    assert "easy cannot be run from here: ZeroDivisionError: by &lt;zero&gt;." in found.html(
        "makespan_s", "x"
    )


def test_one_that_cannot_be_made_is_named_and_the_others_rank(monkeypatch):
    create = registry.create

    def failing(spec, **more):
        if spec == "easy":
            raise ZeroDivisionError("by <zero>")
        return create(spec, **more)

    monkeypatch.setattr(registry, "create", failing)
    found = try_all(STATE, ROWS, FCFS, ASSUMED_S)
    assert len(found.tried) == found.count == len(registry.names())
    html = found.html("makespan_s", "x")
    assert "easy cannot be run from here: ZeroDivisionError: by &lt;zero&gt;." in html
    assert len(found.ranked("makespan_s")) == len(registry.names()) - 1
    assert "not tried" not in html


def test_plain_work_is_said_to_be_left_out():
    plain = replace(job(9, 1, 1, 1, 7), id="default-9", is_default=True)
    found = try_all(replace(STATE, jobs=(*STATE.jobs, plain)), ROWS, FCFS, ASSUMED_S)
    said = "Plain work (no job) is left out, with the 1 node that it uses: 7 tasks of it are left."
    assert said in found.html("makespan_s", "x")
    assert said in found.what_if(found.best("job:j-2")).html()


def test_it_is_told_how_far_it_is_and_what_was_found_stays_when_it_is_stopped():
    shares, kept = [], []

    def stop(share):
        shares.append(share)
        if share > 0.5:
            raise Cancelled("cancelled")

    with pytest.raises(Cancelled):
        try_all(STATE, ROWS, FCFS, ASSUMED_S, stop, kept.append)
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert 5 < len(kept[-1].tried) < kept[-1].count
    assert f"of {kept[-1].count} not tried." in kept[-1].html("makespan_s", "Last end")


def test_a_policy_that_only_the_cluster_knows_ranks_nowhere_and_without_jobs_there_is_nothing():
    custom = {"policy": "mine", "params": {}, "custom": True}
    found = try_all(STATE, ROWS, custom, ASSUMED_S)
    assert not any(one.runs for one in found.tried)
    assert found.best("makespan_s") is not None
    with pytest.raises(WorkloadError, match="no job runs or waits"):
        try_all(ClusterSnapshot(now_s=0.0), [], FCFS, ASSUMED_S)
