"""How many examples a property is tried with: a part of what it names, and all where that is asked for.

``@examples(300)`` stands where ``@settings(max_examples=300)`` would. ``--examples 1`` tries all of them, as
``make test-slow`` does with the properties that it draws; without it each has `USUALLY` of them. The seed is
printed: with it the same ones are tried again.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import core, settings

#: The share that is tried when nobody asks for another.
USUALLY = 0.3
#: Fewer are tried of no property, but of one that names fewer itself.
LEAST = 10
#: What properties are tried with that name no number.
UNNAMED = 100

_share = USUALLY


def examples(most: int, **others: Any) -> settings:
    """The settings of a property that has `most` examples when all are tried."""
    return settings(max_examples=min(most, max(LEAST, round(most * _share))), **others)


class Examples:
    """The plugin: sets the share before any test is loaded, and says it."""

    def __init__(self, share: float) -> None:
        if not 0 < share <= 1:
            raise pytest.UsageError(f"--examples is {share:g}; allowed: above 0 and up to 1")
        global _share
        _share = share
        settings.register_profile("share", examples(UNNAMED))
        settings.load_profile("share")

    def pytest_report_header(self) -> str:
        """How many are tried, and how to try the same ones again."""
        seed = core.global_force_seed
        drawn = "drawn anew each time" if seed is None else f"drawn by --hypothesis-seed {seed}"
        return f"examples: {_share:.0%} of those that each property names, {drawn}"
