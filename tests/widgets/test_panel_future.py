"""The panel on a live cluster: its numbers are the cluster's, what it predicts is drawn, and ages."""

from __future__ import annotations

from time import sleep
from typing import Any

import pytest
from panel_work import until, working

import dask_hpc
from dask_hpc.sim import learned, waiting
from dask_hpc_widgets import views
from dask_hpc_widgets.live import questions, ranking, try_all, tuning
from dask_hpc_widgets.live.what_if import what_if
from dask_hpc_widgets.views.table import EVERY


def tile(panel, label):
    return next(one for one in panel.timeline._moment()["tiles"] if one[0] == label)


def refreshed(rt, panel):
    """The panel, once it has heard of now."""
    answer = rt.client.sync(questions.picture, rt, panel.timeline.number)
    panel.timeline.heard(answer)
    panel._show(answer)
    return answer


def test_tiles_agree_with_the_status_at_every_update_of_a_run(rt, panel):
    seen = set()
    jobs = [working(rt, f"j{i}", min_nodes=1, max_nodes=2) for i in range(5)]

    def same():
        answer = refreshed(rt, panel)
        held = [node for node in answer.status["nodes"] if node["job"] and node["state"] != "lost"]
        busy = answer.status["nodes_at_work"]
        assert len(held) <= busy <= answer.status["pool_nodes"]
        at_work, waiting = tile(panel, "Nodes at work")[1], tile(panel, "Jobs waiting")[1]
        assert at_work == f"{busy} of {answer.status['pool_nodes']}"
        assert f" {busy} at work" in views.named("nodes").table(answer, EVERY).note
        assert waiting == str(answer.status["jobs_pending"])
        assert sum(row["state"] == "pending" for row in answer.jobs) == int(waiting)
        seen.add((at_work, waiting))
        return answer

    until(lambda: same().status["jobs_running"] >= 2, "two run")
    rt.find(jobs[0].id).resize(1)
    until(lambda: same().status["jobs_running"] >= 3, "a third starts on what the first gave up")
    for job in jobs:
        rt.cancel(job.id)
        same()
    until(lambda: same().status["jobs_running"] == 0, "all have ended")
    assert len(seen) >= 4


def test_nodes_that_plain_work_is_on_are_at_work(rt, panel):
    tasks = rt.client.map(sleep, [0.05] * 1000, pure=False, key="plain")
    until(lambda: refreshed(rt, panel).status["nodes_at_work"] == 4, "before the first job")
    assert tile(panel, "Nodes at work")[1] == "4 of 4"
    # else its tasks would be lent the nodes that are left
    working(rt, "heat", nodes=1, exclusive=True)
    note = "4 nodes; 4 at work; 1 held by jobs; 3 for plain work or idle."
    until(lambda: views.named("nodes").table(refreshed(rt, panel), EVERY).note == note, "beside a job")
    assert tile(panel, "Nodes at work")[1] == "4 of 4"
    rt.client.cancel(tasks)
    until(lambda: refreshed(rt, panel).status["nodes_at_work"] == 1, "the job alone")
    assert tile(panel, "Nodes at work")[1] == "1 of 4"


def test_what_simulate_predicts_is_in_the_picture_until_it_is_applied(rt, panel, gate):
    working(rt, "heat", gate=gate, min_nodes=1, max_nodes=4, walltime="30 min")
    # with as much work it would end sooner on all nodes, behind the other
    working(rt, "late", 100, gate=gate, nodes=2, walltime="10 min")
    refreshed(rt, panel)
    assert tile(panel, "Next start")[1] == "not known"
    panel.tuning.form.policy.value = "pwma-fpsma"
    panel.tuning.simulate.click()
    forecast = panel.timeline.forecast
    assert [run.policy["policy"] for _, run in forecast.lanes] == ["fcfs", "pwma-fpsma"]
    assert not forecast.stale
    assert tile(panel, "Next start")[1].startswith("in ")
    assert tile(panel, "Gain if applied")[1].endswith(" earlier")
    panel.tuning.apply.click()
    panel.tuning.go.click()
    assert panel.timeline.forecast.stale == "applied since"
    assert "Stale. Applied since" in panel.tuning.predicted.value
    assert tile(panel, "Gain if applied")[1] == "stale"


