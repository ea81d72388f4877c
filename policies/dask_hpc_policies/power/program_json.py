"""The corridor's questions as JSON: one object each, every field checked, nothing ignored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dask_hpc_policies.params import shown, suggestion
from dask_hpc_policies.power.checks import ProgramError, count
from dask_hpc_policies.power.problem import PowerJob, Problem, Rigid

_NEEDED = ("nodes", "lower_w", "upper_w", "idle_w")
_OPTIONAL = ("off_w", "max_off_nodes", "margin_w", "several")
_PARTS = ("rigid", "jobs", "waiting")
_RIGID = ("nodes", "min_w", "max_w")
_JOB = ("id", "nodes", "min_nodes", "max_nodes", "constraint", "min_w", "max_w", "table")


def from_json(value: object) -> Problem:
    """A problem from one JSON object.

    Raises
    ------
    ProgramError
        When a field is missing, unknown, or holds what cannot be.
    """
    fields = _object("", value, (*_NEEDED, *_OPTIONAL, *_PARTS))
    _present("", fields, _NEEDED)
    several = fields.get("several", False)
    if not isinstance(several, bool):
        raise ProgramError(f"several is {shown(several)}; allowed: true, false")
    most = fields["nodes"]
    count("", "nodes", most, 1)
    plain = {name: fields[name] for name in (*_NEEDED, *_OPTIONAL) if fields.get(name) is not None}
    return Problem(
        **plain,
        rigid=_rigid(fields.get("rigid")),
        jobs=tuple(_jobs("jobs", fields.get("jobs"), most)),
        waiting=tuple(_jobs("waiting", fields.get("waiting"), most)),
    )


def _rigid(value: object) -> Rigid:
    if value is None:
        return Rigid()
    fields = _object("rigid: ", value, _RIGID)
    _present("rigid: ", fields, _RIGID)
    return Rigid(**fields)


def _jobs(name: str, value: object, most_nodes: int) -> Iterable[PowerJob]:
    if value is None:
        return
    if not isinstance(value, list):
        raise ProgramError(f"{name} is {shown(value)}; give a list of jobs")
    for number, one in enumerate(value, start=1):
        yield _job(f"{name}, number {number}: ", one, most_nodes)


def _job(where: str, value: object, most_nodes: int) -> PowerJob:
    fields = dict(_object(where, value, _JOB))
    _present(where, fields, ("id", "nodes"))
    if not isinstance(fields["id"], str) or not fields["id"]:
        raise ProgramError(f"{where}id is {shown(fields['id'])}; give a text that is not empty")
    where = f"job {shown(fields['id'])}: "
    table = fields.get("table")
    if table is None:
        _present(where, fields, ("min_w", "max_w"))
        fields.pop("table", None)
    else:
        if "min_w" in fields or "max_w" in fields:
            raise ProgramError(f"{where}has a table and min_w or max_w; give the one or the others")
        if not isinstance(table, list) or not table:
            raise ProgramError(f"{where}table is {shown(table)}; give a list of [nodes, min, max]")
        for row in table:
            if not isinstance(row, list) or len(row) != 3:
                raise ProgramError(f"{where}table holds {shown(row)}; each row is [nodes, min, max]")
        fields["table"] = tuple(tuple(row) for row in table)
    fields.setdefault("min_nodes", 1)
    fields.setdefault("max_nodes", most_nodes)
    return PowerJob(**fields)


def _object(where: str, value: object, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ProgramError(f"{where}{shown(value)} is no object; allowed: one with {', '.join(known)}")
    for name in value:
        if name not in known:
            raise ProgramError(
                f"{where}unknown field {shown(name)}; allowed: {', '.join(known)}{suggestion(name, known)}"
            )
    return value


def _present(where: str, fields: Mapping[str, Any], needed: tuple[str, ...]) -> None:
    missing = [name for name in needed if fields.get(name) is None]
    if missing:
        raise ProgramError(f"{where}{missing[0]} is missing; give {', '.join(needed)}")
