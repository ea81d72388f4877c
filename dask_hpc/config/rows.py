"""The table of settings: one row each, whoever brings it.

Rules of the file: a row (`dask_hpc_policies.params`) says all there is to say about a setting; check,
default, ``hpc.yaml``, the schema, the panel and the command line follow from it. The name in a row is the key
below ``hpc``, such as ``pool.max-nodes``. In Python it is called `pool_max_nodes`: ``-`` and ``.`` become
``_``, with ``_s`` for durations and ``_w`` for powers.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import dask

from dask_hpc.errors import ConfigError
from dask_hpc_policies.params import Parameter, ParameterError, duration_text

#: Entry-point group of settings that other packages bring: name of the section -> its rows.
GROUP = "dask_hpc.settings"
# a text in YAML, too
_KEY = re.compile(r"(?!(?:on|off|yes|no|y|n|true|false|null)$)[a-z][a-z0-9-]*")
_SUFFIX = {"duration": "_s", "power": "_w"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    #: Its name is the key below ``hpc``.
    row: Parameter
    #: What it is called in `Settings`, or in its section of `Settings.extra`.
    field: str
    #: Section of `Settings.extra`; empty for a field of `Settings`.
    extra: str = ""
    #: Honoured, and not offered (`dask_hpc.config.knobs`).
    knob: bool = False

    @property
    def key(self) -> str:
        """The key below ``hpc``."""
        return self.row.name

    @property
    def section(self) -> str:
        """What stands before the dot in its key; empty when nothing does."""
        return self.key.rpartition(".")[0]

    @property
    def default(self) -> Any:
        """The default as a configuration file has it: durations and powers with their unit."""
        row = self.row
        if row.default is None and row.none != "none":
            return row.none
        if row.default is None or row.kind not in _SUFFIX:
            return row.default
        return duration_text(row.default) if row.kind == "duration" else row.format(row.default)

    @property
    def places(self) -> str:
        """What to do to set it, in words."""
        variable = "DASK_HPC__" + self.key.replace(".", "__").replace("-", "_").upper()
        return f"set hpc.{self.key} in the configuration, or {variable}"

    def of(self, settings: Any) -> Any:
        """Its value among `settings`."""
        return settings.extra[self.extra][self.field] if self.extra else getattr(settings, self.field)

    def configured(self) -> Any:
        """Its value in the configuration of this process; raises as `check`."""
        return self.check(dask.config.get(f"hpc.{self.key}", self.default))

    def check(self, value: Any) -> Any:
        """The clean value that `value` stands for.

        Raises
        ------
        ConfigError
            Naming key, value and what is allowed.
        """
        try:
            return self.row.validate(value)
        except ParameterError:
            such = isinstance(self.default, str) and self.row.kind != "choice"
            example = f", such as {self.default!r}" if such else ""
            raise ConfigError(
                f"hpc.{self.key} is {self.row.told(value)}; "
                f"allowed: {self.row.allowed}{example} ({self.places})"
            ) from None


#: The settings of this package, by field; `dask_hpc.config` fills it.
BUILTIN: dict[str, Setting] = {}
#: Those that others have brought, by section.
_registered: dict[str, tuple[Setting, ...]] = {}


def register(section: str, rows: Iterable[Parameter]) -> None:
    """Have another section of settings: in files, environment, updates, the panel and what is printed.

    It holds in this process. An entry point of the group `GROUP`, named like the section, whose value is the
    rows, does the same in every process.

    Parameters
    ----------
    section
        Key below ``hpc``.
    rows
        Named as they are below that key: lower case, with hyphens.

    Raises
    ------
    ConfigError
        When the section is there with other rows, a name is not allowed or taken, or a row refuses its own
        default.
    """
    made = tuple(_named(section, row) for row in rows)
    if _registered.get(section, made) != made:
        raise ConfigError(f"section hpc.{section} is registered with other settings; choose another name")
    others = [one for one in _all() if one.extra != section]
    taken = {_spelled(name) for one in others for name in (one.key, one.section, one.field)}
    names = [section, *(one.key for one in made)]
    if len(set(names)) < len(names) or taken & {_spelled(name) for name in names}:
        raise ConfigError(f"section hpc.{section} has a name twice, or that of another setting: {names}")
    for one in made:
        one.check(one.row.default)
    _registered[section] = made


def _named(section: str, row: Parameter) -> Setting:
    for name in (section, row.name):
        if not _KEY.fullmatch(name):
            raise ConfigError(
                f"section hpc.{section} has the name {name!r}; allowed: a-z, 0-9 and '-', a letter first, "
                "and no word that YAML reads as another value"
            )
    field = _spelled(row.name) + _SUFFIX.get(row.kind, "")
    return Setting(dataclasses.replace(row, name=f"{section}.{row.name}"), field, section)


@cache
def _discover() -> None:
    """Register what is installed; what does not load is skipped with a warning."""
    # workers import this module: what takes long comes when it is needed
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        try:
            register(point.name, point.load())
        except Exception as error:  # Whatever a third party raises must not stop the program.
            warnings.warn(f"settings of entry point {point.value!r} are skipped: {error!r}", stacklevel=2)


def table() -> tuple[Setting, ...]:
    """All settings, those of others last."""
    _discover()
    return _all()


def _all() -> tuple[Setting, ...]:
    return (*BUILTIN.values(), *(one for rows in _registered.values() for one in rows))


def find(name: str) -> Setting:
    """The setting of that name: a field (``tick_s``) or a key (``tick``, ``pool.max-nodes``).

    Raises
    ------
    ConfigError
        When there is none, with the closest, or all there are.
    """
    found = _found(name)
    if found is None:
        raise ConfigError(no_setting(name))
    return found


def no_setting(name: str, *, listed: bool = True) -> str:
    """What is said of a name that no setting has: with the closest, else with all there are, if `listed`."""
    keys = [one.key for one in table() if not one.knob]
    close = difflib.get_close_matches(name.replace("_", "-"), keys, n=1)
    if not (close or listed):
        return f"there is no setting hpc.{name} either"
    hint = f"; did you mean hpc.{close[0]}?" if close else f"; the settings are {', '.join(keys)}"
    return f"there is no setting hpc.{name}{hint}"


def is_setting(name: str) -> bool:
    """Whether `name` is a setting, as a field (``tick_s``) or a key (``tick``, ``pool.max-nodes``)."""
    return _found(name) is not None


def _found(name: str) -> Setting | None:
    _discover()
    spelled = _spelled(name)
    # every worker looks all of them up when it starts, and those of others are few
    if builtin := _builtin_spellings().get(spelled):
        return builtin
    return _spellings(one for rows in _registered.values() for one in rows).get(spelled)


@cache
def _builtin_spellings() -> dict[str, Setting]:
    return _spellings(BUILTIN.values())


def _spellings(settings: Iterable[Setting]) -> dict[str, Setting]:
    found = {}
    for one in settings:
        field = f"{_spelled(one.extra)}_{one.field}" if one.extra else one.field
        found.update({_spelled(one.key): one, field: one})
    return found


def _spelled(name: str) -> str:
    return name.replace(".", "_").replace("-", "_")


def by_field(values: Mapping[str, Any], extra: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Arguments of `Settings` for values by any spelling, on top of `extra`."""
    fields: dict[str, Any] = {}
    inner = {section: dict(there) for section, there in extra.items()}
    for name, value in values.items():
        one = find(name)
        where = inner.setdefault(one.extra, {}) if one.extra else fields
        where[one.field] = value
    return {**fields, "extra": inner}


def checked_extra(given: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """All settings of others, checked: what is not given takes its default."""
    clean: dict[str, dict[str, Any]] = {}
    for one in table():
        if one.extra:
            value = given.get(one.extra, {}).get(one.field, one.row.default)
            clean.setdefault(one.extra, {})[one.field] = one.check(value)
    for section, values in given.items():
        for name in values:
            if name not in clean.get(section, {}):
                find(f"{section}.{name}")
    return clean
