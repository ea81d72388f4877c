"""Conditions of a study, such as ``makespan_s of easy == 1500 +- 5 %``: parsed, never run as code.

Rules of the file: text in, data out; what a term is worth is asked from the caller.

.. code-block:: text

    condition = value (comparison value)+ ["+-" number ["%"]]
    comparison = "<" | "<=" | ">" | ">=" | "=="
    value     = [number "*"] term | number | "[" number ("," number)* "]"
    term      = (metric | statistic "(" metric ")") ["of" policy]
    number    = digits with sign, point and exponent, and "s", "min" or "h" where it is a time

The tolerance is that of every ``==``; a share of the right side with ``%``. Without one, numbers are equal
when they differ by rounding alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NoReturn

from dask_hpc.sim.study.metrics import METRICS
from dask_hpc_policies.params import suggestion

#: What can be said of the runs behind a row. `change` is against the baseline, in per cent, in the median of
#: the pairs of runs; `better`, `equal` and `worse` are the shares of these pairs, in per cent.
STATISTICS = ("median", "mean", "lowest", "highest", "change", "better", "equal", "worse")
#: Those that say which of two values is the better one.
_JUDGED = ("better", "worse")
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|(?P<word>[A-Za-z_][\w.-]*)"
    r"|(?P<sign>\+-|<=|>=|==|[<>()*\[\],%]))"
)
_COMPARISONS = ("<=", ">=", "==", "<", ">")
#: Relative difference that is rounding.
_ROUNDING = 1e-9

#: A number, one for each job, or None: not measured.
Amount = float | tuple[float | None, ...] | None


class ConditionError(ValueError):
    """A text that is no condition, no term or no number; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class Term:
    """A statistic of a metric: of the row at hand, or of the row of another policy."""

    metric: str
    statistic: str = "median"
    policy: str | None = None
    times: float = 1.0

    def __str__(self) -> str:
        plain = self.metric if self.statistic == "median" else f"{self.statistic}({self.metric})"
        text = plain if self.policy is None else f"{plain} of {self.policy}"
        return text if self.times == 1 else f"{self.times:g} * {text}"


@dataclass(frozen=True, slots=True)
class Condition:
    """Values that are to compare as said, each with its right neighbour."""

    text: str
    values: tuple[Term | float | tuple[float, ...], ...]
    comparisons: tuple[str, ...]
    #: Of every ``==``.
    tolerance: float = 0.0
    #: The tolerance is a share of the right side.
    relative: bool = False

    def terms(self) -> tuple[Term, ...]:
        """Those of the values that are terms."""
        return tuple(value for value in self.values if isinstance(value, Term))

    def holds(self, worth: Callable[[Term], Amount]) -> bool:
        """Whether it is true; `worth` gives the value of a term, without its factor."""
        amounts = [self._amount(value, worth) for value in self.values]
        return all(
            self._compare(left, comparison, right)
            for left, comparison, right in zip(amounts, self.comparisons, amounts[1:], strict=False)
        )

    def _amount(self, value: Term | float | tuple[float, ...], worth: Callable[[Term], Amount]) -> Amount:
        if not isinstance(value, Term):
            return value
        amount = worth(value)
        return amount if value.times == 1 or not isinstance(amount, (int, float)) else value.times * amount

    def _compare(self, left: Amount, comparison: str, right: Amount) -> bool:
        if left is None or right is None:
            return False
        if isinstance(left, tuple) or isinstance(right, tuple):
            if not (isinstance(left, tuple) and isinstance(right, tuple)) or comparison != "==":
                return False
            return len(left) == len(right) and all(map(self._same, left, right))
        if comparison == "==":
            return self._same(left, right)
        if comparison in ("<=", ">=") and math.isclose(left, right, rel_tol=_ROUNDING):
            return True
        return left < right if comparison[0] == "<" else left > right

    def _same(self, left: float | None, right: float | None) -> bool:
        if left is None or right is None:
            return left is right
        allowed = self.tolerance * (abs(right) if self.relative else 1.0)
        return abs(left - right) <= allowed + _ROUNDING * max(abs(left), abs(right))


