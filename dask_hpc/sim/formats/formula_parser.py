"""The notation of formulas: text in, a tree out. What the operators mean is in `formula`.

Rules of the file: recursive descent, one method for each line of the table in `formula`; size and depth are
bounded.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from dask_hpc_policies.params import suggestion

#: Longest formula, in characters.
LONGEST = 2000
#: Deepest nesting of choices, signs and powers; a bracket counts twice.
DEEPEST = 60
#: Largest value, of either sign, of a number or a result.
LARGEST = 1e300

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign><=|>=|==|!=|<>|[-+*/%^()<>=?:,]))"
)


class FormulaError(ValueError):
    """A text that is no formula, or a formula that has no value; the message says where or why."""


def _round(value: float) -> float:
    """Halves away from 0, as C does."""
    return math.copysign(math.floor(abs(value) + 0.5), value)


#: Functions by name: how many arguments they take (at least, at most) and what they do. All of them, and
#: the operations below, have names of their own, so that a formula can be sent to another process.
FUNCTIONS: Mapping[str, tuple[int, int, Callable[..., float]]] = {
    "abs": (1, 1, abs),
    "ceil": (1, 1, math.ceil),
    "floor": (1, 1, math.floor),
    "round": (1, 1, _round),
    "trunc": (1, 1, math.trunc),
    "sqrt": (1, 1, math.sqrt),
    "exp": (1, 1, math.exp),
    "log": (1, 1, math.log),
    "log2": (1, 1, math.log2),
    "log10": (1, 1, math.log10),
    "sin": (1, 1, math.sin),
    "cos": (1, 1, math.cos),
    "tan": (1, 1, math.tan),
    "pow": (2, 2, math.pow),
    "min": (2, 20, min),
    "max": (2, 20, max),
}
_OPERATIONS: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "%": math.fmod,
    "^": math.pow, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "=": operator.eq, "!=": operator.ne, "<>": operator.ne,
}  # fmt: skip
_COMPARISONS = frozenset("< <= > >= == = != <>".split())
_WORDS = frozenset({"and", "or", "if", *FUNCTIONS})

#: A node of the tree: its kind, then its value, name or parts.
Node = tuple[Any, ...]


class Parser:
    """One reading of one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: set[str] = set()
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0

    def choice(self) -> Node:
        """The tree of the expression that begins here."""
        self._enter()
        node = self._or()
        if self._take("?"):
            yes = self.choice()
            self._expect(":")
            node = ("if", node, yes, self.choice())
        self._depth -= 1
        return node

    def expect_end(self) -> None:
        """Raise a `FormulaError` when there is more text."""
        if self._peek():
            self._fail("an operator or the end")

    def _or(self) -> Node:
        return self._joined("or", self._and)

    def _and(self) -> Node:
        return self._joined("and", self._comparison)

    def _comparison(self) -> Node:
        return self._chain(_COMPARISONS, self._sum)

    def _sum(self) -> Node:
        return self._chain({"+", "-"}, self._product)

    def _product(self) -> Node:
        return self._chain({"*", "/", "%"}, self._signed)

    def _chain(self, signs: frozenset[str] | set[str], part: Callable[[], Node]) -> Node:
        first = part()
        rest = []
        while (sign := self._peek()) in signs:
            self._next += 1
            rest.append((_OPERATIONS[sign], part()))
        return ("chain", first, tuple(rest)) if rest else first

    def _joined(self, word: str, part: Callable[[], Node]) -> Node:
        parts = [part()]
        while self._take(word):
            parts.append(part())
        return (word, tuple(parts)) if len(parts) > 1 else parts[0]

    def _signed(self) -> Node:
        self._enter()
        if self._take("-"):
            node: Node = ("call", operator.neg, (self._signed(),))
        elif self._take("+"):
            node = self._signed()
        else:
            node = self._atom()
            if self._take("^"):
                node = ("call", math.pow, (node, self._signed()))
        self._depth -= 1
        return node

    def _atom(self) -> Node:
        if self._take("("):
            node = self.choice()
            self._expect(")")
            return node
        kind, word, _ = self._token()
        if kind == "number":
            self._next += 1
            value = float(word)
            if value > LARGEST:
                raise FormulaError(f"{short(self.text)}: the number {short(word)} is too large")
            return ("number", value)
        if kind != "name" or word in ("and", "or"):
            self._fail("a number, a name or (")
        self._next += 1
        if self._peek() == "(":
            return self._call(word)
        if word in _WORDS:
            self._fail("(")
        self.names.add(word)
        return ("name", word)

    def _call(self, name: str) -> Node:
        if name != "if" and name not in FUNCTIONS:
            raise FormulaError(
                f"{short(self.text)}: unknown function {name!r}; known functions: if, "
                f"{', '.join(FUNCTIONS)}{suggestion(name, _WORDS)}"
            )
        self._expect("(")
        arguments = [self.choice()]
        while self._take(","):
            arguments.append(self.choice())
        self._expect(")")
        least, most, function = FUNCTIONS.get(name, (3, 3, abs))
        if not least <= len(arguments) <= most:
            takes = str(least) if least == most else f"{least} to {most}"
            raise FormulaError(f"{short(self.text)}: {name} takes {takes} arguments, got {len(arguments)}")
        return ("if", *arguments) if name == "if" else ("call", function, tuple(arguments))

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise FormulaError(f"{short(self.text)} is nested too deeply; at most {DEEPEST} levels are read")

    def _token(self) -> tuple[str, str, int]:
        if self._next < len(self._tokens):
            return self._tokens[self._next]
        return "end", "", len(self.text) + 1

    def _peek(self) -> str:
        return self._token()[1]

    def _take(self, word: str) -> bool:
        if self._peek() != word:
            return False
        self._next += 1
        return True

    def _expect(self, word: str) -> None:
        if not self._take(word):
            self._fail(word)

    def _fail(self, expected: str) -> NoReturn:
        _, word, column = self._token()
        found = repr(word) if word else "the end"
        raise FormulaError(f"{short(self.text)}: expected {expected}, got {found} at column {column}")


def _tokens(text: str) -> list[tuple[str, str, int]]:
    """Kind, word and column (from 1) of each token."""
    tokens = []
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            start = len(text) - len(text[position:].lstrip())
            raise FormulaError(f"{short(text)}: unexpected {text[start]!r} at column {start + 1}")
        kind = str(match.lastgroup)
        tokens.append((kind, match[kind], match.start(kind) + 1))
        position = match.end()
    return tokens


def short(text: str, longest: int = 80) -> str:
    """The formula for a message."""
    text = text.strip()
    return repr(text if len(text) <= longest else text[: longest - 3] + "...")
