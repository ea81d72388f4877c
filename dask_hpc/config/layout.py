"""The layout of a configuration below ``hpc``: sections in sections, a setting at each end.

Rules of the file: nothing here reads a configuration or knows what a setting may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from dask_hpc.config.rows import Setting, table
from dask_hpc.errors import ConfigError
from dask_hpc_policies.params import shown


def parts(config: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each setting of a configuration as one of its own, by key; what is below `within` as it is there."""
    return _parts(config, within, _sections())


def _parts(
    config: Mapping[str, Any], within: str, sections: Set[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key, value in config.items():
        section = f"{within}.{key}" if within else str(key)
        if section.replace("_", "-") in sections and isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", {key: part}) for inner, part in _parts(value, section, sections))
        else:
            yield str(key), {key: value}


def leaves(config: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """Key and value of all that a mapping below ``hpc`` has; raises ConfigError when a section is none.

    Parameters
    ----------
    within
        The section that it is below ``hpc``.
    """
    # every process reads its settings again and again: the table is gone through once each time
    return _leaves(config, within, _sections())


def _leaves(config: Mapping[str, Any], within: str, sections: Set[str]) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        name = f"{within}.{key}" if within else str(key)
        section = name.replace("_", "-")
        if section not in sections:
            yield name, value
        elif isinstance(value, Mapping):
            yield from _leaves(value, section, sections)
        else:
            raise ConfigError(f"hpc.{section} is {shown(value)}; allowed: a mapping, as in hpc.yaml")


def nested(rows: Iterable[Setting]) -> dict[str, Any]:
    """The defaults of `rows` with the layout of ``hpc.yaml`` below its ``hpc`` key."""
    found: dict[str, Any] = {}
    for one in rows:
        inside = found
        for section in one.key.split(".")[:-1]:
            inside = inside.setdefault(section, {})
        inside[one.key.rpartition(".")[2]] = one.default
    return found


def _sections() -> set[str]:
    """All sections, such as ``power`` and ``power.model``."""
    return {one.section.replace("_", "-") for one in table()} - {""}
