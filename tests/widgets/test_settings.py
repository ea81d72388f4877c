"""Settings in the panel: what is typed, what is applied, and what comes from elsewhere."""

from __future__ import annotations

from html import unescape
from typing import Any

import pytest

from dask_hpc.config import Settings, table
from dask_hpc.errors import ConfigError
from dask_hpc_policies import codec
from dask_hpc_widgets.forms.settings_model import SettingsModel
from dask_hpc_widgets.live import questions


def running(**changes: Any) -> dict[str, Any]:
    return codec.encode(Settings().updated(**changes))


def test_what_is_not_edited_follows_the_cluster_and_what_is_edited_stays() -> None:
    model = SettingsModel(running())
    model.texts["tick"] = "5 s"
    assert model.report(running(tick="2 s", lock="system"))
    assert (model.texts["tick"], model.texts["lock"]) == ("5 s", "system")
    assert model.changes() == {"tick": "5 s"}
    model.reset()
    assert model.texts["tick"] == "2 s"
    assert model.changes() == {}
    assert not model.report(running(tick="2 s", lock="system"))


def test_the_same_value_in_other_words_is_no_change() -> None:
    model = SettingsModel(running(tick="2 s"))
    model.texts["tick"] = "2000 ms"
    assert model.changes() == {}
    model.texts["tick"] = "2 h"
    assert list(model.errors) == ["tick"]
    with pytest.raises(ConfigError, match=r"hpc\.tick is '2 h'"):
        model.changes()


def test_what_the_cluster_does_not_know_is_not_offered() -> None:
    there = running()
    del there["tick_s"]
    assert "tick" not in SettingsModel(there).texts
    offered = {one.key for one in table() if one.row.live and not one.knob}
    assert set(SettingsModel(running()).texts) == offered > {"lock", "pool.hold"}


def test_what_was_typed_in_other_words_follows_the_cluster_once_it_has_it() -> None:
    model = SettingsModel(running())
    model.texts["tick"] = "2000 ms"
    assert model.report(running(tick="2 s"))
    assert model.theirs == {}
    model.texts["lock"] = "system"
    assert model.report(running(tick="3 s"))
    assert model.changes() == {"lock": "system"}
    model.texts["tick"] = "never"
    assert model.report(running(tick="4 s"))
    assert (model.texts["tick"], model.theirs) == ("never", {"tick": "4 s"})


@pytest.fixture
def part(rt: Any) -> Any:
    made = rt.panel()
    made.settings.show.value = True
    yield made.settings
    made.close()


def test_apply_changes_all_or_nothing_and_says_so(rt: Any, part: Any) -> None:
    part.apply.click()
    assert "Nothing to apply" in part.says.value
    part.fields.controls["pool.hold"].value = "5 min"
    part.fields.controls["lock"].value = "system"
    part.apply.click()
    assert "lock is system, pool.hold is 5 min" in part.says.value
    found = rt.status()["settings"]
    assert (found["pool_hold_s"], found["lock"]) == (300.0, "system")
    assert "Applied" in part.says.value
    rt.update(pool_hold_s=60, lock="job")


def test_of_two_panels_the_second_is_told_what_the_first_has_changed(rt: Any, part: Any) -> None:
    other = rt.panel()
    other.settings.show.value = True
    for one, tick in (part, "5 s"), (other.settings, "2 s"):
        one.fields.controls["tick"].value = tick
    other.settings.fields.controls["pool.hold"].value = "5 min"
    other.settings.apply.click()
    part.report(rt.status()["settings"])
    assert "changed elsewhere: tick is 2 s." in part.says.value
    assert part.fields.controls["tick"].value == "5 s"
    part.apply.click()
    found = rt.status()["settings"]
    assert (found["tick_s"], found["pool_hold_s"]) == (5.0, 300.0)
    other.settings.report(found)
    assert other.settings.fields.controls["tick"].value == "5 s"
    assert "elsewhere" not in other.settings.says.value
    other.close()
    rt.update(pool_hold_s=60, tick="50 ms")


def test_what_the_cluster_refuses_changes_nothing(rt: Any, part: Any, monkeypatch: Any) -> None:
    async def refused(*_: Any) -> Any:
        raise ConfigError("hpc.lock is <so>; allowed: another")

    monkeypatch.setattr(questions, "change", refused)
    part.fields.controls["lock"].value = "system"
    part.apply.click()
    assert "nothing was changed: hpc.lock is <so>" in unescape(part.says.value)
    assert not part.apply.disabled
    part.reset.click()
    assert part.fields.controls["lock"].value == "job"


def test_the_form_is_made_when_it_is_asked_for_and_goes_with_the_panel(rt: Any) -> None:
    panel = rt.panel()
    assert panel.settings.fields.controls == {}
    panel.settings.show.value = True
    controls = panel.settings.fields.controls
    assert len(controls) > 8
    panel.close()
    assert [key for key, control in controls.items() if control.comm is not None] == []


def test_the_static_twin_tells_them(rt: Any) -> None:
    panel = rt.panel()
    text = unescape(panel.html())
    assert "How long adaptive clusters keep nodes" in text
    assert "pool.hold" in text
    panel.close()