def test_an_edit_makes_a_prediction_stale(rt, panel, gate):
    working(rt, "heat", gate=gate, min_nodes=1, max_nodes=4)
    panel.tuning.simulate.click()
    assert not panel.timeline.forecast.stale
    panel.tuning.form.policy.value = "easy"
    assert panel.timeline.forecast.stale == "the settings have changed since"


@pytest.mark.parametrize(
    ("name", "text"), [("step", "next"), ("min_remaining_s", "never"), ("assumed", "5 s")]
)
def test_an_edit_while_it_is_simulated_makes_what_comes_of_it_stale(rt, panel, gate, monkeypatch, name, text):
    working(rt, "heat", gate=gate, min_nodes=1, max_nodes=4)
    panel.tuning.form.policy.value = "pwma-fpsma"
    field = panel.tuning.assumed.field if name == "assumed" else panel.tuning.form.controls[name]
    typed = field.value
    outcome: list[Any] = []

    def edited(*arguments):
        field.value = text
        outcome.append(what_if(*arguments))
        return outcome[0]

    monkeypatch.setattr(tuning, "what_if", edited)
    panel.tuning.simulate.click()
    assert panel.timeline.forecast.stale == "the settings have changed since"
    assert [run.policy["params"]["step"] for run in list(outcome[0].runs.values())[1:]] == ["max"]
    field.value = typed
    monkeypatch.setattr(tuning, "what_if", lambda *arguments: 1 / 0 if edited(*arguments) else None)
    panel.tuning.simulate.click()
    assert "not simulated with pwma-fpsma: ZeroDivisionError" in panel.tuning.says.value


def test_a_job_that_is_cancelled_or_comes_makes_a_prediction_stale(rt, panel, gate):
    heat = working(rt, "heat", gate=gate, min_nodes=1, max_nodes=4)
    working(rt, "late", gate=gate, nodes=2)
    panel.tuning.simulate.click()
    refreshed(rt, panel)
    assert not panel.timeline.forecast.stale
    heat.cancel()
    refreshed(rt, panel)
    assert panel.timeline.forecast.stale == "job heat has been cancelled since"
    assert "Stale. Job heat has been cancelled since: simulate again" in panel.tuning.predicted.value
    panel.tuning.simulate.click()
    refreshed(rt, panel)
    assert not panel.timeline.forecast.stale
    working(rt, "next", gate=gate, nodes=1)
    refreshed(rt, panel)
    assert panel.timeline.forecast.stale == "job next has come since"


def test_what_cannot_be_chosen_now_is_said(rt, panel):
    working(rt, "heat", min_nodes=1, max_nodes=4)
    panel.tuning._set_busy(True)
    panel.tuning.choose("easy", None)
    assert "easy was not chosen" in panel.tuning.says.value
    assert panel.tuning.model.spec()["policy"] == "fcfs"


def test_a_click_on_a_job_says_what_blocks_it(rt, panel, gate):
    heat = working(rt, "heat", gate=gate, min_nodes=1, max_nodes=4)
    late = working(rt, "late", gate=gate, nodes=2)
    answers = {}
    panel.timeline.answered = answers.__setitem__
    panel._why(late.id)
    assert "late needs 2 nodes; 0 idle; heat 4." in answers[late.id]
    assert "It starts at once if heat gives 2 nodes" in answers[late.id]
    panel._why(heat.id)
    assert answers[heat.id].startswith("Nothing blocks heat: it has 4 nodes.")
    assert "At this size it needs" in answers[heat.id]
    panel._why("gone-9")
    assert answers["gone-9"] == "gone-9 neither runs nor waits now."


