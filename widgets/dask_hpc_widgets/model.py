"""State of a policy form: what is chosen, as typed, and what it would change.

Rules of the file: pure state. No widget, no cluster, no clock. What is typed stays text until it is valid as
a whole; only then is there a specification that a cluster may be given.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dask_hpc_policies import registry
from dask_hpc_policies.params import ParameterError, Parameters


class PolicyModel:
    """One policy that is being edited.

    Parameters
    ----------
    spec
        What the cluster runs now, as `Runtime.status` gives it under ``policy``.

    Raises
    ------
    ValueError
        When `spec` is no policy that can be made from data.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.load(spec)

    def load(self, source: str | Path | Mapping[str, Any]) -> None:
        """Edit another policy: a name, a YAML file, or a specification. Refused: nothing changes.

        Raises
        ------
        ValueError
            When `source` is no policy; the message says why.
        """
        policy = registry.create(source)
        self._policy = policy
        self.parameters = Parameters(getattr(policy, "parameters", ()))
        values = _values(registry.spec_of(policy))
        #: What is typed in each field, by name of the parameter.
        self.texts = {one.name: one.format(values.get(one.name, one.default)) for one in self.parameters}

    def type(self, name: str, text: str) -> str:
        """Take what is typed in a field; gives the error of that field, empty when it is valid."""
        if name not in self.texts:
            self.parameters.validate(name, text)
        self.texts[name] = text
        return self.errors.get(name, "")

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
                registry.updated(self._policy, **self.texts)
            except ValueError as error:
                found[""] = str(error)
        return found

    def spec(self) -> dict[str, Any]:
        """The specification that `Runtime.update` takes.

        Raises
        ------
        ParameterError
            When a field is not valid, or the fields together are not.
        """
        return registry.spec_of(registry.updated(self._policy, **self.texts))

    def save(self, path: str | Path) -> None:
        """Write the policy as a YAML file that `load` and ``policy=`` take.

        Raises
        ------
        ParameterError
            When a field is not valid; no file is written.
        """
        Path(path).write_text(yaml.safe_dump(self.spec(), sort_keys=False), encoding="utf-8")


def _values(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Values of all parameters in a specification, those of members and guards included."""
    found: dict[str, Any] = {}
    for member in spec.get("policies", ()):
        found.update(_values(member))
    found.update(spec.get("params", {}))
    for guard in spec.get("compose", ()):
        for own in guard.values():
            found.update(own)
    return found
