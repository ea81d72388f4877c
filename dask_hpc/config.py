"""Settings: read once from Dask's configuration, checked, then passed around as a value.

Rules of the file: every value, wherever it comes from (files, environment, a live update, a trace),
passes the same table of checks. The defaults of `Settings` are those of ``hpc.yaml`` (a test holds
them together), so that settings are there also when Dask's configuration has been cleared. Loading
touches nothing but Dask's defaults in memory.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

import dask.config
import yaml

from dask_hpc.errors import ConfigError
from dask_hpc_policies.params import parse_duration
from dask_hpc_policies.pool import HOLD

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class _Check:
    """How one setting is checked: `clean` gives the parsed value or raises ValueError."""

    key: str
    allowed: str
    clean: Callable[[Any], Any]


def _duration(lowest_s: float, highest_s: float, *, none: bool = False) -> Callable[[Any], float | None]:
    def clean(value: Any) -> float | None:
        if value is None and none:
            return None
        try:
            seconds = parse_duration(value)
        except OverflowError as error:  # an integer that no float holds
            raise ValueError("out of range") from error
        if not lowest_s <= seconds <= highest_s:
            raise ValueError("out of range")
        return seconds

    return clean


def _integer(lowest: int, *, none: bool = False) -> Callable[[Any], int | None]:
    def clean(value: Any) -> int | None:
        if value is None and none:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise ValueError("not an integer in range")
        return value

    return clean


def _choice(*options: str) -> Callable[[Any], str]:
    def clean(value: Any) -> str:
        if not isinstance(value, str) or value not in options:
            raise ValueError("not an option")
        return value

    return clean


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("not a name")
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _folder_or_none(value: Any) -> str | None:
    # relative to what is not the same on scheduler and workers
    if value is not None and not _text(value).startswith("/"):
        raise ValueError("not an absolute path")
    return None if value is None else _text(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError("not a mapping")
    return dict(value)


#: One row a setting, by field of `Settings`.
_CHECKS: Mapping[str, _Check] = {
    "policy": _Check("policy", "the name of a registered policy or a path to a YAML file", _text),
    "policy_params": _Check("policy-params", "a mapping from parameter names to values", _mapping),
    "tick_s": _Check("tick", "a duration from 10 ms to 1 h, such as '1 s'", _duration(0.01, 3600.0)),
    "lock": _Check("lock", "'job' or 'system'", _choice("job", "system")),
    "window_timeout_s": _Check(
        "window-timeout", "a duration from 10 ms to 30 d, such as '60 s'", _duration(0.01, 30 * _DAY_S)
    ),
    "shrink_deadline_s": _Check(
        "shrink-deadline", "a duration from 0 s to 30 d, such as '60 s'", _duration(0.0, 30 * _DAY_S)
    ),
    "performance_interval_s": _Check(
        "performance-interval", "a duration from 0 s to 1 h, such as '5 s'", _duration(0.0, 3600.0)
    ),
    "sweep_s": _Check("sweep", "a duration from 10 ms to 10 s, such as '100 ms'", _duration(0.01, 10.0)),
    "client_timeout_s": _Check(
        "client-timeout", "a duration from 0 s to 30 d, such as '60 s'", _duration(0.0, 30 * _DAY_S)
    ),
    "held_notice_s": _Check(
        "held-notice", "a duration from 0 s to 30 d, such as '10 s'", _duration(0.0, 30 * _DAY_S)
    ),
    "walltime_limit_s": _Check(
        "walltime.limit",
        "a duration from 1 s to 365 d, such as '2 h', or null",
        _duration(1.0, 365 * _DAY_S, none=True),
    ),
    "walltime_notice_s": _Check(
        "walltime.notice", "a duration from 0 s to 30 d, such as '2 min'", _duration(0.0, 30 * _DAY_S)
    ),
    "walltime_margin_s": _Check(
        "walltime.margin", "a duration from 0 s to 30 d, such as '10 s'", _duration(0.0, 30 * _DAY_S)
    ),
    "slurm_poll_s": _Check(
        "slurm.poll", "a duration from 100 ms to 1 h, such as '15 s'", _duration(0.1, 3600.0)
    ),
    "kill_delay_s": _Check(
        "kill-delay", "a duration from 0 s to 30 d, such as '25 s'", _duration(0.0, 30 * _DAY_S)
    ),
    "spill_directory": _Check("spill.directory", "an absolute path, or null", _folder_or_none),
    "default_job_min_nodes": _Check("default-job.min-nodes", "an integer, 0 or more", _integer(0)),
    "pool_max_nodes": _Check("pool.max-nodes", "an integer, 1 or more, or null", _integer(1, none=True)),
    "pool_hold_s": _Check("pool.hold", "a duration from 0 s to 1 d, such as '60 s'", HOLD.validate),
    "pool_stock": _Check("pool.stock-adaptive", "'with-jobs' or 'always'", _choice("with-jobs", "always")),
    "node_by": _Check("node.by", "'worker', 'host' or 'job'", _choice("worker", "host", "job")),
    "trace_path": _Check("trace.path", "a path, or null", _text_or_none),
    "trace_keep": _Check("trace.keep", "an integer, 0 or more", _integer(0)),
    "decisions_keep": _Check("decisions.keep", "an integer, 0 or more", _integer(0)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of the runtime, parsed and checked. Make one with :func:`settings`.

    It goes through JSON unharmed (`dask_hpc_policies.codec`). Fields are named like the keys of the
    ``hpc`` namespace, with ``_`` for ``-`` and ``.`` and ``_s`` added to durations (seconds).

    Raises
    ------
    ConfigError
        When a value is not allowed; the message names key, value and what is allowed.
    """

    #: Name of the policy, or path to its YAML file. Whether it exists is checked where it is made.
    policy: str = "pwma-fpsma"
    policy_params: Mapping[str, Any] = field(default_factory=dict)
    #: Time between two calls of the policy when nothing else calls it.
    tick_s: float = 1.0
    lock: Literal["job", "system"] = "job"
    #: How long a shrink waits for executing tasks before it is taken back.
    shrink_deadline_s: float = 60.0
    #: A producer that is silent for so long has its window aborted.
    window_timeout_s: float = 60.0
    #: Least time over which a job's communication and computation are measured for one sample.
    performance_interval_s: float = 5.0
    #: How often admission looks again while tasks are held.
    sweep_s: float = 0.1
    #: A client gone longer than this has its open jobs cancelled.
    client_timeout_s: float = 60.0
    #: A computation held longer than this says so once.
    held_notice_s: float = 10.0
    #: How long a worker may run; None: as long as the batch system says.
    walltime_limit_s: float | None = None
    #: How long before its end, or after a notice (SIGUSR1), a worker has to finish what it executes.
    walltime_notice_s: float = 120.0
    #: By how long before the end of its walltime everything has left a worker.
    walltime_margin_s: float = 10.0
    #: How often Slurm is asked what has become of the jobs.
    slurm_poll_s: float = 15.0
    #: How long after SIGTERM the batch system kills.
    kill_delay_s: float = 25.0
    #: Folder for what nobody has room for when a worker has to go; None: it is lost.
    spill_directory: str | None = None
    #: Nodes kept for undeclared work while it is unfinished and named jobs are active.
    default_job_min_nodes: int = 1
    #: Nodes the cluster can ever have; None: as many as it has now.
    pool_max_nodes: int | None = None
    #: How long adaptive clusters keep nodes after they were last needed, or have come.
    pool_hold_s: float = HOLD.default
    #: When stock's `Adaptive` follows the pool policy: while jobs are declared, or always.
    pool_stock: str = "with-jobs"
    #: What a node is: each worker, all workers of one host, or all of one batch job.
    node_by: Literal["worker", "host", "job"] = "worker"
    #: File the trace goes to; None: memory only.
    trace_path: str | None = None
    #: Latest trace records kept in memory.
    trace_keep: int = 5000
    #: Latest decisions kept in memory.
    decisions_keep: int = 2000

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, _clean(check, getattr(self, name)))

    def updated(self, **changes: Any) -> Settings:
        """A copy with `changes`; nothing is changed when one of them is not allowed.

        Parameters
        ----------
        **changes
            New values by field name or by key: ``tick_s=2``, ``tick="2 s"`` and
            ``pool_max_nodes=16`` are all understood.

        Raises
        ------
        ConfigError
            For an unknown name or a value that is not allowed.
        """
        named = {_field_of(name): value for name, value in changes.items()}
        return dataclasses.replace(self, **named)


