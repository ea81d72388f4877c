"""The panel on a live cluster, without a kernel: nothing bad reaches it, nobody shrinks unasked."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import ipywidgets
import pytest
import traitlets
from distributed import Client
from panel_work import until, working

import dask_hpc
from dask_hpc.errors import InstallError
from dask_hpc_policies import registry
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.live import questions


def sizes(rt: Any) -> dict[str, int]:
    return {
        row["name"]: row["nodes"] for row in rt.jobs() if row["end_s"] is None and row["name"] != "default"
    }


def plain_tasks(rt: Any) -> int:
    return sum(row["unfinished_tasks"] for row in rt.jobs() if row["name"] == "default")


def policy(rt: Any) -> str:
    return rt.status()["policy"]["policy"]


def test_the_head_leads_to_the_dashboard_and_to_no_other_kind_of_address(rt, panel, cluster):
    assert f'<a href="{cluster.dashboard_link}"' in panel.head.value
    assert markup.link("x", "javascript:alert(1)") == "x"


# ------------------------------------------------------------------ bad input


def test_a_bad_value_in_any_field_of_any_policy_never_reaches_the_cluster(rt, panel, monkeypatch):
    asked: list[Any] = []

    async def update(*arguments: Any) -> Any:
        asked.append(arguments)

    monkeypatch.setattr(questions, "update", update)
    before = rt.status()["policy"]
    form, tuning = panel.tuning.form, panel.tuning
    fields = 0
    for name in (*registry.names(), *registry.library_names()):
        form.policy.value = name
        for one in form.model.parameters:
            control = form.controls[one.name]
            if isinstance(control, ipywidgets.Dropdown):
                with pytest.raises(traitlets.TraitError, match="Invalid selection"):
                    control.value = "garbage"
                continue
            fields += 1
            good = control.value
            bad = ["", "garbage?", "nan", "1e999", "-1e999"]
            bad += [repr(one.lo - 1)] if one.lo is not None else []
            bad += [repr(one.hi + 1)] if one.hi is not None else []
            for text in bad:
                control.value = text
                assert 'role="alert"' in form.says[one.name].value, (name, one.name, text)
                assert tuning.apply.disabled
                assert tuning.simulate.disabled
                # a click that was on its way when the field became bad
                tuning.apply.click()
                tuning.simulate.click()
            control.value = good
            assert 'role="alert"' not in form.says[one.name].value
            assert not tuning.apply.disabled
    assert fields > 20
    assert asked == []
    assert rt.status()["policy"] == before


@pytest.mark.parametrize("text", ["0 s", "", "garbage", "-5 min", "inf", "nan"])
def test_a_bad_assumption_predicts_and_changes_nothing(rt, panel, text):
    working(rt, "heat", nodes=2)
    panel.tuning.assumed.field.value = text
    panel.tuning.simulate.click()
    assert "not simulated" in panel.tuning.says.value
    panel.tuning.apply.click()
    assert "nothing was changed" in panel.tuning.says.value
    panel.trial.start.click()
    assert "not tried: parameter" in panel.trial.says.value
    assert not panel.trial.start.disabled
    assert panel.tuning.predicted.value == ""
    assert not panel.tuning.simulate.disabled


def test_simulate_without_a_job_says_why_not(rt, panel):
    panel.tuning.simulate.click()
    assert "not simulated" in panel.tuning.says.value
    assert "no job" in panel.tuning.says.value
    assert not panel.tuning.simulate.disabled


# ------------------------------------------------------------ apply and revert


def test_apply_acts_and_revert_takes_it_back(rt, panel):
    before = rt.status()["policy"]
    tuning = panel.tuning
    tuning.apply.click()
    assert "Nothing to apply" in tuning.says.value
    tuning.form.policy.value = "io-aware"
    name = next(iter(tuning.form.controls))
    chosen = tuning.model.spec()
    assert tuning.revert.disabled
    tuning.apply.click()
    assert "Applied" in tuning.says.value
    heads = re.findall("<th[^>]*>([^<]+)", tuning.says.value)
    assert heads == ["Setting", "Before", "Now"], "it is done"
    assert rt.status()["policy"] == chosen == tuning.model.running
    assert name in tuning.form.controls
    assert not tuning.revert.disabled
    tuning.revert.click()
    assert "Reverted" in tuning.says.value
    assert rt.status()["policy"] == before == tuning.model.running
    assert tuning.revert.disabled


def test_nobody_shrinks_before_a_person_agrees(rt, panel):
    working(rt, "heat", nodes=4, min_nodes=1, max_nodes=4)
    until(lambda: sizes(rt)["heat"] == 4, "heat has all nodes")
    working(rt, "late", nodes=2)
    tuning = panel.tuning
    tuning.form.policy.value = "pwma-fpsma"
    tuning.apply.click()
    assert "A job loses nodes at once. Go ahead?" in tuning.says.value
    assert "(heat) shrinks from 4 to 2 nodes" in tuning.says.value
    assert tuning._question.layout.display == "flex"
    assert (policy(rt), sizes(rt)) == ("fcfs", {"heat": 4, "late": 0})
    tuning.cancel.click()
    assert "Nothing was changed" in tuning.says.value
    assert tuning._question.layout.display == "none"
    # the answer was given: a second click on what is hidden now does nothing
    tuning.go.click()
    assert (policy(rt), sizes(rt)) == ("fcfs", {"heat": 4, "late": 0})
    tuning.apply.click()
    tuning.go.click()
    assert "Applied" in tuning.says.value
    assert policy(rt) == "pwma-fpsma"
    until(lambda: sizes(rt) == {"heat": 2, "late": 2}, "heat makes room for late")


def test_an_edit_takes_the_question_back(rt, panel, gate):
    working(rt, "heat", gate=gate, nodes=4, min_nodes=1, max_nodes=4)
    until(lambda: sizes(rt)["heat"] == 4, "heat has all nodes")
    working(rt, "late", gate=gate, nodes=2)
    tuning = panel.tuning
    tuning.form.policy.value = "pwma-fpsma"
    tuning.apply.click()
    assert tuning._question.layout.display == "flex"
    tuning.form.policy.value = "easy"
    assert tuning._question.layout.display == "none"
    tuning.go.click()
    assert policy(rt) == "fcfs"


def test_what_was_agreed_to_is_asked_again_when_more_would_be_lost(rt, panel):
    working(rt, "heat", nodes=4, min_nodes=1, max_nodes=4)
    until(lambda: sizes(rt)["heat"] == 4, "heat has all nodes")
    late = working(rt, "late", nodes=1)
    tuning = panel.tuning
    tuning.form.policy.value = "pwma-fpsma"
    tuning.apply.click()
    assert "(heat) shrinks from 4 to 3 nodes" in tuning.says.value
    late.cancel()
    until(lambda: plain_tasks(rt) == 0, "its tasks are gone")
    working(rt, "wide", nodes=3)
    tuning.go.click()
    assert "The cluster has changed meanwhile." in tuning.says.value
    assert "(heat) shrinks from 4 to 1 node" in tuning.says.value
    assert (policy(rt), sizes(rt)["heat"]) == ("fcfs", 4)
    tuning.go.click()
    assert policy(rt) == "pwma-fpsma"
    until(lambda: sizes(rt)["heat"] == 1, "heat makes room for wide")


def test_less_than_was_agreed_to_needs_no_other_answer(rt, panel, gate):
    working(rt, "heat", gate=gate, nodes=4, min_nodes=1, max_nodes=4)
    until(lambda: sizes(rt)["heat"] == 4, "heat has all nodes")
    wide = working(rt, "wide", gate=gate, nodes=3)
    tuning = panel.tuning
    tuning.form.policy.value = "pwma-fpsma"
    tuning.apply.click()
    wide.cancel()
    tuning.go.click()
    assert "Applied" in tuning.says.value
    assert policy(rt) == "pwma-fpsma"
    assert sizes(rt)["heat"] == 4


def test_somebody_elses_change_is_seen_when_it_matters(rt, panel, cluster):
    tuning = panel.tuning
    tuning.form.policy.value = "pwma-fpsma"
    with Client(cluster) as other:
        dask_hpc.runtime(other).update(policy="easy")
    # a panel that has not been told yet, about to go back to what ran: that is a change now
    tuning.form.policy.value = "fcfs"
    tuning.apply.click()
    assert policy(rt) == "fcfs"
    assert "Applied" in tuning.says.value
    tuning.revert.click()
    assert policy(rt) == "easy"


def test_a_panel_follows_what_others_apply_unless_it_is_being_edited(rt, panel):
    rt.update(policy="easy")
    panel._show(rt.client.sync(questions.picture, rt))
    assert panel.tuning.model.spec()["policy"] == "easy"
    assert "it was not changed here" in panel.tuning.says.value
    panel.tuning.form.policy.value = "pwma-fpsma"
    rt.update(policy="fcfs")
    panel._show(rt.client.sync(questions.picture, rt))
    assert panel.tuning.model.spec()["policy"] == "pwma-fpsma"
    assert panel.tuning.revert.disabled


# --------------------------------------------------------------- failing policies


class Fails:
    """A registered policy that decides as fcfs does until it is told to fail."""

    name = "fails"
    parameters = ()
    params: dict[str, Any] = {}  # noqa: RUF012
    failing = True
    #: Jobs that it can think of.
    most = 100

    def __init__(self) -> None:
        self._fcfs = registry.create("fcfs")

    def initial_state(self) -> Any:
        return self._fcfs.initial_state()

    def decide(self, view: Any, state: Any) -> Any:
        if type(self).failing or len(view.jobs) > type(self).most:
            raise ZeroDivisionError("no node to divide by")
        return self._fcfs.decide(view, state)


@pytest.fixture
def fails(monkeypatch):
    known = dict(registry._factories())
    monkeypatch.setattr(registry, "_factories", lambda: {**known, "fails": Fails})
    monkeypatch.setattr(Fails, "failing", True)
    monkeypatch.setattr(Fails, "most", 100)
    return Fails


def test_a_policy_that_fails_is_shown_to_and_the_cluster_keeps_its_own(rt, fails):
    working(rt, "heat", nodes=1)
    panel = rt.panel()
    try:
        panel.tuning.form.policy.value = "fails"
        panel.tuning.apply.click()
        said = panel.tuning.says.value
        assert "ZeroDivisionError: no node to divide by" in said
        assert "fcfs stays" in said
        assert policy(rt) == "fcfs"
        panel.tuning.simulate.click()
        assert "not simulated" in panel.tuning.says.value
        assert "no node to divide by" in panel.tuning.says.value
    finally:
        panel.close()


@pytest.mark.errors("Policy fails failed")
def test_a_policy_that_fails_at_the_sixth_job_gives_way_and_nobody_waits_for_it(rt, fails, monkeypatch):
    monkeypatch.setattr(fails, "failing", False)
    monkeypatch.setattr(fails, "most", 5)
    panel = rt.panel()
    try:
        panel.tuning.form.policy.value = "fails"
        panel.tuning.apply.click()
        jobs = [working(rt, f"heat{i}", nodes=1) for i in range(5)]
        assert policy(rt) == "fails"
        jobs.append(working(rt, "heat5", nodes=1))
        until(lambda: policy(rt) == "fcfs", "the last good policy is back")
        panel._show(rt.client.sync(questions.picture, rt))
        assert 'role="alert"' in panel.head.value
        assert "no node to divide by" in panel.head.value
        assert "fails" in panel.head.value
        assert panel.tuning.model.running["policy"] == "fcfs"
        assert [sizes(rt)[f"heat{i}"] for i in range(6)] == [1, 1, 1, 1, 0, 0], "four nodes"
        jobs[0].cancel()
        jobs[1].cancel()
        until(lambda: sizes(rt)["heat4"] == sizes(rt)["heat5"] == 1, "those that waited start")
    finally:
        panel.close()


def test_a_panel_before_install_is_refused_with_what_to_do_and_opens_after_it(rt):
    rt.uninstall()
    for opened in (rt.panel, lambda: dask_hpc.runtime(rt.client)):
        with pytest.raises(InstallError, match=r"not installed.*dask_hpc\.install\(client\)"):
            opened()
    dask_hpc.install(rt.client, policy="easy")
    panel = dask_hpc.runtime(rt.client).panel()
    try:
        assert "easy" in panel.head.value
    finally:
        panel.close()


# -------------------------------------------------------------------- its end


def test_closing_leaves_no_widget_and_twice_is_fine(rt):
    there = set(ipywidgets.widgets.widget._instances)
    panel = rt.panel()
    for name in ("io-aware", "easy", "pwma-egs"):
        panel.tuning.form.policy.value = name
    assert set(ipywidgets.widgets.widget._instances) > there
    before = rt.status()["policy"]
    panel.close()
    assert set(ipywidgets.widgets.widget._instances) == there
    panel.close()
    panel.tuning.apply.click()
    assert rt.status()["policy"] == before
    assert repr(panel) == "<Panel closed>"


def test_a_policy_that_only_the_cluster_knows_is_shown_and_can_be_replaced(rt, cluster, monkeypatch):
    status = rt.status()["policy"]
    alien = {**status, "policy": "registered-elsewhere"}
    picture = questions.picture

    async def seen(runtime: Any, since: int = 0) -> Any:
        found = await picture(runtime, since)
        return replace(found, status={**found.status, "policy": alien})

    monkeypatch.setattr(questions, "picture", seen)
    panel = rt.panel()
    try:
        assert "registered-elsewhere" in panel.head.value
        panel._show(rt.client.sync(questions.picture, rt))
        assert panel.trouble == ""
        panel.tuning.form.policy.value = "easy"
        panel.tuning.apply.click()
        assert policy(rt) == "easy"
    finally:
        panel.close()


def test_what_waits_for_long_is_said_in_the_panel_and_not_in_red(rt, panel, gate, caplog):
    rt.update(held_notice_s="0.2 s")
    try:
        working(rt, "hog", gate=gate, nodes=4)
        late, small = working(rt, "late", gate=gate, nodes=2), working(rt, "small", nodes=1)

        def shown(job=late):
            panel._show(rt.client.sync(questions.picture, rt))
            return f"Job {job.id} has been held for" in panel.notices.value

        until(lambda: shown() and shown(small), "the notices are in the panel")
        assert "cancel a running job" in panel.notices.value
        assert "ask for fewer than 2 nodes" in panel.notices.value
        assert "fewer than 1 " not in panel.notices.value
        # to wait is nothing wrong
        assert "Error" not in panel.notices.value
        # nor is it said of a job that waits for another reason by now
        others = [{**row, "reason": "waits for another"} for row in panel.picture.jobs]
        assert panel._notices(replace(panel.picture, jobs=others)) == ""
        rt.cancel(small.id)
        assert not [one for one in caplog.records if one.levelname == "WARNING" and "held for" in one.message]
        rt.cancel(late.id)
        until(lambda: not shown(), "it goes with the wait")
        panel.close()
        other = working(rt, "other", nodes=2)
        until(lambda: f"Job {other.id} has been held for" in caplog.text, "without a panel it is in the log")
    finally:
        rt.update(held_notice_s="10 s")
