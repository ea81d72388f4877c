"""State of the panel: what is chosen, as typed, how it differs from what runs, what can be taken back.

Rules of the file: pure state. No widget, no cluster, no clock. What is typed stays text until it is valid as
a whole; only then is there a specification that a cluster may be given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from dask_hpc_policies import registry
from dask_hpc_policies.params import ParameterError, Parameters
from dask_hpc_policies.protocol import Policy

#: What is edited when the cluster runs what cannot be made here.
_BEGIN_WITH = "pwma-fpsma"


@dataclass(frozen=True, slots=True)
class Edit:
    """One line of the difference between what runs and what is chosen."""

    #: ``policy``, or the name of a parameter.
    name: str
    #: What a person calls it.
    label: str
    #: Texts with units; empty where there is no such parameter.
    before: str
    after: str


class PolicyModel:
    """One policy that is being edited, beside the one that runs.

    Parameters
    ----------
    running
        What the cluster runs now, as `Runtime.status` gives it under ``policy``; also what cannot be made
        here (see `is_custom`).
    """

    def __init__(self, running: Mapping[str, Any]) -> None:
        #: What the cluster runs, as it was reported last.
        self.running: dict[str, Any] = dict(running)
        self._history: list[dict[str, Any]] = []
        self.load(_BEGIN_WITH if is_custom(running) else running)

    # --------------------------------------------------------------- editing

    def load(self, source: str | Path | Mapping[str, Any]) -> None:
        """Edit another policy: a name, a YAML file, or a specification. Refused: nothing changes.

        Raises
        ------
        ValueError
            When `source` is no policy; the message says why. Whatever a policy raises when it is made is
            raised; see `refused`.
        """
        policy = registry.create(source)
        parameters, texts = Parameters(getattr(policy, "parameters", ())), _texts(policy)
        self._policy, self.parameters = policy, parameters
        #: What is typed in each field, by name of the parameter.
        self.texts = texts
        self._loaded = dict(self.texts)

    def type(self, name: str, text: str) -> str:
        """Take what is typed in a field; gives what is wrong with it, empty when nothing is.

        Wrong may be the field itself, or, when each is valid alone, the fields together.

        Raises
        ------
        ParameterError
            When there is no such field.
        """
        if name not in self.texts:
            # raises, with the names that there are
            self.parameters.validate(name, text)
        self.texts[name] = text
        errors = self.errors
        return errors.get(name) or errors.get("", "")

    @property
    def errors(self) -> dict[str, str]:
        """What is wrong, by name of the parameter; empty when everything is valid.

        Values that are valid alone but not together are under the empty name.
        """
        found = {}
        for one in self.parameters:
            try:
                one.validate(self.texts[one.name])
            except ParameterError as error:
                found[one.name] = str(error)
        if not found:
            try:
                self._chosen()
            except Exception as error:
                found[""] = refused(error)
        return found

    def spec(self) -> dict[str, Any]:
        """The specification that `Runtime.update` takes.

        Raises
        ------
        ParameterError
            When a field is not valid, or the fields together are not.
        """
        return registry.spec_of(self._chosen())

    def _chosen(self) -> Policy:
        # what was not touched stays as it is: members of a chain may differ in a parameter of one name
        typed = {name: text for name, text in self.texts.items() if text != self._loaded[name]}
        return registry.updated(self._policy, **typed) if typed else self._policy

    def save(self, path: str | Path) -> None:
        """Write the policy as a YAML file that `load` and ``policy=`` take.

        Raises
        ------
        ParameterError
            When a field is not valid; no file is written.
        OSError
            When the file cannot be written.
        """
        Path(path).write_text(yaml.safe_dump(self.spec(), sort_keys=False), encoding="utf-8")

    # ------------------------------------------------- beside what is running

    def changes(self) -> tuple[Edit, ...]:
        """What Apply would change, the policy first; empty when the cluster runs just this.

        Raises
        ------
        ParameterError
            When a field is not valid, or the fields together are not.
        """
        return changes(self.running, self.spec())

    def report(self, running: Mapping[str, Any]) -> bool:
        """Take what the cluster says it runs; gives whether somebody else has changed it.

        Then there is nothing left to revert, and a form in which nothing was edited follows. One in which
        parameters of just this policy are edited follows in all others.
        """
        if running == self.running:
            return False
        untouched = not self.errors and self.spec() == self.running
        before, self.running = self.running, dict(running)
        self._history.clear()
        if is_custom(running):
            return True
        if untouched:
            self.load(running)
        elif title(registry.spec_of(self._policy)) == title(before) == title(running):
            edited = self._unlike(before)
            self.load(running)
            self.texts |= edited
        return True

    def _unlike(self, spec: Mapping[str, Any]) -> dict[str, str]:
        """What is typed, by parameter, where it is another value than in a specification of this policy."""
        others = {} if is_custom(spec) else _texts(registry.create(spec))
        found = {}
        for one in self.parameters:
            try:
                same = one.validate(self.texts[one.name]) == one.validate(others[one.name])
            except (KeyError, ParameterError):
                same = False
            if not same:
                found[one.name] = self.texts[one.name]
        return found

    def applied(self, running: Mapping[str, Any]) -> None:
        """Note that the cluster was given another policy and says it runs `running` now."""
        self._history.append(self.running)
        self.running = dict(running)

    @property
    def previous(self) -> dict[str, Any] | None:
        """What ran before the last Apply; None when nothing was applied or it cannot be brought back."""
        return self._history[-1] if self._history and not is_custom(self._history[-1]) else None

    def reverted(self, running: Mapping[str, Any]) -> None:
        """Note that the last Apply was taken back and the cluster says it runs `running` now."""
        self._history.pop()
        self.running = dict(running)
        self.load(running)


def is_custom(spec: Mapping[str, Any]) -> bool:
    """Whether a specification only tells what the cluster has: it can be neither made nor edited here.

    It is that of an object, or of a policy that is registered there and not here.
    """
    try:
        registry.create(spec)
    except Exception:
        # anybody's code may raise anything
        return True
    return False


def refused(error: Exception) -> str:
    """Why a policy cannot be had, in words, whatever was raised: it may be anybody's code.

    What refuses a value or a file says all in its message; of anything else the kind is said, too.
    """
    return str(error) if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: {error}"


def title(spec: Mapping[str, Any]) -> str:
    """A policy in one line: ``easy``, ``pwma-fpsma + mtct``, ``chain(easy, fixed)``."""
    name = str(spec["policy"])
    if spec.get("policies"):
        name += f"({', '.join(title(member) for member in spec['policies'])})"
    guards = [next(iter(guard)) for guard in spec.get("compose", ())]
    return " + ".join([name, *guards])


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Edit, ...]:
    """The difference between two specifications, the policy first, then parameters as declared.

    Members of a chain or an arbiter may differ where what it shows itself does not: then theirs are told.

    Raises
    ------
    ValueError
        When one of them is no policy (an object that is described, see `is_custom`, has its name alone).
    """
    found = []
    if title(before) != title(after):
        found.append(Edit("policy", "Policy", title(before), title(after)))
    labels: dict[str, str] = {}
    texts = []
    for spec in (after, before):
        policy = None if is_custom(spec) else registry.create(spec)
        texts.append({} if policy is None else _texts(policy))
        declared = () if policy is None else getattr(policy, "parameters", ())
        labels.update({one.name: one.label or one.name for one in declared if one.name not in labels})
    new, old = texts
    for name, label in labels.items():
        if old.get(name, "") != new.get(name, ""):
            found.append(Edit(name, label, old.get(name, ""), new.get(name, "")))
    if not found:
        for one, other in zip(before.get("policies", ()), after.get("policies", ()), strict=False):
            theirs = changes(one, other)
            found += [replace(edit, label=f"{edit.label} of {title(other)}") for edit in theirs]
    if not found and _whole(before) != _whole(after):
        texts_of = [json.dumps(_whole(spec), default=str) for spec in (before, after)]
        found.append(Edit("policy", "Policy", *texts_of))
    return tuple(found)


def _whole(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return spec if is_custom(spec) else registry.spec_of(registry.create(spec))


def _texts(policy: Policy) -> dict[str, str]:
    """What each parameter of a policy is, as a person would type it."""
    values = getattr(policy, "params", {})
    return {
        one.name: one.format(values.get(one.name, one.default)) for one in getattr(policy, "parameters", ())
    }


def titles(specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each of several policies is called: its `title`, with the parameters in which namesakes differ.

    Policies that are just the same have the same title; all others have one of their own.
    """
    plain = [title(spec) for spec in specs]
    found: list[str] = []
    for i, spec in enumerate(specs):
        others = [other for j, other in enumerate(specs) if plain[j] == plain[i] and other != spec]
        differing = {one.label: one.after for other in others for one in changes(other, spec) if one.after}
        text = ", ".join(f"{label} {value}" for label, value in differing.items())
        found.append(f"{plain[i]} ({text})" if text else plain[i])
    # members of a chain may differ where its parameters do not
    return [_numbered(i, found, specs) for i in range(len(specs))]


def _numbered(i: int, names: Sequence[str], specs: Sequence[Mapping[str, Any]]) -> str:
    """The name at `i`, with a number unless it is the first of other specifications with this name."""
    namesakes: list[Mapping[str, Any]] = []
    for name, spec in zip(names, specs, strict=True):
        if name == names[i] and spec not in namesakes:
            namesakes.append(spec)
    number = namesakes.index(specs[i]) + 1
    return names[i] if number == 1 else f"{names[i]} #{number}"
