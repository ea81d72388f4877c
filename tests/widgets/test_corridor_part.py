"""The power corridor is set and cleared in the panel; bounds that cannot be are said, and change nothing."""

from __future__ import annotations

import time

from panel_work import until, working


def test_bounds_are_typed_set_refused_and_cleared(rt, panel):
    assert panel.corridor.box.layout.display == "none", "nothing says what a node draws: no view, no form"
    rt.update(power_model_idle_w=70, power_model_busy_w=200)
    later = rt.panel()
    part = later.corridor
    try:
        later.ticks["power"].value = True
        assert part.box.layout.display is None
        part.lower.value, part.upper.value = "", " 1.5 kW "
        part.set.click()
        until(lambda: "at most 1500 W (enforce)" in part.says.value, "it is set")
        assert (rt.power()["lower_w"], rt.power()["upper_w"]) == (0, 1500)
        part.lower.value, part.upper.value = "300", "200"
        part.set.click()
        until(lambda: "Nothing was set" in part.says.value, "it is refused")
        assert "lower_w is 300 W, above upper_w, which is 200 W" in part.says.value
        part.lower.value, part.upper.value = "<b>much</b>", ""
        part.set.click()
        until(lambda: "is not a power" in part.says.value, "it is refused")
        assert "<b>" not in part.says.value
        assert rt.power()["upper_w"] == 1500, "the bounds stay"
        part.lower.value = "100"
        part.set.click()
        until(lambda: "at least 100 W, no upper bound" in part.says.value, "one side may be open")
        part.clear.click()
        until(lambda: "There is no corridor." in part.says.value, "it is cleared")
        assert rt.power()["mode"] is None
    finally:
        later.close()
        rt.corridor(clear=True)
        rt.update(power_model_idle_w=None, power_model_busy_w=None)


def test_while_jobs_run_bounds_are_set_only_after_a_person_has_agreed(rt):
    rt.update(power_model_idle_w=70, power_model_busy_w=200)
    panel = rt.panel()
    part = panel.corridor
    # after the last picture that the panel has had: it is asked for when it counts
    heat = working(rt, "heat", min_nodes=1, max_nodes=4)
    until(lambda: rt.find(heat.id).status()["nodes"] == 4, "it runs")

    def asked():
        return part._question.layout.display == "flex"

    try:
        panel.ticks["power"].value = True
        for take_back in (part.cancel.click, lambda: setattr(part.upper, "value", "300")):
            part.set.click()
            until(asked, "it is asked for")
            assert "1 job runs and may lose nodes to these bounds." in part.asks.value
            take_back()
            assert not asked()
            assert "Nothing was set." in part.says.value
            part.go.click()
            assert rt.power()["mode"] is None, "a no is a no"
        part.set.click()
        until(asked, "it is asked for")
        part.go.click()
        assert "at most 300 W (enforce)" in part.says.value
        assert not asked()
        part.clear.click()
        until(lambda: "There is no corridor." in part.says.value, "it is cleared")
        # work that is nobody's
        heat.cancel()
        plain = rt.client.map(time.sleep, [0.1] * 600, pure=False)
        until(lambda: any(rt.client.processing().values()), "it is there")
        part.set.click()
        until(asked, "it is asked for")
        assert "Plain work runs and may lose nodes to these bounds." in part.asks.value
        part.cancel.click()
        rt.client.cancel(plain)
    finally:
        panel.close()
        rt.corridor(clear=True)
        rt.update(power_model_idle_w=None, power_model_busy_w=None)
