"""Settings: one table of rows, the values that hold, and what is printed from the table.

What a user may want to change is a setting; constants that nobody needs to change are `knobs`.
"""

from __future__ import annotations

from dask_hpc.config.rows import Setting, find, is_setting, no_setting, register, table
from dask_hpc.config.values import Settings, load_defaults, problems, settings

__all__ = [
    "Setting",
    "Settings",
    "find",
    "is_setting",
    "load_defaults",
    "no_setting",
    "problems",
    "register",
    "settings",
    "table",
]
