"""Measures of what a page shows below one element, and what of them is a fault.

Each `..._faults` gives sentences, none when all is well; what they rest on is measured in the page by
``measures.js``, and names by Chromium's own accessibility tree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import axe

if TYPE_CHECKING:
    from lab_page import LabPage
    from playwright.sync_api import Locator

#: Of the page. JupyterLab's own margins leave 284, 620 and 1020 px to what a cell shows.
WIDTHS = (400, 800, 1200)
#: WCAG 2.x, success criterion 1.4.3, for text of any size.
CONTRAST = 4.5
#: Roles of what a person can operate, in Chromium's accessibility tree.
_OPERATED = {
    "button", "checkbox", "combobox", "DisclosureTriangle", "image", "img", "link", "listbox", "menuitem",
    "option", "PopUpButton", "progressbar", "radio", "searchbox", "slider", "spinbutton", "switch", "tab",
    "textbox", "ToggleButton",
}  # fmt: skip
#: How long there may be nothing to be seen.
_PATIENCE_S = 5.0
_SCRIPT = Path(__file__).with_name("measures.js").read_text(encoding="utf-8")


def faults(
    lab: LabPage, panel: Locator, keep: Callable[[str], object], *, controls: int, again: bool = False
) -> list[str]:
    """All there are, of contrast, room, names and keyboard, and of what axe-core finds, in a panel.

    At each of `WIDTHS`, light and dark, with at least so many controls. Names are the same in both, and so is
    the way of the keyboard, of which only the marks are other colours: dark it is followed at one width; so
    is the way back. `again`: it was followed in another state of the panel, and is at one width now. `keep`
    takes a picture of each by name.
    """
    found: list[str] = []
    for dark in (False, True):
        lab.theme(dark=dark)
        for width in WIDTHS:
            lab.page.set_viewport_size({"width": width, "height": 1000})
            look = f"{width}-{'dark' if dark else 'light'}"
            keep(look)
            widest = width == max(WIDTHS)
            there = [*contrast_faults(panel), *overflow_faults(panel)]
            if widest:
                there += axe.violations(panel)
            back = widest and not dark
            if back or (not again and (widest or not dark)):
                there += [*name_faults(panel), *keyboard_faults(panel, at_least=controls, back=back)]
            found.extend(f"{look}: {one}" for one in there)
    lab.theme(dark=False)
    return found


def contrasts(panel: Locator) -> list[dict[str, Any]]:
    """Every text that is seen, with its contrast ratio, kind and colours, and whether it is disabled."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        # a page that draws itself anew shows nothing for a moment
        found = list(_measure(panel, "contrast"))
        if found or time.monotonic() > deadline_s:
            return found


def contrast_faults(panel: Locator) -> list[str]:
    """Texts with a contrast below `CONTRAST`, placeholders and disabled controls among them."""
    found = contrasts(panel)
    if not found:
        return ["no text is seen"]
    return [
        f"{one['kind']}{' (disabled)' * one['disabled']} {one['text']!r} in {one['where']} has contrast "
        f"{one['ratio']}: {one['front']} on {'an image over ' * one['image']}{one['behind']}"
        for one in found
        if one["ratio"] < CONTRAST or one["image"]
    ]


def overflow_faults(panel: Locator, but: Sequence[str] = ()) -> list[str]:
    """What is cut off, needs a scroll bar, sticks out of the panel, lies over something else, or is squeezed.

    `but` are kinds that may.
    """
    return [
        f"{one['kind']}: {one['where']} {one['text']!r} {_room(one)}"
        for one in _measure(panel, "overflow")
        if one["kind"] not in but
    ]


def _room(one: dict[str, Any]) -> str:
    if one["kind"] == "overlap":
        return "lie over one another"
    if one["kind"] == "squeezed":
        return f"has {one['has']} lines for {one['needs']} letters"
    return f"needs {one['needs']:g} px and has {one['has']:g}"


def name_faults(panel: Locator) -> list[str]:
    """Controls and images that have no name for those who hear the page."""
    page = panel.page
    session = page.context.new_cdp_session(page)
    try:
        panel.evaluate("element => { window.measuredPanel = element; }")
        found = session.send("Runtime.evaluate", {"expression": "window.measuredPanel"})
        tree = session.send("Accessibility.queryAXTree", {"objectId": found["result"]["objectId"]})
    finally:
        session.detach()
    nodes = [node for node in tree["nodes"] if not node["ignored"]]
    return [
        f"a {node['role']['value']} has no name (node {node['nodeId']})"
        for node in nodes
        if node["role"]["value"] in _OPERATED and not node.get("name", {}).get("value", "").strip()
    ]


def keyboard_faults(panel: Locator, at_least: int = 1, back: bool = True) -> list[str]:
    """Whether the Tab key goes through all controls in order, and `back`; each has to show its focus."""
    page = panel.page
    stops = list(_measure(panel, "stops"))
    faults = [f"{where} is left out by the Tab key" for where in _measure(panel, "unreached")]
    if len(stops) < at_least:
        return [*faults, f"the Tab key can reach {len(stops)} controls of at least {at_least}"]
    page.evaluate("window.daskHpcMeasures.follow()")
    panel.locator('[data-stop="0"]').focus()
    way = [("Tab", stop) for stop in stops[1:]]
    if back:
        way += [("Shift+Tab", stop) for stop in reversed(stops[:-1])]
    for key, _ in way:
        page.keyboard.press(key)
    seen = page.evaluate("window.daskHpcMeasures.followed()")
    if len(seen) != len(way):
        return [*faults, f"of {len(way)} presses of the Tab key the page has noticed {len(seen)}"]
    faults += [fault for now, (_, stop) in zip(seen, way, strict=True) if (fault := _focus_fault(now, stop))]
    return list(dict.fromkeys(faults))


def _focus_fault(now: dict[str, Any], stop: dict[str, Any]) -> str:
    """What is wrong with what has focus after the Tab key should have come to a stop; empty: nothing."""
    if now["stop"] != stop["stop"]:
        return f"the focus is on {now['where']} instead of {stop['where']} (stop {stop['stop']})"
    same = now["look"] == stop["look"]
    return f"{stop['where']} (stop {stop['stop']}) looks the same with focus as without" if same else ""


def _measure(panel: Locator, name: str) -> Any:
    page = panel.page
    if not page.evaluate("'daskHpcMeasures' in window"):
        page.evaluate(_SCRIPT)
    return panel.evaluate(f"element => window.daskHpcMeasures.{name}(element)")
