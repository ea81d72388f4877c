"""Counts in sentences for people."""

from __future__ import annotations

from html import escape
from typing import Any


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
            return f"<p>{escape(repr(self))}</p>"


def policy_html(policy: Any) -> str:
    """Name, summary and parameters with their values; a plain table that any page can style."""
    summary = str(getattr(policy, "summary", "") or "")
    head = f"<p><strong>Policy {escape(_name(policy))}</strong>{': ' if summary else ''}{escape(summary)}</p>"
    values = _values(policy)
    declared = [one for one in getattr(policy, "parameters", ()) if one.name in values]
    if not declared:
        return f'<div class="dask-hpc">{head}<p>It has no parameters.</p></div>'
    columns = ("Parameter", "Value", "Allowed", "What it does")
    rows = ((one.name, one.format(values[one.name]), one.allowed, one.help) for one in declared)
    top = "".join(f'<th scope="col">{column}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="dask-hpc">{head}{table}</div>'


def _name(policy: Any) -> str:
    return str(policy.name)


def _values(policy: Any) -> dict[str, Any]:
    return dict(getattr(policy, "params", {}))
