"""Counts in sentences for people, and policies as lines of text and as tables."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring


def counted(n: int, noun: str = "node") -> str:
    """``1 node``, ``2 nodes``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


class Shown:
    """Base of the policies of this package. It has no state."""

    __slots__ = ()

    def __repr__(self) -> str:
        try:
            params = _values(self)
            text = " ".join(f"{key}={value!r}" for key, value in {"name": _name(self), **params}.items())
        except Exception as error:
            text = f"not shown: {type(error).__name__}"
        return f"<{type(self).__name__} {text}>"

    def _repr_html_(self) -> str:
        try:
            return policy_html(self)
        except Exception:
            return _html(_text("p", repr(self)))


def policy_html(policy: Any) -> str:
    """Name, summary and parameters with their values; a plain table that any page can style."""
    shown = Element("div", {"class": "dask-hpc"})
    head = SubElement(shown, "p")
    name = _text("strong", f"Policy {_name(policy)}")
    summary = str(getattr(policy, "summary", "") or "")
    name.tail = f": {summary}" if summary else ""
    head.append(name)
    values = _values(policy)
    declared = [one for one in getattr(policy, "parameters", ()) if one.name in values]
    if not declared:
        shown.append(_text("p", "It has no parameters."))
        return _html(shown)
    table = SubElement(shown, "table")
    top = SubElement(SubElement(table, "thead"), "tr")
    top.extend(_text("th", one, scope="col") for one in ("Parameter", "Value", "Allowed", "What it does"))
    body = SubElement(table, "tbody")
    for one in declared:
        cells = (one.name, one.format(values[one.name]), one.allowed, one.help)
        SubElement(body, "tr").extend(_text("td", str(cell)) for cell in cells)
    return _html(shown)


def _text(tag: str, text: str, **attributes: str) -> Element:
    element = Element(tag, attributes)
    element.text = text
    return element


def _html(element: Element) -> str:
    """The element as HTML, in which all text is escaped."""
    return tostring(element, encoding="unicode", method="html")


def _name(policy: Any) -> str:
    return str(policy.name)


def _values(policy: Any) -> dict[str, Any]:
    return dict(getattr(policy, "params", {}))
