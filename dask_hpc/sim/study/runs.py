"""The runs of a study, in processes: one scenario each, the results in the order of the scenarios.

Rules of the file: a run depends on its scenario alone, so that the number of processes changes nothing but
the time. A run that fails is a result too. Processes are started afresh (none is a copy of this one), and end
with the one that started them.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Any

from dask_hpc.errors import DaskHPCError, WorkloadError
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
    """
    if jobs <= 1 or len(todo) <= 1:
        found = []
        for scenario in todo:
            found.append(run_one(scenario))
            if progress is not None:
                progress(len(found), len(todo))
        return found
    return _in_processes(todo, min(jobs, len(todo)), progress)


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


def _in_processes(
    todo: Sequence[Scenario], jobs: int, progress: Callable[[int, int], None] | None
) -> list[Run]:
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent
    )
    try:
        places: dict[Future[Run], int] = {
            pool.submit(run_one, scenario): place for place, scenario in enumerate(todo)
        }
        found: dict[int, Run] = {}
        for future in as_completed(places):
            place = places[future]
            try:
                found[place] = future.result()
            except BrokenProcessPool:
                error = (
                    "its process ended, or another one beside it: was there enough memory, and has a script "
                    "'if __name__ == \"__main__\":'? With one process (--jobs 1) no other one can fail"
                )
                found[place] = Run(scenario=todo[place], values={}, error=error)
            if progress is not None:
                progress(len(found), len(todo))
    except BaseException:
        # Ctrl-C, or an error in `progress`: nothing goes on behind the user's back
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return [found[place] for place in range(len(todo))]


def _end_with_parent() -> None:
    """Make this process end when the one that started it does, and leave Ctrl-C to that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()
