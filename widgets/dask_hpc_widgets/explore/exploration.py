"""Several policies on one workload: what is run, how the runs are called, what came out.

Rules of the file: no widget. `run` is made for a thread beside the kernel's loop: all that takes long, the
markup of the outcome and its figure among it, is done there.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dask_hpc.errors import WorkloadError
from dask_hpc.sim import Options, Result, Workload, simulate
from dask_hpc.sim.model.machine import Machine
from dask_hpc.sim.results.series import utilization
from dask_hpc.sim.workloads.prepare import prepare
from dask_hpc_policies import registry
from dask_hpc_policies.wording import counted
from dask_hpc_widgets import comparison
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.background import Cancelled
from dask_hpc_widgets.base.markup import Markup
from dask_hpc_widgets.forms.workload_model import GENERATORS, SETTINGS

#: Told the share that is done, 0 to 1; what it raises ends the run.
Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be run."""

    #: As `dask_hpc.sim.workloads.prepare.prepare` takes it, by name.
    workload: Mapping[str, Any]
    #: Specifications by title, in order; the first is the measure of the others.
    policies: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """What came of a plan."""

    plan: Plan
    #: Runs by the title of their policy; fewer than there are policies when it was stopped, or some failed.
    runs: Mapping[str, Result]
    #: Of policies that failed, their errors.
    failures: Mapping[str, str]
    #: All of it.
    html: Markup

    def to_json(self) -> dict[str, Any]:
        """The runs as plain JSON data, as ``dask hpc compare --json`` prints them, with their jobs.

        Policies that failed are named with their errors under ``failures``; without any there is no such key.
        """
        return {
            "schema": 1,
            "kind": "comparison",
            "runs": [{"label": label, **result.to_json()} for label, result in self.runs.items()],
            **({"failures": dict(self.failures)} if self.failures else {}),
        }


def read(plan: Plan) -> str:
    """Read or generate the workload alone; gives what it is, in sentences.

    Raises
    ------
    WorkloadError
        As `run`.
    """
    workload, machine = prepare(**plan.workload)
    return " ".join([about(workload, machine), *(f"{note.rstrip('.')}." for note in workload.notes)])


def run(
    plan: Plan, progress: Progress = lambda share: None, found: Callable[[Explored], None] = lambda one: None
) -> Explored:
    """Read or generate the workload and run every policy on it; `found` is given what there is after each.

    A policy is anybody's code: one that fails is named with its error, and the others are run.

    Raises
    ------
    WorkloadError
        When the workload cannot be read or a job of it cannot run; no policy has run then.
    """
    workload, machine = prepare(**plan.workload)
    options = Options(seed=plan.workload["seed"])
    runs: dict[str, Result] = {}
    failures: dict[str, str] = {}
    for place, (name, spec) in enumerate(plan.policies.items()):

        def told(ended: int, done: int = place) -> None:
            progress((done + min(1.0, ended / len(workload.jobs))) / len(plan.policies))

        told(0)
        try:
            runs[name] = simulate(workload, spec, machine=machine, options=options, progress=told)
        except (Cancelled, WorkloadError):
            raise
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
        html = _html(about(workload, machine), tuple(plan.policies), runs, failures)
        outcome = Explored(plan=plan, runs=dict(runs), failures=dict(failures), html=html)
        found(outcome)
    progress(1.0)
    return outcome


def about(workload: Workload, machine: Machine) -> str:
    """A workload and its machine in a sentence."""
    jobs = workload.jobs
    resizable = sum(job.kind in ("malleable", "evolving") for job in jobs)
    can = f"{resizable or 'none'} of them can"
    # jobs are in order of submission
    within = f"submitted within {markup.seconds(jobs[-1].submit_s - jobs[0].submit_s)}"
    return (
        f"{workload.name}: {counted(len(jobs), 'job')}, {can} change size while they run, {within}; "
        f"a machine of {counted(machine.nodes, 'node')}."
    )


def save(outcome: Explored, path: str | Path, *, replace: bool = False) -> str:
    """Write `outcome` as JSON; gives the path that was written.

    The file is written whole or not at all.

    Raises
    ------
    ValueError
        When the name does not end in ``.json``, or there is such a file and it is not to be replaced.
    OSError
        When it cannot be written.
    """
    text = str(path).strip()
    if not text.lower().endswith(".json"):
        raise ValueError(f"results file is {text!r}: give it a name that ends in .json")
    file = Path(text).expanduser()
    if not replace and file.exists():
        raise ValueError(f"{text} is there already: tick 'Replace the file', or give another name")
    data = json.dumps(outcome.to_json(), indent=1, allow_nan=False)
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        part.write_text(data + "\n", encoding="utf-8")
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
    return text


