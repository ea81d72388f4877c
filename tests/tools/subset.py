"""A part of the tests, drawn anew for each seed: what is run often need not all be run each time.

``--subset 0.4 --subset-seed WORD`` keeps that share of the tests that ``-m`` and ``-k`` have left, of each
folder of tests by itself and at least one. Which ones the seed alone decides, in every process alike, and the
next seed draws others. The seed is printed: with it the same tests run again.
"""

from __future__ import annotations

import hashlib
import math

import pytest


class Subset:
    """The plugin: leaves out what was not drawn."""

    def __init__(self, share: float, seed: str) -> None:
        if not 0 < share <= 1:
            raise pytest.UsageError(f"--subset is {share:g}; allowed: above 0 and up to 1")
        self._share = share
        self._seed = seed

    def pytest_report_header(self) -> str:
        """What is left out, and how to run the same again."""
        return f"subset: {self._share:.0%} of the tests of each folder, drawn by --subset-seed {self._seed}"

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep those that were drawn, in their order."""
        kept = drawn([item.nodeid for item in items], self._share, self._seed)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
        items[:] = [item for item in items if item.nodeid in kept]


def drawn(names: list[str], share: float, seed: str) -> set[str]:
    """Of `names` (``tests/FOLDER/...``) that `share` of each folder, rounded up, which `seed` draws."""
    folders: dict[str, list[str]] = {}
    for name in names:
        folders.setdefault("/".join(name.split("::")[0].split("/")[:2]), []).append(name)
    kept = set()
    for members in folders.values():
        members.sort(key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
        kept.update(members[: math.ceil(share * len(members))])
    return kept
