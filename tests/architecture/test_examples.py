"""Properties are tried with a share of their examples, and with all of them where that is asked for."""

from __future__ import annotations

from pathlib import Path

import examples
import pytest
from hypothesis import settings

TESTS = Path(__file__).resolve().parents[1]


def test_the_share_that_is_asked_for_is_tried_of_every_property(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [examples.examples(most).max_examples for most in (1000, 100, 20, 5)]
    monkeypatch.setattr(examples, "_share", 1.0)
    assert [examples.examples(most).max_examples for most in (1000, 100, 20, 5)] == [1000, 100, 20, 5]
    monkeypatch.setattr(examples, "_share", 0.3)
    assert [examples.examples(most).max_examples for most in (1000, 100, 20, 5)] == [300, 30, 10, 5]
    # one that names no number has the same share of what Hypothesis tries by itself
    assert settings.default.max_examples == asked[1]
    for share in (0, 1.1):
        with pytest.raises(pytest.UsageError, match=f"--examples is {share}; allowed: above 0 and up to 1"):
            examples.Examples(share)


def test_no_property_has_a_number_of_its_own_and_each_is_found_by_the_slow_tests() -> None:
    own, hidden = [], []
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if path != Path(__file__):
            own += [path.name] * ("max_examples" in text)
            # as the Makefile looks for them
            hidden += [path.name] * ("hypothesis import" in text and "\nfrom hypothesis" not in text)
    assert (own, hidden) == ([], [])
    makefile = Path(TESTS.parent, "Makefile").read_text(encoding="utf-8")
    assert "grep -rlE --include='test_*.py' 'mark\\.slow|^from hypothesis' tests" in makefile
