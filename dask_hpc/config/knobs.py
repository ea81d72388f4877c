"""Constants that no user needs to change.

Rules of the file: a knob is a row, as a setting is, by the name under which the program reads it. The name
in the row is a key below ``hpc``: configurations that set it are honoured (`dask_hpc.config`), but nothing
that is printed or shown offers it.
"""

from __future__ import annotations

from collections.abc import Mapping

from dask_hpc_policies.params import Duration, Int, Parameter

_DAY_S = 86_400.0
#: More than this much is kept by no memory.
_MOST_KEPT = 1_000_000_000

#: The knobs, by name.
KNOBS: Mapping[str, Parameter] = {
    "sweep_s": Duration("sweep", 0.1, lo=0.01, hi=10.0,
        help="How often admission looks for free slots while tasks are held."),
    "performance_interval_s": Duration("performance-interval", 5.0, hi=3600.0,
        help="Least time over which a job's communication and computation are measured before policies get "
        "to see the ratio (MTCT). Looked at on every tick; a phase that the job itself ends is measured "
        "whatever its length."),
    "held_notice_s": Duration("held-notice", 10.0, hi=30 * _DAY_S,
        help="A computation that is held longer than this says so once on its client, with the reason and "
        "the remedy."),
    "trace_keep": Int("trace.keep", 5000, lo=0, hi=_MOST_KEPT,
        help="Latest trace records kept in memory."),
    "decisions_keep": Int("decisions.keep", 2000, lo=0, hi=_MOST_KEPT,
        help="Latest decisions kept in memory."),
}  # fmt: skip