def chosen(plan: Plan) -> Markup:
    """What is to be run, as a table."""
    source, options = str(plan.workload["source"]), plan.workload["options"]
    generator = GENERATORS.get(source.removeprefix("builtin:"))
    rows = [("Workload", source)]
    for declared, values in ((generator.options if generator else (), options), (SETTINGS, plan.workload)):
        given = [one for one in declared if values.get(one.name) is not None or one.none_ok]
        rows += [(one.label or one.name, one.format(values[one.name])) for one in given]
    for number, (name, spec) in enumerate(plan.policies.items(), start=1):
        policy = registry.create(spec)
        values = getattr(policy, "params", {})
        pairs = ", ".join(
            f"{one.label or one.name} {one.format(values[one.name])}"
            for one in getattr(policy, "parameters", ())
            if one.name in values
        )
        rows.append((f"Policy {number}", f"{name}: {pairs}" if pairs else name))
    return markup.table((("What", False), ("Chosen", False)), rows, "What is chosen")


def _html(
    workload: str, policies: Sequence[str], runs: Mapping[str, Result], failures: Mapping[str, str]
) -> Markup:
    missing = [name for name in policies if name not in runs and name not in failures]
    notes = comparison.any_note(list(runs.values()))
    refused = [
        f"{name}: {counted(one.counts.refused, 'action')} could not be carried out."
        for name, one in runs.items()
        if one.counts.refused
    ]
    return Markup().join(
        [
            markup.element("h3", "Results"),
            markup.soft(workload),
            *([_failed(failures)] if failures else []),
            *([markup.soft(f"Without {', '.join(missing)}, not run to the end.")] if missing else []),
            *(_compared(runs, policies[0]) if runs else []),
            *map(markup.soft, [*notes, *refused]),
        ]
    )


def _failed(failures: Mapping[str, str]) -> Markup:
    columns = (("Policy", False), ("Failed, and is not compared", False))
    return markup.table(columns, list(failures.items()), "Policies that failed")


def _compared(runs: Mapping[str, Result], first: str) -> list[Markup]:
    measure = next(iter(runs))
    return [
        *([] if measure == first else [markup.soft(f"The measure of the others is {measure}.")]),
        comparison.metrics(runs),
        _figures(runs),
        *([comparison.differing(runs)] if len(runs) > 1 else []),
    ]


def _figures(runs: Mapping[str, Result]) -> Markup:
    """Nodes in use and waits over time, with the same in words; a hint where they cannot be drawn."""
    try:
        from dask_hpc.sim.results import plots
    except ImportError:
        return markup.soft("There is no figure: it needs matplotlib, pip install 'dask-hpc[plot]'.")
    drawn = ((plots.usage_figure(runs), _words(runs)), (plots.waits_figure(runs), _waits(runs)))
    return Markup().join(
        markup.image(base64.b64encode(plots.png(figure)).decode("ascii"), words) for figure, words in drawn
    )


def _waits(runs: Mapping[str, Result]) -> str:
    """What the figure of waits shows, for those who do not see it."""
    said = []
    for name, result in runs.items():
        waits = [wait_s for run in result.runs if (wait_s := run.wait_s) is not None]
        most = max((step[3] for step in utilization(result)), default=0)
        told = f", {markup.seconds(median(waits))} in the median, at most {markup.seconds(max(waits))}"
        said.append(f"{name}: at most {counted(most, 'job')} at once" + (told if waits else ""))
    return f"Jobs that wait over time, and how long. {'; '.join(said)}."


def _words(runs: Mapping[str, Result]) -> str:
    """What the figure shows, for those who do not see it."""
    nodes = next(iter(runs.values())).machine.nodes
    said = []
    for name, result in runs.items():
        found = result.metrics(jobs=False)
        used = "" if found["utilization"] is None else f"{found['utilization'] * nodes:.3g} on average"
        said.append(f"{name}: {used} for {markup.seconds(found['makespan_s'])}")
    return f"Nodes in use over time, of {nodes}. {'; '.join(said)}."