def parse_condition(text: str) -> Condition:
    """The condition that `text` is.

    Raises
    ------
    ConditionError
        When it is none.
    """
    reader = _Reader(text)
    values = [reader.value()]
    comparisons = []
    while reader.next in _COMPARISONS:
        comparisons.append(reader.take())
        values.append(reader.value())
    if not comparisons:
        reader.wrong(f"one of {' '.join(_COMPARISONS)}")
    tolerance, relative = 0.0, False
    if reader.next == "+-":
        reader.take()
        tolerance = reader.number()
        if reader.next == "%":
            reader.take()
            tolerance, relative = tolerance / 100, True
        if "==" not in comparisons:
            raise ConditionError(f"{text!r}: a tolerance belongs to ==")
    reader.end()
    return Condition(" ".join(text.split()), tuple(values), tuple(comparisons), tolerance, relative)


def parse_term(text: str) -> Term:
    """The term that `text` is, such as ``change(makespan_s)``.

    Raises
    ------
    ConditionError
        When it is none.
    """
    reader = _Reader(text)
    term = reader.term()
    reader.end()
    return term


def parse_number(text: str) -> float:
    """The number that `text` is, in seconds when it has a unit of time.

    Raises
    ------
    ConditionError
        When it is none.
    """
    reader = _Reader(text)
    number = reader.number()
    reader.end()
    return number


class _Reader:
    """Tokens of a text, one at a time."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens: list[tuple[str, str]] = []
        place = 0
        while text[place:].strip():
            match = _TOKEN.match(text, place)
            if match is None:
                raise ConditionError(f"{text!r}: {text[place:].strip()[:20]!r} is not understood")
            self._tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
            place = match.end()
        self._tokens.reverse()

    @property
    def kind(self) -> str:
        """What comes: ``number``, ``word``, ``sign``, or ``end``."""
        return self._tokens[-1][0] if self._tokens else "end"

    @property
    def next(self) -> str:
        """The token that comes; empty at the end."""
        return self._tokens[-1][1] if self._tokens else ""

    def take(self) -> str:
        return self._tokens.pop()[1]

    def expect(self, sign: str) -> None:
        if self.next != sign:
            self.wrong(repr(sign))
        self.take()

    def end(self) -> None:
        if self._tokens:
            self.wrong("the end")

    def wrong(self, expected: str) -> NoReturn:
        raise ConditionError(f"{self.text!r}: expected {expected}, got {self.next or 'the end'!r}")

    def number(self) -> float:
        if self.kind != "number":
            self.wrong("a number")
        number = float(self.take())
        if not math.isfinite(number):
            raise ConditionError(f"{self.text!r}: numbers must be finite")
        return number * _UNITS[self.take()] if self.next in _UNITS else number

    def value(self) -> Term | float | tuple[float, ...]:
        if self.next == "[":
            self.take()
            numbers = [self.number()]
            while self.next == ",":
                self.take()
                numbers.append(self.number())
            self.expect("]")
            return tuple(numbers)
        if self.kind == "number":
            number = self.number()
            if self.next != "*":
                return number
            self.take()
            term = self.term()
            return Term(term.metric, term.statistic, term.policy, number)
        return self.term()

    def term(self) -> Term:
        if self.kind != "word":
            self.wrong("a metric or a number")
        word, statistic = self.take(), "median"
        if self.next == "(":
            statistic = _known(word, STATISTICS, "statistic")
            self.take()
            word = self.take() if self.kind == "word" else ""
            self.expect(")")
        metric = _known(word, METRICS, "metric")
        if METRICS[metric].by_job and statistic != "median":
            raise ConditionError(f"{self.text!r}: {metric} is a list, of which there is no {statistic}")
        if statistic in _JUDGED and not METRICS[metric].better:
            raise ConditionError(f"{self.text!r}: of two values of {metric} neither is the better one")
        policy = None
        if self.next == "of":
            self.take()
            if self.kind != "word":
                self.wrong("the name of a policy")
            policy = self.take()
        return Term(metric, statistic, policy)


def _known(word: str, names: Collection[str], what: str) -> str:
    if word not in names:
        raise ConditionError(f"unknown {what} {word!r}; known: {', '.join(names)}{suggestion(word, names)}")
    return word
