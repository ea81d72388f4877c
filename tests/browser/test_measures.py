"""Every measure finds what it is for in a page with exactly that fault, and nothing in one without."""

from __future__ import annotations

import axe
import chromium
import measures
import pytest

pytestmark = pytest.mark.browser

#: Of the page, in px.
WIDTH = 400

GOOD = """
<style>
  body { background: white; color: #222; font: 14px sans-serif; }
  #panel { width: 380px; }
  #panel > div { display: flex; gap: 8px; }
  input, select { min-width: 0; flex: 1; }
  .soon { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  input::placeholder { color: #555; }
</style>
<p style="color: #ddd">outside of the panel</p>
<div id="panel">
  <h3>Jobs</h3>
  <div><label for="a">Step</label> <input id="a" value="4 s"></div>
  <div><label for="b">Limit</label> <input id="b" placeholder="none"></div>
  <div><label for="c">Policy</label> <select id="c"><option>easy</option><option>fcfs</option></select></div>
  <div style="background: #123; color: white">white <b>on</b> dark</div>
  <p class="soon">for those who hear the page</p>
  <p hidden>not there</p>
  <img alt="a picture" width=10 height=10 src="data:,">
  <button>Apply</button> <button disabled>Revert</button>
</div>
"""


@pytest.fixture
def panel_of(page):
    def panel(html):
        page.set_content(html)
        return page.locator("#panel")

    return panel


KINDS = ("wide", "high", "outside", "field", "placeholder", "squeezed", "overlap")


def with_extra(html):
    return GOOD.replace("</div>\n\n", "</div>").replace("  <h3>", f"  {html}\n  <h3>")


def test_a_good_page_has_no_fault(panel_of):
    panel = panel_of(GOOD.replace("<button disabled>", "<button disabled style='color: #444'>"))
    assert measures.contrast_faults(panel) == []
    assert measures.overflow_faults(panel) == []
    assert measures.name_faults(panel) == []
    assert measures.keyboard_faults(panel, at_least=4) == []
    assert measures.mark_faults(panel, at_least=4) == []
    seen = {one["text"]: one for one in measures.contrasts(panel)}
    assert set(seen) == {
        "Jobs", "Step", "4 s", "Limit", "none", "Policy", "easy", "white", "on", "dark", "Apply", "Revert",
    }  # fmt: skip
    assert seen["none"]["kind"] == "placeholder"
    assert seen["Revert"]["disabled"]


@pytest.mark.parametrize(
    ("html", "ratio"),
    [
        # ratios from the definition in WCAG 2.x; GREY on white, or half of black over white, has 3.95
        ('<p style="color: #777; background: #fff">faint</p>', 4.48),
        ('<p style="color: #767676; background: #fff">faint</p>', 4.54),
        ('<p style="GREY">faint</p>', 3.95),
        ('<p style="color: rgba(0, 0, 0, 0.5); background: #fff">faint</p>', 3.95),
        ('<p style="color: #000; opacity: 0.5; background: #fff">faint</p>', 3.95),
        ('<div style="opacity: 0.5"><p style="color: #000">faint</p></div>', 3.95),
        (
            '<div style="background: #000">'
            '<p style="color: #fff; background: rgba(255, 255, 255, 0.5)">faint</p></div>',
            3.95,
        ),
        ('<p style="color: color-mix(in srgb, black, white)">faint</p>', 3.95),
        ('<svg height="20"><text y="15" style="fill: #808080">faint</text></svg>', 3.95),
        ('<style>.x::before { content: "faint"; color: #808080 }</style><p class="x"></p>', 3.95),
        ('<input aria-label="x" style="GREY" value="faint">', 3.95),
        ('<style>.x::placeholder { GREY }</style><input class="x" placeholder="faint">', 3.95),
        ('<select aria-label="x" style="GREY"><option>faint</option></select>', 3.95),
        ('<button disabled style="GREY">faint</button>', 3.95),
    ],
)
def test_contrast_is_what_the_guidelines_define(panel_of, html, ratio):
    panel = panel_of(with_extra(html.replace("GREY", "color: #808080; background: #fff")))
    (found,) = [one for one in measures.contrasts(panel) if one["text"] == "faint"]
    # colours have 8 bits a channel
    assert found["ratio"] == pytest.approx(ratio, abs=0.04)
    assert any("'faint'" in fault for fault in measures.contrast_faults(panel)) == (ratio < 4.5)


def test_axe_core_finds_what_it_is_for_and_nothing_in_a_good_page(panel_of):
    pytest.importorskip("axe_playwright_python", reason="pip install axe-playwright-python")
    assert axe.violations(panel_of(GOOD.replace("disabled>", "disabled style='color: #444'>"))) == []
    (found,) = axe.violations(panel_of(with_extra('<img src="data:,">')))
    assert found.startswith("image-alt: ")


def test_what_is_scrolled_out_of_sight_is_measured(panel_of):
    frame = '<div style="height: 20px; overflow: hidden"><div style="height: 100%; overflow: auto">'
    page = (
        '<div style="height: 300px"></div><div id="panel"><p style="color: #ccc">faint</p></div></div></div>'
    )
    assert len(measures.contrast_faults(panel_of(frame + page))) == 1


