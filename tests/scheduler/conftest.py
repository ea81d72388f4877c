"""Lets the tests of this folder import `helpers` (they are run in importlib mode, without packages)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
