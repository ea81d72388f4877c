"""Settings of a run that a study may fix or vary: names, checks, and lists of values.

Rules of the file: values are checked when a study is read. ``option.NAME`` is an option of a builtin workload
and belongs to the workloads that have it; ``param.NAME`` is a parameter of a policy and belongs to the
policies that have it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from dask_hpc.sim.formats.fields import Field
from dask_hpc.sim.generators.generator import Generator
from dask_hpc.sim.workloads.sources import BUILTIN
from dask_hpc_policies.params import ParameterError, Parameters, suggestion

OPTION, PARAM = "option.", "param."
#: Most values of one setting.
_MOST_VALUES = 100_000
_BUILTIN = "builtin:"
_RANGE = re.compile(r"\s*([0-9]{1,18})\s*\.\.\s*([0-9]{1,18})\s*")


def _tick(field: Field) -> float | None:
    if field.value is None or field.value == "none":
        return None
    return field.duration_s(above_zero=True)


#: Check and clean value by name, of all settings but options and parameters.
SETTINGS: Mapping[str, Callable[[Field], Any]] = {
    "seed": lambda field: field.integer(0, 2**63 - 1),
    "malleable_share": lambda field: field.number(0.0, 1.0),
    "nodes": lambda field: field.integer(1, 10_000_000),
    "tick": _tick,
    "decision_latency": lambda field: field.duration_s(),
    "adaptation": lambda field: field.text(("none", "published")),
    "lock": lambda field: field.text(("job", "system")),
    "wide": lambda field: field.text(("refuse", "drop", "clip")),
}


def options_of(source: str) -> Parameters:
    """The options of a workload; files have none."""
    made = BUILTIN.get(source.removeprefix(_BUILTIN)) if source.startswith(_BUILTIN) else None
    return made.options if isinstance(made, Generator) else Parameters(())


def read_setting(name: str, field: Field, options: Iterable[Parameters], params: Iterable[Parameters]) -> Any:
    """The clean value of the setting `name`.

    Parameters
    ----------
    options, params
        Of the workloads, and of the policies, that the setting is for; one of them must have it.

    Raises
    ------
    WorkloadError
        With file, line and field.
    """
    if name in SETTINGS:
        return SETTINGS[name](field)
    for prefix, declared in ((OPTION, list(options)), (PARAM, list(params))):
        if name.startswith(prefix):
            return _declared(name.removeprefix(prefix), field, declared)
    known = [*SETTINGS, f"{OPTION}NAME", f"{PARAM}NAME"]
    field.fail(f"unknown setting; known: {', '.join(known)}{suggestion(name, known)}")


def read_values(
    name: str, field: Field, options: Iterable[Parameters], params: Iterable[Parameters]
) -> tuple[Any, ...]:
    """The values of a setting that varies: a list, ``{from: 0, to: 199}`` of whole numbers, or one value.

    Raises
    ------
    WorkloadError
        With file, line and field.
    """
    options, params = list(options), list(params)
    if isinstance(field.value, dict):
        field.mapping(("from", "to"))
        first, last = field.need("from").integer(), field.need("to").integer()
        if not first <= last < first + _MOST_VALUES:
            field.wrong(f"'to' at or above 'from', and at most {_MOST_VALUES} values")
        parts = [field.replaced(number) for number in range(first, last + 1)]
    else:
        parts = list(field.sequence()) if isinstance(field.value, list) else [field]
    values = tuple(read_setting(name, part, options, params) for part in parts)
    if not values:
        field.fail("no values")
    if len(set(values)) < len(values):
        field.fail("a value is given twice")
    return values


def parse_values(text: str) -> Any:
    """What ``NAME=VALUE`` on a command line holds: a value, ``a,b,c``, or ``0..199``."""
    if found := _RANGE.fullmatch(text):
        return {"from": int(found[1]), "to": int(found[2])}
    parts = [_scalar(part.strip()) for part in text.split(",")]
    return parts if len(parts) > 1 else parts[0]


def _scalar(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _declared(name: str, field: Field, declared: list[Parameters]) -> Any:
    for parameters in declared:
        if name in parameters:
            try:
                return parameters.validate(name, field.value)
            except ParameterError as error:
                field.fail(str(error))
    _unknown(name, field, declared)


def _unknown(name: str, field: Field, declared: list[Parameters]) -> NoReturn:
    known = sorted({one.name for parameters in declared for one in parameters})
    field.fail(f"no {name!r} here; known: {', '.join(known) or 'none'}{suggestion(name, known)}")
