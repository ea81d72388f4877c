"""Constants that no user needs to change, and tests do.

Rules of the file: a knob is a row, as a setting is, by the name under which the program reads it. The name
in the row is a key below ``hpc``: configurations that set it are honoured (`dask_hpc.config`), but nothing
that is printed or shown offers it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dask_hpc_policies.params import Duration, Int, Parameter, ParameterError, suggestion

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

_overridden: dict[str, Any] = {}


def value(name: str) -> Any:
    """What a knob is now.

    Raises
    ------
    ParameterError
        When there is no knob of that name.
    """
    default = _row(name).default
    return _overridden.get(name, default)


@contextmanager
def override(**values: Any) -> Iterator[None]:
    """Have knobs at other values for a block: in this process, for what is made within it.

    Raises
    ------
    ParameterError
        For an unknown name or a value that is not allowed; nothing is changed then.
    """
    clean = {name: _row(name).validate(new) for name, new in values.items()}
    before = dict(_overridden)
    _overridden.update(clean)
    try:
        yield
    finally:
        _overridden.clear()
        _overridden.update(before)


def _row(name: str) -> Parameter:
    if name not in KNOBS:
        raise ParameterError(
            f"there is no knob {name!r}; knobs are {', '.join(KNOBS)}{suggestion(name, KNOBS)}"
        )
    return KNOBS[name]
