"""The table of settings as text: ``hpc.yaml`` and its schema, printed from the rows.

``dask hpc config hpc`` prints the one and ``dask hpc config hpc --schema`` the other. The files of the
package are what these print where nobody else has brought settings.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import yaml

from dask_hpc.config import Setting, table
from dask_hpc_policies.params import Parameter

_WIDTH = 110
_HEAD = """\
# Settings of dask_hpc. Durations are text with a unit ("500 ms", "1 s", "5 min") or seconds; none is null.
# Override a key in any Dask configuration file, with dask.config.set({"hpc.tick": "2 s"}), or by an
# environment variable: DASK_HPC__TICK="2 s", DASK_HPC__POOL__MAX_NODES=16. Those that are not read at the
# start alone change on a running cluster, too: in the panel, by rt.update(tick="2 s") or by
# dask hpc update tick="2 s".
"""
_SCHEMA_HEAD = "# Printed by dask hpc config hpc --schema.\n"
#: Types of JSON by kind of a row.
_TYPES = {
    "int": ["integer"],
    "float": ["number"],
    "duration": ["string", "number"],
    "power": ["string", "number"],
    "bool": ["boolean"],
    "text": ["string"],
    "path": ["string"],
    "url": ["string"],
    "words": ["array"],
    "mapping": ["object"],
}


def yaml_text() -> str:
    """All settings with their defaults, what each does and what it takes: a configuration file of Dask."""
    return _HEAD + "\n".join(["hpc:", *_lines()]) + "\n"


def schema_text() -> str:
    """The schema (JSON schema, as YAML) of `yaml_text`; it takes knobs, too."""
    return _SCHEMA_HEAD + yaml.safe_dump(schema(), sort_keys=False, width=_WIDTH, allow_unicode=True)


def schema() -> dict[str, Any]:
    """The schema of a file of settings."""
    inside: dict[str, Any] = {}
    for section, rows in _sections(knobs=True):
        properties = {_name(one): _property(one.row) for one in rows}
        place = inside
        for part in section.split(".") if section else ():
            place = place.setdefault(part, _object({}))["properties"]
        place.update(properties)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Settings of dask_hpc",
        **_object({"hpc": _object(inside)}),
        "required": ["hpc"],
    }


def _sections(*, knobs: bool) -> Iterator[tuple[str, list[Setting]]]:
    """Rows by section, those without one first; sections in the order of their first rows."""
    shown = [one for one in table() if knobs or not one.knob]
    order = list(dict.fromkeys(["", *(one.section for one in shown)]))
    shown.sort(key=lambda one: order.index(one.section))
    for section, rows in groupby(shown, key=lambda one: one.section):
        yield section, list(rows)


def _name(one: Setting) -> str:
    return one.key.rpartition(".")[2]


def _lines() -> Iterator[str]:
    for section, rows in _sections(knobs=False):
        depth = section.count(".") + 1 if section else 0
        if section:
            yield ""
            yield f"{'  ' * depth}{section.rpartition('.')[2]}:"
        indent = "  " * (depth + 1)
        for one in rows:
            comment = f"{indent}# "
            yield from textwrap.wrap(one.row.help, _WIDTH, initial_indent=comment, subsequent_indent=comment)
            value = yaml.safe_dump(one.default, default_flow_style=True).removesuffix("...\n").strip()
            when = "" if one.row.live else "; read at the start"
            yield f"{indent}{_name(one)}: {value}  # {one.row.allowed}{when}"


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _property(row: Parameter) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if row.kind == "choice":
        found["enum"] = [*row.choices, *([None] if row.none_ok else [])]
    else:
        types = [*_TYPES[row.kind], *(["null"] if row.none_ok else [])]
        found["type"] = types if len(types) > 1 else types[0]
    if row.kind in ("int", "float"):
        found.update(
            {word: bound for word, bound in (("minimum", row.lo), ("maximum", row.hi)) if bound is not None}
        )
    if row.kind == "text":
        found["pattern"] = r"\S"
    if row.kind == "url":
        found["pattern"] = "^https?://[^/@]+(/|$)"
    if row.kind == "words":
        found["items"] = {"enum": list(row.choices)} if row.choices else {"type": "string"}
    if row.kind == "path":
        found["pattern"] = "^/"
    return {**found, "description": f"{row.help.rstrip('.')}. Allowed: {row.allowed}."}
