"""Numbers that somebody gives: of Python, NumPy or any type that says it is one; a truth value is none."""

from __future__ import annotations

from numbers import Real
from typing import Any, TypeGuard


def is_real(value: object) -> TypeGuard[float]:
    """Whether it is a real number; it may be infinite, or a whole one that no float holds."""
    return isinstance(value, Real) and not isinstance(value, bool)


def whole(value: Any) -> int | None:
    """The whole number that it is, also one that is written as a float; None: it is none."""
    if not is_real(value):
        return None
    try:
        number = int(value)
    except (OverflowError, ValueError):  # infinite, or not a number
        return None
    return number if number == value else None
