"""What a study is made of: plain data, which goes to other processes as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dask_hpc.sim.study.conditions import Condition, Term

#: Metrics that are shown where a study names none.
SHOWN = ("makespan_s", "mean_wait_s", "mean_turnaround_s", "utilization")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyWorkload:
    """A workload of a study."""

    label: str
    #: File or ``builtin:NAME``.
    source: str
    set: Mapping[str, Any]
    vary: Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPolicy:
    """A policy of a study, with its parameters."""

    label: str
    #: As `registry.create` takes it.
    spec: Mapping[str, Any]
    #: Names of its parameters.
    declared: frozenset[str]
    set: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A figure that somebody published."""

    of: Term
    value: float
    #: Which rows it is of: values by name of column.
    at: Mapping[str, Any]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Conditions on rows."""

    at: Mapping[str, Any]
    that: tuple[Condition, ...]
    #: File and line.
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What to run and what to show of it; `load_study` reads one."""

    name: str
    description: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    workloads: tuple[StudyWorkload, ...]
    policies: tuple[StudyPolicy, ...]
    set: Mapping[str, Any] = field(default_factory=dict)
    vary: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    over: tuple[str, ...] = ("seed",)
    baseline: str | None = None
    metrics: tuple[str, ...] = SHOWN
    paired: tuple[str, ...] = ()
    sign_change: str | None = None
    published: tuple[Published, ...] = ()
    expect: tuple[Expectation, ...] = ()
    #: What was changed: --fast and --set, by name.
    changed: Mapping[str, Any] = field(default_factory=dict)


def overridden(
    vary: Mapping[str, tuple[Any, ...]],
    workloads: tuple[StudyWorkload, ...],
    changes: Mapping[str, tuple[Any, ...]],
) -> tuple[dict[str, tuple[Any, ...]], tuple[StudyWorkload, ...]]:
    """What varies in all workloads and in each, with `changes` in place of what was there.

    A setting of single workloads is changed there, any other one in all.
    """
    made = []
    elsewhere: set[str] = set()
    for workload in workloads:
        own = {name: changes[name] for name in changes if name in workload.set or name in workload.vary}
        elsewhere |= own.keys() - vary.keys()
        made.append(
            StudyWorkload(
                label=workload.label,
                source=workload.source,
                set={name: value for name, value in workload.set.items() if name not in own},
                vary={**workload.vary, **own},
            )
        )
    return {**vary, **{name: changes[name] for name in changes if name not in elsewhere}}, tuple(made)
