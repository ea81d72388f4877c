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
    from playwright.sync_api import Locator, Page

#: Of the page, and what JupyterLab's own margins leave of them to what a cell shows, in px.
WIDTHS, ROOMS = (400, 800, 1200), (284, 620, 1020)
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
_IN_ROOMS = """(element, [frame, rooms]) => {
  const before = frame.style.width;
  const found = rooms.map((room) => {
    frame.style.width = `${room}px`;
    return window.daskHpcMeasures.overflow(element);
  });
  frame.style.width = before;
  return found;
}"""
_SCRIPT = Path(__file__).with_name("measures.js").read_text(encoding="utf-8")


def faults(
    lab: LabPage, panel: Locator, keep: Callable[[str], object], *, controls: int, again: bool = False
) -> list[str]:
    """All there are, of contrast, room, names and keyboard, and of what axe-core finds, in a panel.

    At each of `WIDTHS`, light and dark, with at least so many controls. Names are the same in both, and so is
    the way of the keyboard: it is followed there and back at the widest; at the others, and dark, its stops
    are the same in the same order, and each has to show its focus. `again`: that was looked at in another
    state of the panel, dark last; now it is dark first, and light at the end, where the stops are looked at
    once. `keep` takes a picture of each by name.
    """
    found: list[str] = []
    for dark in (again, not again):
        lab.theme(dark=dark)
        for width in sorted(WIDTHS, reverse=True):
            lab.page.set_viewport_size({"width": width, "height": 1000})
            look = f"{width}-{'dark' if dark else 'light'}"
            keep(look)
            widest = width == max(WIDTHS)
            there = [*contrast_faults(panel), *overflow_faults(panel)]
            if widest:
                there += axe.violations(panel)
            if not dark and (widest or not again):
                there += name_faults(panel)
            if not again and widest and not dark:
                there += keyboard_faults(panel, at_least=controls)
            elif (widest and not dark) if again else (widest or not dark):
                there += mark_faults(panel, at_least=controls)
            found.extend(f"{look}: {one}" for one in there)
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
    return _overflow_faults(_measure(panel, "overflow"), but)


def room_faults(panel: Locator, frame: Locator) -> list[str]:
    """`overflow_faults` of a part of `frame`, when that has each of the `ROOMS`."""
    _load(panel.page)
    found = panel.evaluate(_IN_ROOMS, [frame.element_handle(), ROOMS])
    return [
        f"in {room} px: {fault}"
        for room, there in zip(ROOMS, found, strict=True)
        for fault in _overflow_faults(there)
    ]


def _overflow_faults(found: Sequence[dict[str, Any]], but: Sequence[str] = ()) -> list[str]:
    return [
        f"{one['kind']}: {one['where']} {one['text']!r} {_room(one)}"
        for one in found
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


def mark_faults(panel: Locator, at_least: int = 1) -> list[str]:
    """Whether each control shows its focus, where they are those that `keyboard_faults` has followed.

    Where they are others, or in another order, that is called here.
    """
    page = panel.page
    stops = list(_measure(panel, "stops"))
    if len(stops) < at_least or not _measure(panel, "isKnownWay"):
        return keyboard_faults(panel, at_least, back=False)
    faults = [f"{where} is left out by the Tab key" for where in _measure(panel, "unreached")]
    # what a key has focused shows it; so does what is focused after that
    panel.locator('[data-stop="0"]').focus()
    page.keyboard.press("Tab")
    seen = _measure(panel, "marks")
    faults += [fault for now, stop in zip(seen, stops, strict=True) if (fault := _focus_fault(now, stop))]
    return list(dict.fromkeys(faults))


def _focus_fault(now: dict[str, Any], stop: dict[str, Any]) -> str:
    """What is wrong with what has focus after the Tab key should have come to a stop; empty: nothing."""
    if now["stop"] != stop["stop"]:
        return f"the focus is on {now['where']} instead of {stop['where']} (stop {stop['stop']})"
    same = now["look"] == stop["look"]
    return f"{stop['where']} (stop {stop['stop']}) looks the same with focus as without" if same else ""


def _load(page: Page) -> None:
    if not page.evaluate("'daskHpcMeasures' in window"):
        page.evaluate(_SCRIPT)


def _measure(panel: Locator, name: str) -> Any:
    _load(panel.page)
    return panel.evaluate(f"element => window.daskHpcMeasures.{name}(element)")
