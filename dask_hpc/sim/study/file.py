"""The format of studies: workloads, policies, what varies, what was published and what must hold, in YAML.

Rules of the file: every value is checked when the file is read; an error names file, line and field; nothing
is evaluated. What a study is made of is plain data, so that it can go to other processes.

.. code-block:: yaml

    name: esp                       # the file's name by default
    description: ...                # free text; so are `source` (who published it) and each of `notes`
    workloads:                      # or `workload: builtin:esp`
      esp:
        source: builtin:esp         # as `dask hpc simulate` takes it; files lie beside the study
        set: {option.interval_s: 30 s}
        vary: {option.walltime_factor: [1, 2]}
    policies:
      easy: easy                    # a name, or a file with a policy
      reordering-0.2:
        policy: io-aware
        params: {reordering: 0.2}
        set: {malleable_share: 0}   # wins over `vary`: this policy gets this value alone
    set: {nodes: 32}                # settings of all runs, and those that vary: see `study_settings`
    vary: {malleable_share: [0, 0.5, 1], seed: {from: 0, to: 4}}
    over: [seed]                    # factors behind one row: the median of these runs is shown
    baseline: easy                  # policy that changes are against: same workload, same other factors
    metrics: [makespan_s, mean_wait_s]
    paired: [mean_wait_s]           # count, and list, the pairs of runs in which a policy is not better
    sign_change: malleable_share    # factor along which to find where the change turns
    published:
      - {of: change(makespan_s), value: -19.3, at: {policy: easy}, source: "John (2024), section 9.1"}
    expect:                         # see `study_conditions`; `at` chooses rows
      - {at: {policy: easy, malleable_share: 1}, that: makespan_s == 200 min +- 5 %}
    fast:                           # what --fast changes; `expect` replaces that of the study
      set: {seed: [0, 1]}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dask_hpc.sim.formats.fields import Field, escaped
from dask_hpc.sim.study.conditions import ConditionError, parse_condition, parse_number, parse_term
from dask_hpc.sim.study.metrics import METRICS
from dask_hpc.sim.study.model import (
    SHOWN,
    Expectation,
    Published,
    Study,
    StudyPolicy,
    StudyWorkload,
    overridden,
)
from dask_hpc.sim.study.settings import options_of, read_setting, read_values
from dask_hpc.sim.workloads import sources
from dask_hpc_policies import registry
from dask_hpc_policies.params import Parameters

_TOP = (
    "name", "description", "source", "notes", "workload", "workloads", "policies", "set", "vary", "over",
    "baseline", "metrics", "paired", "sign_change", "published", "expect", "fast",
)  # fmt: skip
_LABEL = re.compile(r"[A-Za-z_][\w.-]*")


def read_study(whole: Field, folder: Path, fast: bool, overrides: Mapping[str, Any]) -> Study:
    """The study that a YAML text holds.

    Parameters
    ----------
    folder
        Where its files lie.
    fast
        With the settings of its own for a short run.
    overrides
        Values, or lists of them, by name of a setting; they win over all but those of a single policy.

    Raises
    ------
    WorkloadError
        With file, line and field.
    """
    whole.mapping(_TOP)
    reader = _Reader(whole, folder)
    policies = reader.policies(whole)
    workloads = reader.workloads()
    short = whole.get("fast")
    changes = reader.changes(short if fast else None, overrides)
    names = {policy.label for policy in policies}
    fixed, varied = reader.settings(whole)
    vary, workloads = overridden(varied, workloads, changes)
    metrics = _metrics(whole, "metrics") or SHOWN
    source = short if fast and short is not None and short.get("expect") is not None else whole
    factors = {*vary, *(name for workload in workloads for name in workload.vary)}
    columns = {"workload", "policy", *factors, *varied}
    along = whole.get("sign_change")
    return Study(
        name=_text(whole, "name") or escaped(Path(whole.file.removeprefix("builtin:")).stem),
        description=_text(whole, "description"),
        source=_text(whole, "source"),
        notes=tuple(note.text() for note in _sequence(whole, "notes")),
        workloads=workloads,
        policies=policies,
        set=fixed,
        vary=vary,
        over=tuple(one.text(columns) for one in _sequence(whole, "over")) or ("seed",),
        baseline=None if whole.get("baseline") is None else whole["baseline"].text(sorted(names)),
        metrics=metrics,
        paired=_paired(whole),
        sign_change=None if along is None else along.text(sorted(columns)),
        published=tuple(reader.published(one, names, columns) for one in _sequence(whole, "published")),
        expect=tuple(reader.expectation(one, names, columns) for one in _sequence(source, "expect")),
        changed={name: list(values) for name, values in changes.items()},
    )


class _Reader:
    """What the settings of a study are checked against."""

    def __init__(self, whole: Field, folder: Path) -> None:
        self.folder = folder
        named, single = whole.get("workloads"), whole.get("workload")
        if (named is None) == (single is None):
            whole.fail("a study has 'workload' or 'workloads'")
        places = list(named.items()) if named is not None else [("", single)] if single is not None else []
        if not places:
            whole["workloads"].fail("no workloads")
        self._places = [(label, place, self._source(place)) for label, place in places]
        self.options = [options_of(source) for _, _, source in self._places]
        self.params: list[Parameters] = []
        self.labels: set[str] = set()

    def policies(self, whole: Field) -> tuple[StudyPolicy, ...]:
        found = tuple(self._policy(label, place) for label, place in whole.need("policies").items())
        if not found:
            whole["policies"].fail("no policies")
        self.params = [_parameters(policy.spec) for policy in found]
        return found

    def workloads(self) -> tuple[StudyWorkload, ...]:
        found = []
        for label, place, source in self._places:
            plain = not isinstance(place.value, dict)
            fixed, varied = ({}, {}) if plain else self.settings(place, [options_of(source)])
            found.append(
                StudyWorkload(
                    label=_label(label or Path(source.removeprefix("builtin:")).stem, place),
                    source=source,
                    set=fixed,
                    vary=varied,
                )
            )
        self.labels = {workload.label for workload in found}
        return tuple(found)

    def _source(self, place: Field) -> str:
        """File, or ``builtin:NAME``, of a workload."""
        if isinstance(place.value, dict):
            place.mapping(("source", "set", "vary"))
            place = place.need("source")
        text = place.text()
        if text.startswith("builtin:"):
            place.replaced(text.removeprefix("builtin:")).text(list(sources.BUILTIN))
            return text
        path = self.folder / text
        if not path.is_file():
            place.fail(f"no such file: {path}")
        return str(path)

    def _policy(self, label: str, place: Field) -> StudyPolicy:
        plain = not isinstance(place.value, dict)
        if not plain:
            place.mapping(("policy", "params", "set"))
        named = place if plain else place.need("policy")
        spec = named.text()
        params = {} if plain else {name: value.value for name, value in _items(place, "params")}
        from_file = spec.endswith((".yaml", ".yml"))
        try:
            policy = registry.create(self.folder / spec if from_file else spec, **params)
        except (ValueError, OSError, TypeError) as error:
            (place["params"] if params else named).fail(" ".join(str(error).split()))
        made = registry.spec_of(policy)
        given = [] if plain else _items(place, "set")
        fixed = {name: read_setting(name, value, self.options, []) for name, value in given}
        return StudyPolicy(
            label=_label(label, place),
            spec=made,
            declared=frozenset(parameter.name for parameter in _parameters(made)),
            set=fixed,
        )

    def settings(
        self, place: Field, options: Iterable[Parameters] | None = None
    ) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
        """What `set` and `vary` of a place hold."""
        options = self.options if options is None else options
        fixed = {
            name: read_setting(name, value, options, self.params) for name, value in _items(place, "set")
        }
        varied = {
            name: read_values(name, value, options, self.params) for name, value in _items(place, "vary")
        }
        for name in fixed.keys() & varied.keys():
            place["vary"][name].fail("is also under 'set'; a setting varies or is fixed")
        return fixed, varied

    def changes(self, short: Field | None, overrides: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
        """Values by setting of the short run and of the command line."""
        found: dict[str, tuple[Any, ...]] = {}
        if short is not None:
            short.mapping(("set", "expect"))
            for name, value in _items(short, "set"):
                found[name] = read_values(name, value, self.options, self.params)
        for name, value in overrides.items():
            given = list(value) if isinstance(value, (tuple, range)) else value
            found[name] = read_values(name, Field(given, "--set", name), self.options, self.params)
        return found

    def published(self, place: Field, policies: set[str], columns: set[str]) -> Published:
        place.mapping(("of", "value", "at", "source"))
        value = place.need("value")
        if isinstance(value.value, str):
            number = _parsed(value, parse_number)
        else:
            number = value.number(-1e18)
        return Published(
            of=_parsed(place.need("of"), parse_term),
            value=number,
            at=self._at(place, policies, columns),
            source=place.need("source").text(),
        )

    def expectation(self, place: Field, policies: set[str], columns: set[str]) -> Expectation:
        place.mapping(("at", "that"))
        that = place.need("that")
        parts = list(that.sequence()) if isinstance(that.value, list) else [that]
        conditions = tuple(_parsed(part, parse_condition) for part in parts)
        for part, condition in zip(parts, conditions, strict=True):
            for term in condition.terms():
                if term.policy is not None:
                    part.replaced(term.policy).text(sorted(policies))
        line = place.lines.get(place.path)
        where = place.file if line is None else f"{place.file}, line {line}"
        return Expectation(at=self._at(place, policies, columns), that=conditions, place=where)

    def _at(self, place: Field, policies: set[str], columns: set[str]) -> dict[str, Any]:
        found = {}
        for name, value in _items(place, "at"):
            if name not in columns:
                value.fail(f"no such factor; known: {', '.join(sorted(columns))}")
            found[name] = [
                one.text(sorted(policies)) if name == "policy"
                else one.text(sorted(self.labels)) if name == "workload"
                else read_setting(name, one, self.options, self.params)
                for one in _listed(value)
            ]  # fmt: skip
        return found


def _parameters(spec: Mapping[str, Any]) -> Parameters:
    return Parameters(getattr(registry.create(spec), "parameters", ()))


def _listed(place: Field) -> list[Field]:
    return list(place.sequence()) if isinstance(place.value, list) else [place]


def _parsed(place: Field, parse: Any) -> Any:
    try:
        return parse(place.text())
    except ConditionError as error:
        place.fail(str(error))


def _metrics(whole: Field, key: str) -> tuple[str, ...]:
    return tuple(one.text(list(METRICS)) for one in _sequence(whole, key))


def _paired(whole: Field) -> tuple[str, ...]:
    names = _metrics(whole, "paired")
    for name, place in zip(names, _sequence(whole, "paired"), strict=True):
        if METRICS[name].by_job or not METRICS[name].better:
            place.fail(f"of two values of {name} neither is the better one; take another metric")
    return names


def _label(label: str, place: Field) -> str:
    if not _LABEL.fullmatch(label):
        place.fail(f"{label!r} is no name: letters, digits, '_', '-' and '.', a letter first")
    return label


def _text(whole: Field, key: str) -> str:
    place = whole.get(key)
    return "" if place is None else " ".join(place.text().split())


def _items(place: Field, key: str) -> list[tuple[str, Field]]:
    below = place.get(key)
    return [] if below is None else list(below.items())


def _sequence(whole: Field, key: str) -> list[Field]:
    below = whole.get(key)
    return [] if below is None else list(below.sequence())
