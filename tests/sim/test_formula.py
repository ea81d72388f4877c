"""Formulas: the same values as Python's own arithmetic, and bad texts that can neither run nor hang."""

from __future__ import annotations

import ast
import math
import operator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.sim.formats.formula import DEEPEST, LONGEST, FormulaError, compile_formula

NAMES = ("num_nodes", "x", "flops")


def value(text: str, **values: float) -> float:
    return compile_formula(text)(values)


# Random texts without superfluous brackets: what is tested is the order of the operators.
def expressions() -> st.SearchStrategy[str]:
    numbers = st.integers(0, 9).map(str) | st.floats(0.0625, 8, width=16).map(repr)
    atoms = numbers | st.sampled_from(NAMES)
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "**"]), inner).map(" ".join),
            inner.map("({})".format),
            inner.map("-{}".format),
        ),
        max_leaves=12,
    )


REFERENCE = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: math.pow, ast.USub: operator.neg,
}  # fmt: skip


def reference(node: Any, values: dict[str, float]) -> float:
    """Python's parser decides what belongs together; the numbers are floats."""
    if isinstance(node, ast.BinOp):
        left, right = reference(node.left, values), reference(node.right, values)
        result = REFERENCE[type(node.op)](left, right)
    elif isinstance(node, ast.UnaryOp):
        result = REFERENCE[type(node.op)](reference(node.operand, values))
    else:
        result = values[node.id] if isinstance(node, ast.Name) else float(node.value)
    if not math.isfinite(result):
        raise OverflowError
    return result


@given(expressions(), st.fixed_dictionaries({name: st.floats(-8, 8, width=16) for name in NAMES}))
def test_values_are_those_of_python(text: str, values: dict[str, float]) -> None:
    formula = compile_formula(text.replace("**", "^"))
    try:
        expected = reference(ast.parse(text, mode="eval").body, values)
    except (ZeroDivisionError, OverflowError, ValueError):
        with pytest.raises(FormulaError):
            formula(values)
    else:
        if abs(expected) <= 1e300:
            assert formula(values) == expected


@given(st.text(max_size=60) | st.text("0123456789.eE+-*/%^()<>=?:, xifandormin", max_size=60))
def test_any_text_is_a_formula_or_one_error(text: str) -> None:
    try:
        result = compile_formula(text)({"x": 2.0, "e": 1.0})
    except FormulaError as error:
        assert str(error)  # noqa: PT017
    else:
        assert math.isfinite(result)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2^3^2", 512), ("-2^2", -4), ("2^-2", 0.25), ("-7 % 3", -1), ("7 - 2 - 1", 4), ("8 / 4 / 2", 1),
        ("1 < 2", 1), ("2 <> 2", 0), ("x = 5 and 1", 1), ("0 or 0", 0), ("1 or 0 and 0", 1),
        ("x % 2 == 0 ? x + 1 : x - 1", 4), ("if(x > 4, 10, 1 / 0)", 10), ("x > 9 ? 1/0 : 2", 2),
        ("min(3, x, 1)", 1), ("max(3, x)", 5), ("round(2.5)", 3), ("round(-2.5)", -3), ("ceil(x / 2)", 3),
        ("pow(x, 2)", 25), ("1e3 * .5", 500), ("sqrt(x + 4)", 3), (" x\n", 5), ("1 + (2 + (3))", 6),
    ],
)  # fmt: skip
def test_known_values(text: str, expected: float) -> None:
    assert value(text, x=5) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "got the end at column 1"), ("1 +", "got the end"), ("1 2", "expected an operator or the end"),
        ("(1", "expected )"), ("foo(1)", "unknown function 'foo'"), ("minn(1)", "did you mean 'min'"),
        ("sqrt(1, 2)", "takes 1 arguments, got 2"), ("min", "expected ("), ("1e999", "too large"),
        ("a.b", "unexpected '.' at column 2"), ("__import__('os')", "unexpected"), ("x ? 1", "expected :"),
        ("$", "unexpected '$' at column 1"), ("and", "expected a number"), ("if(1, 2)", "takes 3"),
        ("[1]", "unexpected '['"), ("1" * (LONGEST + 1), "at most 2000"),
        ("(" * DEEPEST + "1" + ")" * DEEPEST, "nested too deeply"), ("-" * 1999 + "1", "nested too deeply"),
        ("1?" * 900 + "1" + ":1" * 90, "nested too deeply"), ("2^" * 900 + "1", "nested too deeply"),
    ],
)  # fmt: skip
def test_what_is_no_formula(text: str, said: str) -> None:
    with pytest.raises(FormulaError) as error:
        compile_formula(text)
    assert said in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 / (x - 5)", "divides by zero for x = 5"), ("x % 0", "has no value"), ("sqrt(-x)", "has no value"),
        ("log(0)", "has no value"), ("9^999", "is too large"), ("exp(x * 1000)", "is too large"),
        ("1e300 * 1e10 - 1e300 * 1e10", "is too large"),
        ("(-8)^0.5", "has no value"), ("0^-1", "has no value"),
        ("num_node + 1", "unknown name 'num_node'; known names: num_nodes, x; did you mean 'num_nodes'"),
    ],
)  # fmt: skip
def test_what_has_no_value(text: str, said: str) -> None:
    formula = compile_formula(text)
    with pytest.raises(FormulaError) as error:
        formula({"x": 5, "num_nodes": 4})
    assert said in str(error.value)


def test_a_long_chain_costs_no_depth() -> None:
    assert value("+".join(["1"] * 1000)) == 1000
    assert value("1" + "*-1" * 600) == 1


def test_a_formula_knows_its_names_and_can_be_sent() -> None:
    formula = compile_formula("flops / num_nodes^0.8 + min(a, 1)")
    assert formula.names == {"flops", "num_nodes", "a"}
    again = ForkingPickler.loads(ForkingPickler.dumps(formula))
    assert again({"flops": 8, "num_nodes": 1, "a": 3}) == 9
