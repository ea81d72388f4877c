"""Pieces of HTML that the panel and its static twins share.

Rules of the file: data in, markup out. What is no `Markup` is text and is escaped, wherever it is put.
Colours are JupyterLab's variables and so follow its theme; elsewhere the fallbacks inherit from the page,
which fits a light one and a dark one. Colour never stands alone: a word or a shape says the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

from markupsafe import Markup, escape

from dask_hpc.report.looks import Look, looks, printable
from dask_hpc.report.markup import render, render_macro, seconds

__all__ = [
    "Column",
    "Look",
    "Markup",
    "alert",
    "badge",
    "bar",
    "element",
    "folded",
    "image",
    "items",
    "letter",
    "named",
    "page",
    "part",
    "room",
    "roughly",
    "seconds",
    "soft",
    "status",
    "steps",
    "strong",
    "style",
    "table",
    "template",
]

_PACKAGE = "dask_hpc_widgets"
#: Styles of everything inside of an element of class ``dask-hpc``, and of widgets inside of a box of class
#: ``dask-hpc-controls``: what cannot be used is framed in dashes and stays readable, and labels stand above
#: their fields where it is narrow.
CSS = resources.files(_PACKAGE).joinpath("templates/panel.css").read_text(encoding="utf-8")

#: A column: heading, and whether it holds numbers.
Column = tuple[str, bool]


def template(name: str, **values: Any) -> Markup:
    """What the template of this name in this package gives."""
    return render(_PACKAGE, name, **values)


def _piece(name: str, *arguments: Any) -> Markup:
    return render_macro(_PACKAGE, "parts.html", name, *arguments)


def style() -> Markup:
    """The styles of every `part` in the same document."""
    return _piece("style")


def part(*pieces: str) -> str:
    """A whole piece of HTML for a document that has the `style` once."""
    return printable(_piece("part", pieces))


def page(*pieces: str) -> str:
    """A whole piece of HTML with the styles it needs, for a cell of its own."""
    return part(style(), *pieces)


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]], caption: str) -> Markup:
    """A table; `caption` says what it is, for those who hear it."""
    # escaped once, not in every row
    heads = [(escape(label), is_number) for label, is_number in columns]
    return _piece("table", heads, rows, caption)


def room(label: str, piece: str) -> Markup:
    """What is long and is scrolled in a panel; `label` says what it is, for those who hear it."""
    return _piece("room", label, piece)


def alert(text: str) -> Markup:
    """A text that must not be missed; it is read out when it appears."""
    return _piece("alert", text)


def note(text: str) -> Markup:
    """A text that should not be missed, of nothing that is wrong."""
    return _piece("note", text)


def soft(text: str) -> Markup:
    """A text that explains."""
    return _piece("soft", text)


def status(*pieces: str) -> Markup:
    """What has come of something; it is read out when it appears."""
    return _piece("status", pieces)


def badge(text: str) -> Markup:
    """One word in a frame: a state."""
    return _piece("badge", text)


def bar(share: float) -> Markup:
    """A bar filled to `share` (0 to 1), for those who see it: the number stands beside it."""
    return _piece("bar", f"{100 * min(1.0, max(0.0, share)):.0f}")


def element(tag: str, *pieces: str) -> Markup:
    """An element without attributes, such as a heading (``h3``), a paragraph (``p``) or ``span``."""
    return _piece("element", tag, pieces)


def strong(text: str) -> Markup:
    """A text that stands out."""
    return element("strong", text)


def link(text: str, address: str) -> Markup:
    """A link that opens beside the page; of an address that is none of the web's the text alone."""
    return _piece("link", text, address) if address.startswith(("http://", "https://")) else escape(text)


def letter(id: str, look: Look | None = None) -> Markup:
    """The letter of a job over its colour, as in every picture; `look`: what it has among others here."""
    look = look or looks([id])[id]
    return _piece("letter", look.letter, look.color)


def named(name: str, id: str, look: Look | None = None) -> Markup:
    """What a job is called: its letter, the user's name for it if there is one, and its id."""
    own = name if name and name != id else ""
    return letter(id, look) + " " + strong(own or id) + (f" {id}" if own else "")


def items(texts: Iterable[str]) -> Markup:
    """A list of sentences."""
    return _piece("items", texts)


def folded(title: str, body: str) -> Markup:
    """A part of a page that can be folded away."""
    return _piece("folded", title, body)


def image(png: str, alt: str) -> Markup:
    """A picture, as PNG in base64; `alt` says what it shows, for those who do not see it."""
    return _piece("image", png, alt)


def steps(label: str, height: float, path: str, color: str) -> Markup:
    """Sizes over time as a drawing 100 wide; `path` is that of SVG, `label` says the same in words."""
    return _piece("steps", label, f"{height:g}", path, color)


def roughly(value: float | None, none: str = "n/a") -> str:
    """A duration that goes on, in steps so coarse that a page which shows it seldom changes.

    Whole seconds below ten, five below a minute, then two digits of the largest fitting unit.
    """
    if value is None:
        return none
    if value < 60:
        return f"{value // (1 if value < 10 else 5) * (1 if value < 10 else 5):.0f} s"
    unit_s, unit = next(pair for pair in ((86_400, "d"), (3_600, "h"), (60, "min")) if value >= pair[0])
    count = value / unit_s
    return f"{int(count * 10) / 10:g} {unit}" if count < 10 else f"{int(count)} {unit}"
