"""Why a job waits: what is said comes from runs of the simulator, and what is proposed does what it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.sim.learned import learn
from dask_hpc.sim.waiting import Waiting, why_waiting
from dask_hpc.sim.what_if import simulate_from
from dask_hpc_policies import registry
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView

HOG = JobView(
    id="hog", name="ensemble", state="running", kind="malleable", nodes=6, start_nodes=4, min_nodes=2,
    max_nodes=8, submit_s=1.0, start_s=40.0, walltime_s=110.0, remaining_s=50.0,
)  # fmt: skip
LATE = JobView(
    id="late", kind="rigid", start_nodes=4, min_nodes=4, max_nodes=4, submit_s=90.0, walltime_s=10.0
)
VIEW = ClusterSnapshot(now_s=100.0, jobs=(HOG, LATE), idle_nodes=2)
FCFS = {"policy": "fcfs"}


def asked(view: ClusterSnapshot = VIEW, job: str = "late", policy: dict[str, Any] = FCFS) -> Waiting | None:
    rows = [{"id": one.id, "reason": "2 of 4 nodes are idle"} for one in view.jobs]
    return why_waiting(view, rows, policy, job)


def start_in_s(view: ClusterSnapshot, policy: Any, job: str) -> float:
    learned, _ = learn(view, [], 60.0)
    runs = simulate_from(learned, policy).runs
    return next(run.start_s - view.now_s for run in runs if run.id == job and run.start_s is not None)


def applied(view: ClusterSnapshot, job: str, change: Any) -> tuple[ClusterSnapshot, Any]:
    """State and policy once a user has done what was proposed, by its data alone."""
    declare, resize = change.get("declare"), change.get("resize", {})
    jobs, idle = [], view.idle_nodes
    for one in view.jobs:
        if one.id == job and declare:
            one = replace(one, kind="malleable", start_nodes=None, submit_s=view.now_s, **declare)
        if one.id == resize.get("job"):
            idle += one.nodes - resize["nodes"]
            longer = one.nodes / resize["nodes"]
            one = replace(one, nodes=resize["nodes"], remaining_s=one.remaining_s * longer)
        jobs.append(one)
    return replace(view, jobs=tuple(jobs), idle_nodes=idle), change.get("policy", FCFS)


def test_who_holds_nodes_when_it_starts_and_what_would_start_it_at_once() -> None:
    found = asked()
    assert found is not None
    assert (found.needs_nodes, found.idle_nodes, found.start_in_s) == (4, 2, pytest.approx(50.0))
    assert [(one.name, one.nodes, one.remaining_s) for one in found.holders] == [("ensemble", 6, 50.0)]
    said = str(found).splitlines()
    assert said[:3] == [
        "late needs 4 nodes; 2 idle; ensemble 6.",
        "Last decision: 2 of 4 nodes are idle.",
        "As things are it starts in 50 s.",
    ]
    assert said[3].startswith(
        "It starts at once declared anew with min_nodes=2 or if ensemble gives 2 nodes or under "
    )
    assert " fair" in said[3]
    # 300 node-seconds are left: under these 2 more nodes go to the ensemble first
    assert said[4].startswith("It starts in 37.5 s under prma-fpsma, ")
    assert said[-1] == "Of 2 jobs little is known: take times for a guess."


def test_a_proposal_that_rests_on_what_other_jobs_took_is_called_a_guess() -> None:
    hog = replace(HOG, unfinished_tasks=300, remaining_s=None)
    late = replace(LATE, unfinished_tasks=40)
    known = {"id": "hog", "closed": True, "phases": [{"tasks": 50, "compute_s": 50.0}]}

    def last(**row: Any) -> str:
        found = why_waiting(replace(VIEW, jobs=(hog, late)), [known, {"id": "late", **row}], FCFS, "late")
        assert found is not None
        assert any("if ensemble gives 2 nodes" in text for text in found.helps()["starts at once"])
        return str(found).splitlines()[-1]

    assert last() == "Of 1 job little is known: take times for a guess."
    # tasks of their names have run before
    assert "a guess" not in last(held_task_s=1.0)


@pytest.mark.parametrize(
    ("left_s", "when"),
    [
        (0.0, "at once"),
        (0.09, "at once"),
        (0.11, "in under a second"),
        (0.44, "in under a second"),
        (1.5, "in 1.5 s"),
    ],
)
def test_at_once_is_said_of_no_wait_that_anybody_could_see(left_s: float, when: str) -> None:
    found = asked(replace(VIEW, jobs=(replace(HOG, remaining_s=left_s), LATE)))
    assert f"As things are it starts {when}." in str(found).splitlines()


@pytest.mark.parametrize("policy", ["fcfs", "easy"])
def test_what_would_not_start_it_earlier_is_not_proposed(policy: str) -> None:
    found = asked(policy={"policy": policy})
    assert found is not None
    assert {"fcfs", "easy", "conservative", "dask-default"}.isdisjoint(
        one.change["policy"]["policy"] for one in found.remedies if "policy" in one.change
    )


def test_nobody_is_asked_to_give_what_it_needs_itself() -> None:
    found = asked(replace(VIEW, jobs=(replace(HOG, min_nodes=5), LATE)))
    assert found is not None
    assert not any("resize" in one.change for one in found.remedies)
    rigid = asked(replace(VIEW, jobs=(replace(HOG, kind="rigid"), LATE)))
    assert rigid is not None
    assert not any("resize" in one.change for one in rigid.remedies)


def test_only_sizes_that_a_job_may_have_are_proposed() -> None:
    """A resize against a constraint is refused, and a job declared with such a minimum starts larger."""
    hog = replace(HOG, nodes=4, min_nodes=1, constraint="pof2")
    late = replace(LATE, kind="malleable", start_nodes=None, min_nodes=3, max_nodes=4, constraint="even")
    found = asked(replace(VIEW, jobs=(hog, late), idle_nodes=3))
    assert found is not None
    # the smallest even size from 3 on
    assert str(found).startswith("late needs 4 nodes; 3 idle; ensemble 4.")
    changes = {one.text: one.change for one in found.remedies if "policy" not in one.change}
    assert changes == {
        "declared anew with min_nodes=2": {"declare": {"min_nodes": 2, "max_nodes": 4}},
        # with 3 it would not be a power of two
        "if ensemble gives 2 nodes": {"resize": {"job": "hog", "nodes": 2}},
    }


def test_a_job_that_runs_or_has_gone_does_not_wait() -> None:
    assert asked(job="hog") is None
    assert asked(job="nobody") is None


def test_a_policy_that_only_the_cluster_knows_is_not_guessed_at() -> None:
    found = asked(policy={"policy": "mine:Policy"})
    assert found is not None
    assert found.start_in_s is None
    assert "As things are it does not start, as far as can be seen." in str(found)
    assert all("policy" in one.change for one in found.remedies)
    assert found.remedies


def test_a_job_of_one_node_is_not_proposed_to_be_smaller_and_a_full_cluster_says_so() -> None:
    one = replace(LATE, start_nodes=1, min_nodes=1, max_nodes=1)
    full = replace(VIEW, jobs=(replace(HOG, nodes=8, min_nodes=8), one), idle_nodes=0)
    found = asked(full)
    assert found is not None
    assert str(found).startswith("late needs 1 node; 0 idle; ensemble 8.")
    assert not any("declare" in remedy.change for remedy in found.remedies)


def test_what_is_declared_anew_comes_behind_those_that_wait() -> None:
    """A job that waits cannot be changed: who asks for less cancels it and loses the place."""
    other = replace(LATE, id="other", start_nodes=2, min_nodes=2, max_nodes=2, submit_s=95.0)
    (alone,) = [one for one in asked().remedies if "declare" in one.change]
    assert alone.start_in_s == 0
    found = asked(replace(VIEW, jobs=(HOG, LATE, other)))
    # `other` takes the two idle nodes first, for ten seconds
    (behind,) = [one for one in found.remedies if "declare" in one.change]
    assert behind.start_in_s == pytest.approx(10.0)


def test_nodes_that_a_job_gives_are_known_by_name() -> None:
    nodes = tuple(
        NodeView(id=f"n{number}", job="hog" if number < 6 else None, walltime_left_s=1000.0)
        for number in range(8)
    )
    found = asked(replace(VIEW, nodes=nodes))
    assert found is not None
    assert any(one.change == {"resize": {"job": "hog", "nodes": 4}} for one in found.remedies)


@given(st.data())
def test_every_proposal_carried_out_starts_the_job_when_it_said(data: st.DataObject) -> None:
    """From its data alone, in random states."""
    jobs = []
    for number in range(data.draw(st.integers(1, 4), "running")):
        low = data.draw(st.integers(1, 3))
        nodes = data.draw(st.integers(low, 6))
        kind = data.draw(st.sampled_from(["malleable", "rigid"]))
        bounds = {"min_nodes": low, "max_nodes": 8} if kind == "malleable" else {
            "min_nodes": nodes, "max_nodes": nodes, "start_nodes": nodes
        }  # fmt: skip
        left_s = float(data.draw(st.integers(5, 100)))
        jobs.append(
            JobView(
                id=f"r{number}",
                state="running",
                kind=kind,
                nodes=nodes,
                submit_s=float(number),
                start_s=50.0,
                remaining_s=left_s,
                **bounds,
            )
        )
    idle = data.draw(st.integers(0, 3), "idle")
    for number in range(data.draw(st.integers(1, 3), "waiting")):
        needs = data.draw(st.integers(1, idle + sum(job.nodes for job in jobs if job.nodes)))
        jobs.append(
            JobView(
                id=f"w{number}",
                kind="rigid",
                start_nodes=needs,
                min_nodes=needs,
                max_nodes=needs,
                submit_s=90.0 + number,
                walltime_s=20.0,
            )
        )
    view = ClusterSnapshot(now_s=100.0, jobs=tuple(jobs), idle_nodes=idle)
    name = jobs[-1].id
    found = asked(view, name)
    assert found is not None
    assert found.start_in_s == pytest.approx(start_in_s(view, FCFS, name))
    for one in found.remedies:
        assert one.start_in_s < found.start_in_s
        assert start_in_s(*applied(view, name, one.change), name) == pytest.approx(one.start_in_s), one
    assert [one.start_in_s for one in found.remedies] == sorted(one.start_in_s for one in found.remedies)


def test_a_policy_of_somebody_else_that_fails_there_is_no_help_and_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Fails:
        name = "fails"

        def initial_state(self) -> None:
            return None

        def decide(self, view: Any, state: Any) -> Any:
            raise ZeroDivisionError("no node to divide by")

    create = registry.create
    monkeypatch.setattr(registry, "names", lambda: ("fails", "fair"))
    monkeypatch.setattr(
        registry, "create", lambda spec: Fails() if spec == {"policy": "fails"} else create(spec)
    )
    found = asked()
    assert found is not None
    assert [one.change["policy"]["policy"] for one in found.remedies if "policy" in one.change] == ["fair"]
