"""What a reader sees of a piece of markup."""

from __future__ import annotations

import re
from html import unescape


def text(html):
    """The words of a piece of markup."""
    without = re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", without)).split())
