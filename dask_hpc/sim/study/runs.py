"""The runs of a study, in processes: one scenario each, the results in the order of the scenarios.

Rules of the file: a run depends on its scenario alone, so that the number of processes changes nothing but
the time. A run that fails is a result too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from dask_hpc.errors import DaskHPCError, WorkloadError
from dask_hpc.processes import ProcessError, Tell, call_all
from dask_hpc.sim.model.machine import PUBLISHED, Options
from dask_hpc.sim.model.workload import fitted, machine_for, with_malleable_share
from dask_hpc.sim.run import simulate
from dask_hpc.sim.study.metrics import measured
from dask_hpc.sim.study.model import Study, StudyPolicy
from dask_hpc.sim.study.settings import OPTION, PARAM, options_of
from dask_hpc.sim.workloads.sources import load
from dask_hpc_policies import registry

#: Most runs of one study.
MOST_RUNS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run: everything that it depends on."""

    workload: str
    policy: str
    source: str
    spec: Mapping[str, Any]
    #: Factors of the study that this run has, by name.
    factors: Mapping[str, Any]
    #: All settings, factors among them, but for parameters, which are in `spec`.
    settings: Mapping[str, Any]
    metrics: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"{name}={value}" for name, value in self.factors.items()]
        return ", ".join([f"{self.policy} on {self.workload}", *parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a scenario came to."""

    scenario: Scenario
    #: By name of the metric; empty when it failed.
    values: Mapping[str, Any]
    #: Why it failed; empty when it did not.
    error: str = ""


class RunsInterrupted(KeyboardInterrupt):
    """Ctrl-C has ended the runs of a study.

    Parameters
    ----------
    runs
        Those that were done, in order.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__()
        self.runs = tuple(runs)


def scenarios(study: Study, metrics: tuple[str, ...]) -> list[Scenario]:
    """All runs of `study`, in order: workloads, policies, factors as they are written.

    Raises
    ------
    WorkloadError
        When there are too many.
    """
    found: list[Scenario] = []
    for workload in study.workloads:
        options = options_of(workload.source)
        fixed = {**study.set, **workload.set}
        varied = {name: values for name, values in study.vary.items() if name not in workload.set}
        varied |= workload.vary
        for policy in study.policies:
            own = {
                name: values
                for name, values in varied.items()
                if name not in policy.set and _has(name, options, policy)
            }
            count = len(found) + math.prod(map(len, own.values()))
            if count > MOST_RUNS:
                raise WorkloadError(
                    f"study {study.name!r} has {count} runs or more; at most {MOST_RUNS} are done"
                )
            for values in itertools.product(*own.values()):
                factors = dict(zip(own, values, strict=True))
                settings = {**fixed, **factors, **policy.set}
                params = {
                    name.removeprefix(PARAM): value
                    for name, value in settings.items()
                    if name.startswith(PARAM) and _has(name, options, policy)
                }
                made = registry.updated(registry.create(policy.spec), **params)
                found.append(
                    Scenario(
                        workload=workload.label,
                        policy=policy.label,
                        source=workload.source,
                        spec=registry.spec_of(made),
                        factors=factors,
                        settings={
                            name: value
                            for name, value in settings.items()
                            if not name.startswith(PARAM) and _has(name, options, policy)
                        },
                        metrics=metrics,
                    )
                )
    return found


def run_all(
    todo: Sequence[Scenario], jobs: int, progress: Callable[[int, int], None] | None = None
) -> list[Run]:
    """The runs of all scenarios, in their order.

    Parameters
    ----------
    jobs
        Number of processes; with 1 the runs are done in this one.
    progress
        Called with the number of runs that are done, and that of all.

    Raises
    ------
    RunsInterrupted
        On Ctrl-C, with what is done.
    """
    found: dict[int, Run] = {}

    def done(place: int, run: Run) -> None:
        found[place] = run
        if progress is not None:
            progress(len(found), len(todo))

    try:
        if jobs <= 1 or len(todo) <= 1:
            for place, scenario in enumerate(todo):
                done(place, run_one(scenario))
        else:
            _in_processes(todo, min(jobs, len(todo)), done)
    except KeyboardInterrupt:
        raise RunsInterrupted([found[place] for place in sorted(found)]) from None
    return [found[place] for place in range(len(todo))]


def run_one(scenario: Scenario) -> Run:
    """Run one scenario; whatever goes wrong is in the result."""
    try:
        return Run(scenario=scenario, values=_simulated(scenario))
    except Exception as error:
        # one bad scenario must not take the others with it
        text = " ".join(str(error).split()) or "no message"
        known = isinstance(error, DaskHPCError)
        return Run(scenario=scenario, values={}, error=text if known else f"{type(error).__name__}: {text}")


def _simulated(scenario: Scenario) -> dict[str, Any]:
    given = scenario.settings
    seed = given.get("seed", 0)
    options = {name.removeprefix(OPTION): value for name, value in given.items() if name.startswith(OPTION)}
    workload = load(scenario.source, seed=seed, **options)
    machine = machine_for(workload, given.get("nodes"))
    if given.get("adaptation") == "published":
        machine = replace(machine, adaptation=PUBLISHED)
    workload = fitted(workload, machine.nodes, given.get("wide", "refuse"))
    if given.get("malleable_share") is not None:
        workload = with_malleable_share(workload, given["malleable_share"], seed, machine.nodes)
    result = simulate(
        workload,
        scenario.spec,
        machine=machine,
        options=Options(
            seed=seed,
            tick_s=given.get("tick"),
            decision_s=given.get("decision_latency", 0.0),
            lock=given.get("lock", "job"),
        ),
    )
    return measured(result, scenario.metrics)


def _has(name: str, options: Any, policy: StudyPolicy) -> bool:
    """Whether a setting means anything to a workload with `options` and to a policy."""
    if name.startswith(OPTION):
        return name.removeprefix(OPTION) in options
    return not name.startswith(PARAM) or name.removeprefix(PARAM) in policy.declared


def called(arguments: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """`run_one` for `dask_hpc.processes`: a scenario's fields in, its values and error out."""
    run = run_one(Scenario(**{**arguments, "metrics": tuple(arguments["metrics"])}))
    return {"values": dict(run.values), "error": run.error}


def _in_processes(todo: Sequence[Scenario], jobs: int, done: Callable[[int, Run], None]) -> None:
    def ended(place: int, came: Any) -> None:
        if isinstance(came, ProcessError):
            came = {"values": {}, "error": f"{came}; with one process (--jobs 1) no other one can fail"}
        done(place, Run(scenario=todo[place], **came))

    call_all(f"{__name__}:{called.__name__}", [_fields(scenario) for scenario in todo], jobs, ended)


def _fields(scenario: Scenario) -> dict[str, Any]:
    return {field.name: getattr(scenario, field.name) for field in fields(scenario)}
