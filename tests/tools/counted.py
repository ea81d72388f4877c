"""Tasks that are counted when they begin: workers of this process import it, and share the counts."""

from __future__ import annotations

import threading
import time
from collections import Counter

#: How often each task of this process has begun, by its name.
began: Counter[str] = Counter()
_lock = threading.Lock()


def counted_nap(name: str, seconds: float) -> str:
    """Wait, and give the name back."""
    with _lock:
        began[name] += 1
    time.sleep(seconds)
    return name