def test_all_that_is_predicted_takes_one_time_for_jobs_of_which_nothing_is_known(
    rt, panel, gate, monkeypatch
):
    heat = working(rt, "heat", gate=gate, min_nodes=1, max_nodes=4)
    late = working(rt, "late", gate=gate, nodes=2)
    assert panel.tuning.assumed.seconds() == waiting.ASSUMED_S
    taken, learn = [], learned.learn

    def noted(view, rows, assumed_s):
        taken.append(assumed_s)
        return learn(view, rows, assumed_s)

    for module in (learned, waiting):
        monkeypatch.setattr(module, "learn", noted)
    panel.tuning.assumed.field.value = "5 min"
    panel.tuning.form.policy.value = "pwma-fpsma"
    acts = (
        lambda: panel._why(late.id),
        lambda: panel._why(heat.id),
        panel.trial.start.click,
        panel.tuning.simulate.click,
        panel.tuning.apply.click,
    )
    for act in acts:
        before = len(taken)
        act()
        assert len(taken) > before
    assert set(taken) == {300.0}


def test_a_click_on_a_job_says_what_was_predicted_of_it(rt, panel):
    heat = working(rt, "heat", min_nodes=1, max_nodes=4)
    answers = {}
    panel.timeline.answered = answers.__setitem__

    def forecast():
        rows = refreshed(rt, panel).jobs
        return next((row["forecast"] for row in rows if row["id"] == heat.id), None)

    found = until(forecast, "its end is forecast")
    panel._why(heat.id)
    assert found["text"][1:] in answers[heat.id].splitlines()[-1]


def test_the_best_of_all_policies_is_a_click_from_as_chosen(rt, panel, gate):
    working(rt, "heat", gate=gate, min_nodes=1, max_nodes=4, walltime="30 min")
    late = working(rt, "late", 100, gate=gate, nodes=2, walltime="10 min")
    refreshed(rt, panel)
    trial = panel.trial
    trial.goal.value = f"job:{late.id}"
    trial.start.click()
    assert trial.best.layout.display is None
    name = trial.best.description.removeprefix("Choose ")
    assert name in dask_hpc_names()
    refreshed(rt, panel)
    assert "Stale" not in trial.says.value
    # what was tried under another time for unknown jobs is not chosen
    for time, word, shown in (("6 min", "was changed since", "none"), ("60 s", "Best: ", None)):
        panel.tuning.assumed.field.value = time
        assert word in trial.says.value
        assert trial.best.layout.display == shown
    assert "Stale" not in trial.says.value
    trial.best.click()
    assert panel.tuning.model.spec()["policy"] == name
    assert [run.policy["policy"] for _, run in panel.timeline.forecast.lanes] == ["fcfs", name]
    assert not panel.timeline.forecast.stale
    assert rt.status()["policy"]["policy"] == "fcfs", "nothing was applied"
    refreshed(rt, panel)
    # a page that is loaded again has it, too
    assert [one["policy"] for one in panel.timeline._whole()["future"][0]["lanes"]] == ["fcfs", name]
    # another goal ranks what was found anew: the long job is best off as it is
    trial.goal.value = next(value for text, value in trial.goal.options if text.endswith(" heat"))
    assert trial.best.layout.display == "none"
    assert "None is predicted to do better than what runs." in trial.says.value
    # what was found is of the policy that ran then
    rt.update(policy="easy")
    refreshed(rt, panel)
    assert "Stale. The cluster decides by another policy since: try again." in trial.says.value
    trial.goal.value = "mean_turnaround_s"
    assert "Best: " in trial.says.value
    assert trial.best.layout.display == "none", "what is stale is not chosen"
    trial.start.click()
    late.cancel()
    refreshed(rt, panel)
    assert "Stale. Job late has been cancelled since: try again." in trial.says.value


def test_what_is_tried_while_another_time_is_assumed_is_stale(rt, panel, gate, monkeypatch):
    working(rt, "heat", gate=gate, min_nodes=1, max_nodes=4)
    refreshed(rt, panel)

    def edited(*arguments):
        panel.tuning.assumed.field.value = "6 min"
        return ranking.try_all(*arguments)

    monkeypatch.setattr(try_all, "try_all", edited)
    panel.trial.start.click()
    assert "Stale. The time for jobs of which nothing is known was changed" in panel.trial.says.value
    panel.tuning.assumed.field.value = "60 s"
    assert "Stale" not in panel.trial.says.value


def test_trying_without_a_job_says_why_not(rt, panel):
    panel.trial.start.click()
    assert "not tried: this cluster: no job" in panel.trial.says.value
    assert not panel.trial.start.disabled


def dask_hpc_names():
    return {row["name"] for row in dask_hpc.policies()}
