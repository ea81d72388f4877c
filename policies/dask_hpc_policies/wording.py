"""Counts in sentences for people."""

from __future__ import annotations


def counted(n: int, noun: str = "node") -> str:
    """``1 node``, ``2 nodes``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
