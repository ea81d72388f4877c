"""Rules as they are written: ``[{of: price, above: 100, upper_w: 2 kW}, {upper_w: 4 kW}]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dask_hpc.config.file import plain
from dask_hpc.errors import CorridorError
from dask_hpc.scheduler.power.tariff.read import read_text
from dask_hpc_policies.params import ParameterError, parse_power, shown, suggestion
from dask_hpc_policies.power.bounds import MOST_W
from dask_hpc_policies.power.checks import is_number
from dask_hpc_policies.power.tariff import LIMITS, SIGNALS, Rule

_FIELDS = ("of", "above", "below", *LIMITS)
_MOST_RULES, _MOST_BYTES = 1000, 1 << 20


def parse_rules(given: Any) -> tuple[Rule, ...]:
    """Rules from plain data; the first that fits counts.

    Raises
    ------
    CorridorError
        Naming the rule, the value and what is allowed.
    """
    if not isinstance(given, Sequence) or isinstance(given, str) or not 1 <= len(given) <= _MOST_RULES:
        raise CorridorError(
            f"rules is {shown(given)}; allowed: 1 to {_MOST_RULES} mappings such as "
            "{above: 100, upper_w: 2 kW}"
        )
    return tuple(_rule(number, row) for number, row in enumerate(given, start=1))


def read_rules(path: str) -> tuple[Rule, ...]:
    """Rules from a YAML file; see `rule_rows`."""
    return parse_rules(rule_rows(path))


def rule_rows(path: str) -> list[Any]:
    """Rules from a YAML file, checked, as plain data: a list of them, or a mapping with it under ``rules``.

    Raises
    ------
    CorridorError
        When it cannot be read, or holds no rules; the message begins with the path.
    """
    text = read_text(path, _MOST_BYTES)
    rows: Any
    try:
        found = plain(text)
        rows = found.get("rules") if isinstance(found, Mapping) else found
        parse_rules(rows)
    except ValueError as error:
        raise CorridorError(f"{path}: {error}") from None
    return list(rows)


def _rule(number: int, row: Any) -> Rule:
    where = f"rule {number}"
    if not isinstance(row, Mapping):
        raise CorridorError(f"{where} is {shown(row)}; give a mapping with some of {', '.join(_FIELDS)}")
    for name in row:
        if name not in _FIELDS:
            raise CorridorError(
                f"{where} has {shown(name)}; allowed: {', '.join(_FIELDS)}{suggestion(name, _FIELDS)}"
            )
    if not any(name in row for name in LIMITS):
        raise CorridorError(f"{where} has no bounds; give lower_w or upper_w, or both")
    of = row.get("of", SIGNALS[0])
    if of not in SIGNALS:
        raise CorridorError(f"{where}: of is {shown(of)}; allowed: {', '.join(SIGNALS)}")
    above, below = (_signal(where, name, row.get(name)) for name in ("above", "below"))
    if above is not None and below is not None and above >= below:
        raise CorridorError(f"{where}: above is {above:g} and below is {below:g}, so that it never holds")
    lower_w = _watts(where, "lower_w", row.get("lower_w", 0.0))
    upper_w = _watts(where, "upper_w", row.get("upper_w", MOST_W))
    if lower_w > upper_w:
        raise CorridorError(
            f"{where}: lower_w is {lower_w:g} W, above upper_w, which is {upper_w:g} W; swap them"
        )
    return Rule(of=of, above=above, below=below, lower_w=lower_w, upper_w=upper_w)


def _signal(where: str, name: str, value: Any) -> float | None:
    if value is None:
        return None
    if not is_number(value):
        raise CorridorError(f"{where}: {name} is {shown(value)}; give a number (money per MWh, g per kWh)")
    return float(value)


def _watts(where: str, name: str, value: Any) -> float:
    try:
        watts = parse_power(value)
    except ParameterError as error:
        raise CorridorError(f"{where}: {name}: {error}") from None
    if watts > MOST_W:
        raise CorridorError(f"{where}: {name} is {watts:g} W; allowed: 0 to {MOST_W:g} W")
    return watts
