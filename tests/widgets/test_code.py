"""Copy as code: the lines that are given, run, make just what the panel says."""

from __future__ import annotations

import pytest

from dask_hpc_policies import registry
from dask_hpc_widgets.live.code import code


class Recorder:
    """A handle that notes what it is given."""

    def update(self, policy, **settings):
        self.got = (policy, settings)


def run(text, rt):
    exec(text, {"rt": rt})  # noqa: S102 - what a user would do with it


@pytest.mark.parametrize("name", [*registry.names(), *registry.library_names()])
def test_the_code_of_every_policy_gives_its_specification(name):
    spec, rt = registry.spec_of(registry.create(name)), Recorder()
    run(code(spec, {"tick": "50 ms"}), rt)
    assert rt.got == (spec, {"tick": "50 ms"})


def test_the_code_that_is_shown_gives_the_cluster_what_is_chosen(rt, panel):
    part, tuning = panel.code, panel.tuning
    part.refresh()
    assert part.text == "", "nothing is made of what nobody looks at"
    tuning.form.policy.value = "pwma-fpsma"
    tuning.form.controls["min_remaining_s"].value = "7 min"
    panel.settings.model.texts["tick"] = "70 ms"
    part.show.click()
    before = rt.status()
    assert before["policy"]["policy"] == "fcfs", "code alone changes nothing"
    assert part._text in part.box.children
    run(part.text, rt)
    after = rt.status()
    assert after["policy"] == tuning.model.spec() != before["policy"]
    assert after["policy"]["params"]["min_remaining_s"] == 420
    assert after["settings"]["tick_s"] == 0.07
    # the box follows what is chosen, and says so when that is no policy
    tuning.form.controls["min_remaining_s"].value = "8 min"
    part.refresh()
    assert "480" in part.text
    tuning.form.controls["min_remaining_s"].value = "soon"
    part.refresh()
    assert part.text == ""
    assert "is not a duration" in part.says.value
    assert part._text not in part.box.children
    part.show.click()
    assert len(part.box.children) == 2
