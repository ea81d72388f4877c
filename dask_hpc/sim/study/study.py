"""Studies: many scenarios in parallel processes, one table, published figures beside ours, conditions.

from dask_hpc.sim.study import load_study, run_study

found = run_study(load_study("builtin:esp-10"), jobs=2)
print(found.table())
found.failures                  # a line for each run and condition that failed
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from dask_hpc._version import __version__
from dask_hpc.errors import OptionError, WorkloadError
from dask_hpc.sim.formats.parsing import LARGEST_YAML_BYTES, parse_yaml
from dask_hpc.sim.formats.text_file import read_text
from dask_hpc.sim.study.file import read_study
from dask_hpc.sim.study.findings import Findings
from dask_hpc.sim.study.metrics import METRICS
from dask_hpc.sim.study.model import Study
from dask_hpc.sim.study.runs import Run, RunsInterrupted, run_all, scenarios
from dask_hpc.sim.study.table import csv_of, failed_condition, text_of
from dask_hpc_policies.params import suggestion

#: Version of the layout of `StudyResult.to_json`. Keys are only ever added.
SCHEMA = 1
_PREFIX = "builtin:"


def builtin_studies() -> tuple[str, ...]:
    """Names of the studies that come with the package."""
    folder = files("dask_hpc.sim") / "studies"
    names = [entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml")]
    return tuple(sorted(name.removesuffix(".yaml") for name in names))


def load_study(
    source: str | Path, *, fast: bool = False, overrides: Mapping[str, Any] | None = None
) -> Study:
    """The study that `source` names: a path, or ``builtin:NAME``.

    Parameters
    ----------
    fast
        With the small settings that the study has for a short run.
    overrides
        Values, or lists of them, by name of a setting: ``{"seed": range(20), "option.jobs": 500}``. They take
        the place of those in the study, but for those of a single policy.

    Raises
    ------
    WorkloadError
        With file, line and field, for whatever is missing, unknown or out of range.
    """
    text = str(source)
    if text.startswith(_PREFIX):
        name = text.removeprefix(_PREFIX)
        known = builtin_studies()
        if name not in known:
            raise OptionError(
                f"unknown study {name!r}; builtin ones are {', '.join(known)}{suggestion(name, known)}"
            )
        content = (files("dask_hpc.sim") / "studies" / f"{name}.yaml").read_text(encoding="utf-8")
        return read_study(parse_yaml(content, text), Path(), fast, overrides or {})
    whole = parse_yaml(read_text(source, LARGEST_YAML_BYTES), text)
    return read_study(whole, Path(source).parent, fast, overrides or {})


class StudyResult(Findings):
    """What a study came to, with its texts."""

    @property
    def failures(self) -> list[str]:
        """A line for each cause of failed runs, with the first of them, and for each condition not met."""
        causes: dict[str, list[Run]] = {}
        for run in self.runs:
            if run.error:
                causes.setdefault(run.error, []).append(run)
        runs = [
            f"run failed: {failed[0].scenario}: {cause}"
            + (f" ({len(failed) - 1} more for the same reason)" if len(failed) > 1 else "")
            for cause, failed in causes.items()
        ]
        return runs + [failed_condition(one) for one in self.conditions if one.ok is False]

    def table(self) -> str:
        """Rows, pairs, sign changes, published figures and conditions, as text."""
        return text_of(self)

    def to_json(self, runs: bool = True) -> dict[str, Any]:
        """All of it as plain JSON data; the same whatever the number of processes was."""
        study = self.study
        shown = tuple(dict.fromkeys((*study.metrics, *study.paired)))
        found: dict[str, Any] = {
            "schema": SCHEMA,
            "kind": "study",
            "dask_hpc": __version__,
            "name": study.name,
            "description": study.description,
            "source": study.source,
            "notes": list(study.notes),
            "baseline": study.baseline,
            "changed": dict(study.changed),
            "rows": [row.to_json(shown) for row in self.rows],
            "published": [{**asdict(one), "difference": one.difference} for one in self.published],
            "sign_changes": [asdict(one) for one in self.turns],
            "conditions": [asdict(one) for one in self.conditions],
            "failures": self.failures,
        }
        if runs:
            found["runs"] = [
                {
                    "workload": run.scenario.workload,
                    "source": run.scenario.source,
                    "policy": run.scenario.policy,
                    "spec": dict(run.scenario.spec),
                    "settings": dict(run.scenario.settings),
                    "factors": dict(run.scenario.factors),
                    **({"error": run.error} if run.error else dict(run.values)),
                }
                for run in self.runs
            ]
        return found


class StudyInterrupted(KeyboardInterrupt):
    """Ctrl-C has ended a study; what was done by then is not lost.

    Parameters
    ----------
    found
        Of the runs that were done; no condition was checked, and a note says that it is not the whole.
    """

    def __init__(self, found: StudyResult, text: str) -> None:
        super().__init__(text)
        self.found = found


#: What `write` leaves in a folder.
WRITTEN = ("study.json", "table.csv")


def write(found: StudyResult, folder: Path) -> tuple[str, ...]:
    """Write ``study.json`` (all runs) and ``table.csv`` (the rows) into `folder`; returns their names.

    Raises
    ------
    WorkloadError
        When they cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(found.to_json(), indent=2, allow_nan=False)
        (folder / "study.json").write_text(text + "\n", encoding="utf-8")
        with (folder / "table.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(csv_of(found))
    except OSError as error:
        raise WorkloadError(f"{folder}: the results cannot be written: {error.strerror or error}") from None
    return WRITTEN


def run_study(
    study: Study, *, jobs: int | None = None, progress: Callable[[int, int], None] | None = None
) -> StudyResult:
    """Do all runs of `study`.

    Parameters
    ----------
    jobs
        Number of processes; None: as many as there are cores. The result does not depend on it.
    progress
        Called with the number of runs that are done, and that of all.

    Raises
    ------
    WorkloadError
        When there are too many runs. A run that fails is in the result instead.
    StudyInterrupted
        On Ctrl-C, with what is done.
    """
    todo = scenarios(study, _needed(study))
    if jobs is None:
        jobs = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        return StudyResult(study, tuple(run_all(todo, jobs, progress)))
    except RunsInterrupted as error:
        text = f"interrupted: {len(error.runs)} of {len(todo)} runs are done, conditions were not checked"
        part = replace(study, expect=(), notes=(*study.notes, text))
        raise StudyInterrupted(StudyResult(part, error.runs), text) from None


def _needed(study: Study) -> tuple[str, ...]:
    """Metrics that something is said about, in the order of the table of metrics."""
    terms = [one.of for one in study.published]
    terms += [term for one in study.expect for condition in one.that for term in condition.terms()]
    wanted = {*study.metrics, *study.paired, *(term.metric for term in terms)}
    return tuple(name for name in METRICS if name in wanted)