def settings(config: Mapping[str, Any] | None = None) -> Settings:
    """The settings that `config` holds.

    Parameters
    ----------
    config
        A mapping with the layout of ``hpc.yaml`` below its ``hpc`` key, whole or in part: what is
        absent takes its default. By default, the ``hpc`` namespace of Dask's configuration.

    Raises
    ------
    ConfigError
        For an unknown key or a value that is not allowed.
    """
    if config is None:
        config = dask.config.get("hpc", {})
    if not isinstance(config, Mapping):
        raise ConfigError(f"hpc is {config!r}; allowed: a mapping of settings, as in hpc.yaml")
    return Settings(**{_field_of(key): value for key, value in _leaves(config)})


def load_defaults() -> None:
    """Add the defaults of ``hpc.yaml`` to Dask's configuration, below whatever the user has set."""
    text = files("dask_hpc").joinpath("hpc.yaml").read_text(encoding="utf-8")
    dask.config.update_defaults(yaml.safe_load(text))


def _clean(check: _Check, value: Any) -> Any:
    try:
        return check.clean(value)
    except ValueError:
        variable = "DASK_HPC__" + check.key.replace(".", "__").replace("-", "_").upper()
        raise ConfigError(
            f"hpc.{check.key} is {value!r}; allowed: {check.allowed} "
            f"(set hpc.{check.key} in the configuration, or {variable})"
        ) from None


#: Field by each spelling that users may write.
_FIELDS: Mapping[str, str] = {
    spelling: name
    for name, check in _CHECKS.items()
    for spelling in (name, check.key.replace(".", "_").replace("-", "_"))
}
#: Sections of the configuration; a mapping elsewhere is a value.
_SECTIONS = frozenset(check.key.partition(".")[0] for check in _CHECKS.values() if "." in check.key)


def _field_of(name: str) -> str:
    try:
        return _FIELDS[name.replace(".", "_").replace("-", "_")]
    except KeyError:
        keys = [check.key for check in _CHECKS.values()]
        close = difflib.get_close_matches(name.replace("_", "-"), keys, n=1)
        hint = f"; did you mean hpc.{close[0]}?" if close else f"; the settings are {', '.join(keys)}"
        raise ConfigError(f"there is no setting hpc.{name}{hint}") from None


def is_setting(name: str) -> bool:
    """Whether `name` is a setting, as a field (``tick_s``) or a key (``tick``, ``pool.max-nodes``)."""
    return name.replace(".", "_").replace("-", "_") in _FIELDS


def _leaves(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        section = str(key).replace("_", "-")
        if section not in _SECTIONS:
            yield str(key), value
        elif isinstance(value, Mapping):
            for inner, leaf in value.items():
                yield f"{section}.{inner}", leaf
        else:
            raise ConfigError(f"hpc.{section} is {value!r}; allowed: a mapping, as in hpc.yaml")


load_defaults()
