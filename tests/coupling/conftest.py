"""What the tests of coupling need of the machine."""

from __future__ import annotations

import importlib.util

#: ADIOS2 is an extra: its test runs where somebody has it.
collect_ignore = [] if importlib.util.find_spec("adios2") else ["test_adios.py"]
