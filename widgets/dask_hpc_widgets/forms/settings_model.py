"""Settings that are being edited beside those that run: what is typed, what is wrong, what would change.

Rules of the file: pure state. No widget, no cluster. What may be typed only the rows say (`dask_hpc.config`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_hpc.config import Setting, table
from dask_hpc.errors import ConfigError
from dask_hpc_policies.params import Parameter


class SettingsModel:
    """The live settings of one cluster, by key.

    Parameters
    ----------
    running
        What the cluster has now, as `Runtime.status` gives it under ``settings``.
    """

    def __init__(self, running: Mapping[str, Any]) -> None:
        # another package may have brought settings here that the cluster does not know
        self._settings = {
            one.key: one
            for one in table()
            if one.row.live and not one.knob and one.field in _inside(one, running)
        }
        #: What the cluster has, as a person would type it, by key; as it was reported last.
        self.running = self._texts(running)
        self._reported = running
        #: What is typed in each field, by key.
        self.texts = dict(self.running)
        #: What was changed elsewhere of what is edited here, with the latest report, by key.
        self.theirs: dict[str, str] = {}

    @property
    def rows(self) -> list[Parameter]:
        """One row a field."""
        return [one.row for one in self._settings.values()]

    @property
    def errors(self) -> dict[str, str]:
        """What is wrong, by key; empty when everything is valid."""
        found = {}
        for key, one in self._settings.items():
            try:
                one.check(self.texts[key])
            except ConfigError as error:
                found[key] = str(error)
        return found

    def changes(self) -> dict[str, str]:
        """What an update would change, by key.

        Raises
        ------
        ConfigError
            When a field is not valid.
        """
        return self._unlike(self.running)

    def beyond_defaults(self) -> dict[str, str]:
        """What is chosen otherwise than a cluster has it from the beginning, by key.

        Raises
        ------
        ConfigError
            When a field is not valid.
        """
        return self._unlike({key: one.row.format(one.row.default) for key, one in self._settings.items()})

    def report(self, running: Mapping[str, Any]) -> bool:
        """Take what the cluster has now; gives whether that is another: what is not edited has followed."""
        if running == self._reported:
            # it is told twice a second, and seldom changes
            return False
        edited = {key for key in self.texts if self._is_edited(key)}
        self._reported, before, self.running = running, self.running, self._texts(running)
        changed = {key: text for key, text in self.running.items() if text != before[key]}
        self.theirs = {key: text for key, text in changed.items() if key in edited and self._is_edited(key)}
        self.texts |= {key: text for key, text in changed.items() if key not in edited}
        return bool(changed)

    def reset(self) -> None:
        """Take back everything that was typed."""
        self.texts = dict(self.running)

    def _is_edited(self, key: str) -> bool:
        """Whether a field holds another value than the cluster has; the same in other words is none."""
        check = self._settings[key].check
        try:
            return bool(check(self.texts[key]) != check(self.running[key]))
        except ConfigError:
            return True

    def _unlike(self, others: Mapping[str, str]) -> dict[str, str]:
        return {
            key: self.texts[key]
            for key, one in self._settings.items()
            if one.check(self.texts[key]) != one.check(others[key])
        }

    def _texts(self, running: Mapping[str, Any]) -> dict[str, str]:
        return {key: one.row.format(_inside(one, running)[one.field]) for key, one in self._settings.items()}


def _inside(one: Setting, running: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = running.get("extra", {}).get(one.extra, {}) if one.extra else running
    return found
