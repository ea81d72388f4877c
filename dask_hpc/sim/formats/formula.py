"""Formulas over the size of a job and its arguments, such as ``flops / num_nodes^0.8``.

Rules of the file: text in, a tree of numbers, names and known operations out; nothing is ever handed to
Python to evaluate. Size and depth are bounded, so that a text from a file can neither hang nor exhaust the
reader. Every result is a finite number or an error that names the formula and the cause.

The notation is that of ElastiSim's performance models (its documentation, page "Performance models"), from
loosest to tightest:

====================================  ==================================================================
``a ? b : c``                         b when a is not 0, else c; only the chosen one is evaluated
``or``, then ``and``                  1 or 0; a number other than 0 is true
``< <= > >= == = != <>``              1 or 0
``+ -``, then ``* / %``               ``%`` is the remainder with the sign of the dividend
``-a +a``, then ``a ^ b``             ``2^3^2`` is ``2^(3^2)`` and ``-2^2`` is ``-(2^2)``
``if(a, b, c)``, ``min``, ``sqrt``    and the other names of `FUNCTIONS`
====================================  ==================================================================

A name stands for its value: with ``x = -3`` is ``x^2`` 9. (ElastiSim pastes the text of the value, which
gives ``-3^2``.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from dask_hpc.sim.formats.formula_parser import (
    DEEPEST,
    FUNCTIONS,
    LARGEST,
    LONGEST,
    FormulaError,
    Node,
    Parser,
    short,
)
from dask_hpc_policies.params import suggestion

__all__ = ["DEEPEST", "FUNCTIONS", "LARGEST", "LONGEST", "Formula", "FormulaError", "compile_formula"]


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula; make it with `compile_formula` and call it with the values of its names."""

    text: str
    #: Names that it needs values for.
    names: frozenset[str]
    _tree: Node = field(repr=False)

    def __call__(self, values: Mapping[str, float]) -> float:
        """Its value where the names stand for `values`.

        Raises
        ------
        FormulaError
            For a name without value, a division by zero, a root or logarithm that does not exist, or a
            result that is too large.
        """
        try:
            value = float(_value(self._tree, values))
        except KeyError as error:
            known = ", ".join(sorted(values)) or "none"
            name = error.args[0]
            raise FormulaError(
                f"{short(self.text)}: unknown name {name!r}; known names: {known}{suggestion(name, values)}"
            ) from None
        except ZeroDivisionError:
            raise self._no_value("divides by zero", values) from None
        except OverflowError:
            raise self._no_value("is too large", values) from None
        except ValueError:
            raise self._no_value("has no value (a root, power, remainder or logarithm)", values) from None
        if not abs(value) <= LARGEST:
            raise self._no_value("is too large", values)
        return value

    def _no_value(self, why: str, values: Mapping[str, float]) -> FormulaError:
        used = ", ".join(f"{name} = {values[name]:g}" for name in sorted(self.names) if name in values)
        return FormulaError(f"{short(self.text)} {why}" + (f" for {used}" if used else ""))


def compile_formula(text: str) -> Formula:
    """The formula that `text` is.

    Raises
    ------
    FormulaError
        When it is none, or is longer than `LONGEST` or nested deeper than `DEEPEST`; the message names the
        column.
    """
    if len(text) > LONGEST:
        raise FormulaError(f"a formula of {len(text)} characters; at most {LONGEST} are read")
    parser = Parser(text)
    tree = parser.choice()
    parser.expect_end()
    return Formula(text.strip(), frozenset(parser.names), tree)


def _value(node: Node, values: Mapping[str, float]) -> float:
    kind = node[0]
    if kind == "number":
        return node[1]  # type: ignore[no-any-return]
    if kind == "name":
        return float(values[node[1]])
    if kind == "if":
        return _value(node[2] if _value(node[1], values) else node[3], values)
    if kind == "and":
        return float(all(_value(part, values) for part in node[1]))
    if kind == "or":
        return float(any(_value(part, values) for part in node[1]))
    if kind == "call":
        return _finite(node[1](*(_value(part, values) for part in node[2])))
    # a chain, not a tree of pairs: its length costs no depth
    value = _value(node[1], values)
    for operation, part in node[2]:
        value = _finite(operation(value, _value(part, values)))
    return value


def _finite(value: float) -> float:
    # a float, so that whole numbers cannot grow without end
    number = float(value)
    if not math.isfinite(number):
        raise OverflowError
    return number
