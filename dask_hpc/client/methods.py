"""Methods that capabilities add to the runtime's handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: By name; each is called with the `Runtime` first.
added: dict[str, Callable[..., Any]] = {}
#: Names that `Runtime` has of its own.
OWN: set[str] = set()


def register(name: str, method: Callable[..., Any]) -> None:
    """Have ``rt.<name>(...)`` call ``method(rt, ...)``; `Runtime.channel` is the way to the scheduler.

    Raises
    ------
    ValueError
        When there is such a method already.
    """
    if name in added or name in OWN or not name.isidentifier():
        raise ValueError(f"name is {name!r}; allowed: an identifier that no method of Runtime has")
    added[name] = method
