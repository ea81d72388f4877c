"""What `scale` and `adapt` may be called with: checked before anything changes.

As stock takes it, or refused with what to write instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import dask
from dask.utils import parse_bytes, parse_timedelta

from dask_hpc_policies.numeric import whole

#: Arguments of `adapt`; ``minimum_jobs`` and ``maximum_jobs`` are those of clusters of batch jobs.
_ADAPT = frozenset(
    "minimum maximum minimum_cores maximum_cores minimum_memory maximum_memory interval wait_count "
    "target_duration worker_key memory_ratio".split()
)
#: What to write in place of what stock passes on to `Scheduler.workers_to_close`, or took once.
_INSTEAD = {
    "n": "minimum and maximum",
    "target": "minimum and maximum",
    "key": "worker_key",
    "attribute": "nothing, workers are told by their names",
    "scale_factor": "target_duration",
    "startup_cost": "target_duration",
}


def check_adapt(options: Mapping[str, Any]) -> None:
    """Raise TypeError or ValueError for options of `adapt` that would keep it from working later."""
    if unknown := set(options) - _ADAPT:
        instead = [f"; in place of {name} write {_INSTEAD[name]}" for name in sorted(unknown & set(_INSTEAD))]
        allowed = ", ".join(sorted(_ADAPT))
        raise TypeError(f"adapt got {', '.join(sorted(unknown))}; allowed: {allowed}{''.join(instead)}")
    bounds = {"minimum": 0, "maximum": math.inf}
    for name in bounds:
        if (value := options.get(name)) is None:
            continue
        if not _is_count(value) and (name, value) != ("maximum", math.inf):
            raise ValueError(f"{name} is {value!r}; allowed: a whole number of workers, 0 or more")
        bounds[name] = value
    low, high = bounds.values()
    if not 0 <= low <= high:
        raise ValueError(f"minimum is {low!r}, maximum {high!r} (workers); allowed: 0 <= minimum <= maximum")
    patience = options.get("wait_count")
    if patience is not None and not (_is_count(patience) and patience >= 1):
        raise ValueError(f"wait_count is {patience!r}; allowed: a whole number of looks, 1 or more")
    for name in ("interval", "target_duration"):
        if (value := options.get(name)) is None:
            continue
        # stock would remember it, and fail with it again
        try:
            fits = parse_timedelta(value) > 0
        except (TypeError, ValueError, KeyError):
            fits = False
        if not fits:
            raise ValueError(f"{name} is {value!r}; allowed: a duration above 0 s, such as '500 ms'")


def in_workers(options: Mapping[str, Any], **each: Callable[[], float]) -> dict[str, Any]:
    """Options of `adapt` with bounds of ``cores`` and ``memory`` as numbers of workers, as stock reckons.

    By name it is said what gives how much of it one worker has. Raises ValueError for what is no amount.
    """
    found = dict(options)
    for what, of_one in each.items():
        low, high = (found.pop(f"{bound}_{what}", None) for bound in ("minimum", "maximum"))
        if low is not None:
            workers = math.ceil(_amount(f"minimum_{what}", low) / of_one())
            found["minimum"] = max(found.get("minimum") or 0, workers)
        if high is not None:
            most = _amount(f"maximum_{what}", high)
            workers = math.floor(most / of_one())
            if most and not workers:  # for ever
                raise ValueError(f"maximum_{what} is {high!r}, less than a worker has; none would come")
            found["maximum"] = min(found.get("maximum", math.inf), workers)
    return found


def adapt_options(options: Mapping[str, Any], **each: Callable[[], float]) -> dict[str, Any]:
    """Options of `adapt`, checked, with bounds as whole numbers of workers; raises as these checks do."""
    check_adapt(options)
    found = in_workers(options, **each)
    check_adapt(found)
    return {name: as_whole(value) for name, value in found.items()}


def _amount(name: str, value: Any) -> float:
    if not name.endswith("memory"):
        check_counts(**{name: value})
        return float(value)
    try:
        return float(parse_bytes(value))
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"{name} is {value!r}; allowed: an amount, such as '16 GB'") from None


def workers_of(name: str, jobs: Any, each: int) -> int | float:
    """The workers of so many batch jobs of `each`; raises ValueError when argument `name` is no count."""
    if jobs == math.inf:
        return math.inf
    if not _is_count(jobs):
        workers = name.removesuffix("_jobs")
        text = f"{name} is {jobs!r}; allowed: a whole number of jobs, 0 or more"
        raise ValueError(f"{text}; for workers, {each} to a job, write {workers}")
    return int(jobs) * each


def check_scale(options: Mapping[str, Any]) -> None:
    """Raise TypeError for options of `scale` that a cluster of workers does not have."""
    if options:
        jobs = (
            "; in place of jobs write n (workers): jobs are those of SLURMCluster"
            if "jobs" in options
            else ""
        )
        allowed = "n, memory, cores, dry_run, force"
        raise TypeError(f"scale got {', '.join(sorted(options))}; allowed: {allowed}{jobs}")


def as_whole(value: Any) -> Any:
    """A whole float as the whole number it is; what is no whole number as it is."""
    number = whole(value)
    return value if number is None else number


def _is_count(value: Any) -> bool:
    number = whole(value)
    return number is not None and number >= 0


def check_counts(**counts: Any) -> None:
    """Raise ValueError for an argument that is neither None nor a whole number, 0 or more."""
    for name, value in counts.items():
        if value is not None and not _is_count(value):
            raise ValueError(f"{name} is {value!r}; allowed: a whole number, 0 or more")


def check_flags(**flags: Any) -> None:
    """Raise ValueError for an argument that is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}; allowed: True or False")


def with_preload(options: Mapping[str, Any], process: str, name: str, module: str) -> dict[str, Any]:
    """What a process preloads, a module behind it: of its option of that name, else as it is configured.

    As in stock it is a list, or one by itself, and has arguments for all or for each.
    """
    preload = options.get(name) or dask.config.get(f"distributed.{process}.preload")
    argv = options.get(f"{name}_argv") or dask.config.get(f"distributed.{process}.preload-argv")
    found = {name: [*([preload] if isinstance(preload, str) else preload), module]}
    return found if not argv or isinstance(argv[0], str) else {**found, f"{name}_argv": [*argv, []]}