def test_a_page_without_text_is_a_fault(panel_of, monkeypatch):
    monkeypatch.setattr(measures, "_PATIENCE_S", 0.0)
    assert measures.contrast_faults(panel_of('<div id="panel"><p hidden>words</p></div>')) != []


def test_text_over_a_picture_is_a_fault_as_its_contrast_is_unknown(panel_of):
    panel = panel_of(with_extra('<p style="background-image: linear-gradient(red, blue)">over it</p>'))
    assert any("an image over" in fault for fault in measures.contrast_faults(panel))


@pytest.mark.parametrize(
    ("html", "kind"),
    [
        ('<p style="width: 600px">wide</p>', "outside"),
        ('<p style="CUT; text-overflow: ellipsis">cut off words</p>', "wide"),
        ('<button style="CUT">a long inscription</button>', "wide"),
        ('<p style="width: 1em; overflow-wrap: anywhere">a letter a line</p>', "squeezed"),
        ('<p style="width: 5em; height: 1em">one line and another</p><b>below</b>', "overlap"),
        ('<p style="height: 1em; margin: 0">first<br>second<br>third</p><button>pressed</button>', "overlap"),
        ('<div style="height: 20px; overflow: auto"><p>one</p><p>two</p></div>', "high"),
        ('<p style="position: relative; left: -30px; width: 60px">left</p>', "outside"),
        ('<input aria-label="x" style="width: 60px" value="a very long value of a field">', "field"),
        ('<input aria-label="x" style="width: 60px" placeholder="a long example of it">', "placeholder"),
        ('<select aria-label="x" style="width: 60px"><option>a very long choice</option></select>', "field"),
    ],
)
def test_what_is_cut_off_or_sticks_out_is_found(panel_of, html, kind):
    panel = panel_of(with_extra(html.replace("CUT", "white-space: nowrap; width: 50px; overflow: hidden")))
    faults = measures.overflow_faults(panel)
    assert [fault for fault in faults if fault.startswith(kind)], faults
    assert measures.overflow_faults(panel, but=KINDS) == []


def test_a_part_is_measured_in_each_room(panel_of):
    panel = panel_of(with_extra('<section id="part"><p style="width: 500px">wide</p></section>'))
    faults = measures.room_faults(panel.locator("#part"), panel)
    assert {fault.partition(":")[0] for fault in faults} == {"in 284 px"}
    assert panel.evaluate("element => element.style.width") == ""


@pytest.mark.parametrize(
    "html",
    [
        "<input>",
        "<select><option>a</option></select>",
        "<button></button>",
        "<textarea></textarea>",
        '<a href="#"></a>',
        '<img width="10" height="10" src="data:,">',
        '<div role="slider" tabindex="0"></div>',
        '<input type="checkbox">',
    ],
)
def test_what_has_no_name_is_found(panel_of, html):
    (fault,) = measures.name_faults(panel_of(with_extra(html)))
    assert "has no name" in fault


@pytest.mark.parametrize(
    ("html", "what"),
    [
        ('<button tabindex="-1">skipped</button>', "left out"),
        ('<button tabindex="5">out of order</button><button tabindex="1">first</button>', "instead of"),
        ('<button style="outline: none">unmarked</button>', "looks the same"),
        ('<button onkeydown="event.preventDefault()">a trap</button>', "instead of"),
    ],
)
def test_what_the_keyboard_misses_is_found(panel_of, html, what):
    panel = panel_of(with_extra(html))
    faults = measures.keyboard_faults(panel)
    assert any(what in fault for fault in faults), faults
    if what != "instead of":
        # what was followed once shows its focus, or not, also where nobody presses a key
        assert any(what in fault for fault in measures.mark_faults(panel))
    # a control that came since has the way followed
    panel.evaluate("element => element.prepend(document.createElement('input'))")
    assert measures.mark_faults(panel) == measures.keyboard_faults(panel, back=False)


def test_a_panel_without_controls_is_a_fault_of_the_test(panel_of):
    assert measures.keyboard_faults(panel_of('<div id="panel">words</div>'), at_least=1) != []


def test_what_a_page_complains_of_is_collected(browser, pages):
    page = pages.open(width=400)
    page.set_content("<script>console.error('broken'); console.warn('well'); undefinedFunction()</script>")
    page.set_content('<img src="http://192.0.2.1/picture.png">')
    faults, pages.faults[:] = list(pages.faults), []
    assert any("error: broken" in fault for fault in faults), faults
    assert any("undefinedFunction" in fault for fault in faults), faults
    assert any("another machine: http://192.0.2.1" in fault for fault in faults), faults
    assert not any("well" in fault for fault in faults)

    # a page that is left to another test is that one's
    other = chromium.Pages(browser)
    left = other.open(width=400, page=pages.leave(page))
    left.set_content("<script>console.error('late')</script>")
    other.close()
    assert pages.faults == []
    assert [fault for fault in other.faults if "error: late" in fault]
