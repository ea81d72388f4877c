"""Faults that a hostile user has found in the panel, each as what holds instead."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
import yaml

import dask_hpc
from dask_hpc_policies import registry
from dask_hpc_widgets import views
from dask_hpc_widgets.base.link import Link
from dask_hpc_widgets.forms.fields import PolicyForm
from dask_hpc_widgets.forms.model import PolicyModel
from dask_hpc_widgets.live import questions, why
from dask_hpc_widgets.views import View

PATIENCE_S = 30.0
_kept: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_kept():
    yield
    _kept.clear()


@pytest.fixture
def panel(rt):
    made = rt.panel()
    yield made
    made.close()


def working(rt: Any, name: str, until_nodes: int, **request: Any) -> None:
    """A job that runs on so many nodes until it is cancelled."""
    with rt.job(name, **request) as job:
        _kept.append(rt.client.map(time.sleep, [0.05] * 1500, pure=False, key=name))
    deadline_s = time.monotonic() + PATIENCE_S
    # what opens it and its tasks travels beside the questions
    while (row := rt.find(job.id).status())["nodes"] != until_nodes or not row["unfinished_tasks"]:
        assert time.monotonic() < deadline_s, f"{name} has its nodes and its tasks"
        time.sleep(0.01)


def asked(panel: Any) -> bool:
    return panel.tuning._question.layout.display == "flex"


async def until(true: Any) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("other", ["simulate", "apply", "revert"])
def test_a_question_does_not_outlive_another_button(rt, panel, other):
    working(rt, "one", 4, min_nodes=1, max_nodes=4)
    working(rt, "two", 0, nodes=2)
    tuning = panel.tuning
    tuning.form.policy.value = "easy"
    tuning.apply.click()
    tuning.form.policy.value = "pwma-fpsma"
    tuning.apply.click()
    assert asked(panel)
    tuning.form.policy.value = "pwma-egs" if other == "apply" else "pwma-fpsma"
    if other != "apply":
        tuning.apply.click()
        assert asked(panel)
    getattr(tuning, other).click()
    # only another Apply asks anew, about itself
    assert asked(panel) == (other == "apply")
    if other != "apply":
        tuning.go.click()
        assert rt.status()["policy"]["policy"] == ("fcfs" if other == "revert" else "easy")
        assert [row["nodes"] for row in rt.jobs() if row["name"] == "one" and row["end_s"] is None] == [4]


def test_a_change_that_takes_long_is_waited_for_and_one_of_unknown_end_is_called_so(rt, panel, monkeypatch):
    update, limits = questions.update, []
    monkeypatch.setattr("dask_hpc_widgets.base.link.PATIENCE_S", 0.2)

    async def slow(*arguments: Any) -> Any:
        import asyncio

        await asyncio.sleep(0.5)
        limits.append("done")
        return await update(*arguments)

    monkeypatch.setattr(questions, "update", slow)
    panel.tuning.form.policy.value = "easy"
    panel.tuning.apply.click()
    assert limits == ["done"]
    assert "Applied." in panel.tuning.says.value
    assert rt.status()["policy"]["policy"] == "easy"
    assert not panel.tuning.revert.disabled

    async def lost(*_: Any) -> Any:
        raise OSError("the connection is lost")

    monkeypatch.setattr(questions, "update", lost)
    panel.tuning.form.policy.value = "fcfs"
    panel.tuning.apply.click()
    assert "whether the policy was changed is not known: the connection is lost" in panel.tuning.says.value


class Mine:
    """A policy that only its user has."""

    name = "mine"
    fcfs = registry.create("fcfs")

    def initial_state(self) -> Any:
        return self.fcfs.initial_state()

    def decide(self, view: Any, state: Any) -> Any:
        return self.fcfs.decide(view, state)


def test_before_an_object_of_the_users_is_replaced_it_is_said_that_it_cannot_come_back(rt):
    rt.update(policy=Mine())
    panel = rt.panel()
    panel.tuning.form.policy.value = "easy"
    panel.tuning.apply.click()
    assert "is an object that only the cluster has and cannot be brought back" in panel.tuning.says.value
    assert rt.status()["policy"]["policy"].endswith(":Mine")
    panel.tuning.go.click()
    assert rt.status()["policy"]["policy"] == "easy"
    assert panel.tuning.revert.disabled
    panel.close()


def test_simulate_names_the_policy_and_the_kind_of_an_error(rt, panel, monkeypatch):
    # of one that ran here before as long as this one has by now, nothing is left to decide
    working(rt, "another", 4, min_nodes=1, max_nodes=4)

    class Raises(Mine):
        def decide(self, view: Any, state: Any) -> Any:
            raise KeyError("boom")

    found = registry.create
    panel.tuning.form.policy.value = "easy"
    monkeypatch.setattr(registry, "create", lambda spec, **more: Raises() if spec else found(spec))
    panel.tuning.simulate.click()
    assert "not simulated with easy: KeyError: &#39;boom&#39;" in panel.tuning.says.value


def test_what_plain_work_uses_is_said_to_be_left_out(rt, panel):
    working(rt, "one", 2, nodes=2)
    _kept.append(rt.client.map(time.sleep, [0.05] * 100, pure=False, key="plain"))
    deadline_s = time.monotonic() + PATIENCE_S
    while "Plain work (no job) is left out" not in panel.tuning.predicted.value:
        assert time.monotonic() < deadline_s, panel.tuning.says.value
        panel.tuning.simulate.click()


def test_a_view_that_gives_no_text_says_so_and_the_next_ones_are_shown(rt, monkeypatch):
    monkeypatch.setattr(views, "_views", dict(views._views))
    views.register(View(name="mine", title="Mine", html=lambda picture: None))  # type: ignore[arg-type,return-value]
    views.register(View(name="last", title="Last", html=lambda picture: "<p>shown</p>"))
    panel = rt.panel()
    panel.ticks["mine"].value = panel.ticks["last"].value = True
    said = panel.bodies["mine"].value
    assert "the view mine failed: TypeError: its function gave NoneType, not text" in said
    assert "shown" in panel.bodies["last"].value
    assert "shown" in panel.html()
    panel.close()
    with pytest.raises(TypeError, match="View"):
        views.register("x")  # type: ignore[arg-type]


def test_news_that_cannot_be_shown_are_said_and_those_that_follow_are_shown(rt, monkeypatch):
    monkeypatch.setattr("dask_hpc_widgets.panel.PERIOD_S", 0.05)

    async def test() -> None:
        panel = rt.panel()
        heard = panel.timeline.heard

        def fails(answer: Any) -> None:
            raise KeyError("boom")

        panel.timeline.heard = fails
        await until(lambda: "cannot be shown: KeyError" in panel.head.value)
        panel.timeline.heard = heard
        before_s = panel.timeline.now_s
        await until(lambda: panel.timeline.now_s > before_s and "KeyError" not in panel.head.value)
        panel.close()

    asyncio.run(test())


def test_of_clicks_on_jobs_the_latest_is_answered_and_no_more_is_computed_for_those_before(rt, monkeypatch):
    about, begun = why.about, []

    def long(*arguments: Any) -> str:
        begun.append(arguments)
        while len(begun) == 1:
            arguments[-1]()
            time.sleep(0.001)
        return about(*arguments)

    monkeypatch.setattr(why, "about", long)
    working(rt, "one", 4, nodes=4)
    working(rt, "two", 0, nodes=2)
    job = next(row["id"] for row in rt.jobs() if row["name"] == "two" and row["end_s"] is None)

    async def test() -> None:
        panel = rt.panel()
        answers: list[str] = []
        panel.timeline.answered = lambda job, text: answers.append(text)
        panel._why(job)
        panel._why(job)
        # the second waits for nothing of the first, and nothing takes its place
        await until(lambda: answers and panel._looking is not None)
        await asyncio.sleep(0)
        assert [text.splitlines()[0] for text in answers] == ["two needs 2 nodes; 0 idle; one 4."]
        panel.close()

    asyncio.run(test())


def test_what_happened_under_another_installation_is_not_gone_on_with(rt):
    def happened(since: int) -> Any:
        found = rt.client.sync(rt.channel.ask, "picture", ended=0, decisions=0, since=since)
        return found["happened"]

    working(rt, "one", 2, nodes=2)
    number = happened(0)["number"]
    assert not happened(number)["whole"]
    rt.uninstall()
    # else it is plain work, which keeps a node
    _kept.clear()
    dask_hpc.install(rt.client, policy="fcfs")
    # as much has happened by now, and more
    working(rt, "two", 2, nodes=2)
    working(rt, "three", 2, nodes=2)
    assert happened(number)["whole"]


def test_what_takes_too_long_elsewhere_is_not_said_of_the_scheduler(rt):
    async def late() -> None:
        raise TimeoutError("no disk within 1 s")

    found: list[Any] = []
    Link(rt.client).ask(late, found.append, patient=True)
    assert str(found[0]) == "no disk within 1 s"


def test_a_view_without_its_section_is_not_offered_and_comes_when_that_does(rt, monkeypatch):
    monkeypatch.setattr(views, "_views", dict(views._views))
    views.register(View(name="watts", title="Watts", section="power", html=lambda one: one.section("power")))
    panel = rt.panel()
    panel.ticks["watts"].value = True
    assert panel.ticks["watts"].layout.display == "none"
    assert panel.bodies["watts"].value == ""
    assert ">Watts<" not in panel.html()
    more = {"power": "<b>42 W</b>", "section_failures": {"Meter": "OSError: broken"}}
    panel._show(replace(panel.picture, status={**panel.picture.status, **more}))
    assert panel.ticks["watts"].layout.display is None
    assert "<h3>Watts</h3><b>42 W</b>" in panel.bodies["watts"].value, "markup of its own"
    assert ">Watts<" in panel.html()
    assert "Meter cannot tell its state: OSError: broken" in panel.head.value
    panel.close()


FCFS = {"policy": "fcfs", "params": {}}


def test_a_file_is_replaced_only_when_that_was_ticked(tmp_path):
    form = PolicyForm(PolicyModel(FCFS))
    file = tmp_path / "policy.yaml"
    form.path.value = str(file)
    form.save.click()
    assert yaml.safe_load(file.read_text())["policy"] == "fcfs"
    file.write_text("mine: 1\n")
    form.save.click()
    assert "is there already: tick &#39;Replace the file&#39;" in form.about.value
    assert file.read_text() == "mine: 1\n"
    form.replace.value = True
    form.save.click()
    assert yaml.safe_load(file.read_text())["policy"] == "fcfs"
    assert not form.replace.value, "once"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("", "no policy file is named"),
        ("~nosuchuser/x.yaml", "home directory"),
        ("deep.yaml", "deep.yaml"),
    ],
)
def test_a_file_that_cannot_be_used_says_so_beside_the_policy(tmp_path, monkeypatch, path, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep.yaml").write_text("policy: " + "[" * 2000 + "]" * 2000)
    form = PolicyForm(PolicyModel(FCFS))
    form.about.value = "Saved."
    form.path.value = path
    form.load.click()
    assert "not loaded" in form.about.value
    if path != "deep.yaml":
        assert said in form.about.value
        form.save.click()
        assert "not saved" in form.about.value
        assert said in form.about.value


def test_a_number_of_thousands_of_digits_is_an_error_in_its_row():
    form = PolicyForm(PolicyModel({"policy": "fixed"}))
    name = next(one.name for one in form.model.parameters if one.kind == "int")
    form.controls[name].value = "9" * 5000
    assert "too many digits" in form.says[name].value
    assert len(form.says[name].value) < 1000
    assert form.model.errors
