"""What axe-core, the common checker of web pages for people with disabilities, finds below one element.

The package axe-playwright-python, which the extra ``test`` brings, has its script.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator

_RUN = """async element => {
  const found = await window.axe.run(element, { resultTypes: ["violations"] });
  return found.violations.flatMap(one => one.nodes.map(node => `${one.id}: ${one.help}: ${node.html}`));
}"""


def violations(shown: Locator) -> list[str]:
    """A sentence for each element that breaks a rule.

    Raises
    ------
    RuntimeError
        When axe-core is not installed: what was not asked is not right.
    """
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or spec.origin is None:
        raise RuntimeError("axe-core is not installed: pip install axe-playwright-python")
    page = shown.page
    if not page.evaluate("'axe' in window"):
        page.evaluate(Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    return list(shown.evaluate(_RUN))
