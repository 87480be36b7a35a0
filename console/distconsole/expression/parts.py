"""Parts of a condition that can be asked of a row, made of smaller ones.

What is not known is None: a comparison with it is neither true nor false, and ``and``, ``or`` and
``not`` go by the three values of logic.
"""

from __future__ import annotations

import fnmatch
import math
import operator
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from distconsole.expression.fields import Field, Value, ValueKind
from distconsole.expression.units import UNITS, Measure

LOOKED_AT_CHARS = 512
"""Characters of a text that are compared."""


class Rows:
    """All rows that are judged together, and what has been found out over all of them."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows
        self.known: dict[int, Value] = {}


Asks: TypeAlias = Callable[[Any, Rows], Value]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a condition.

    Attributes:
        asks: Returns its value of a row.
        measure: Quantity of a number.
        bare: How much of the kept unit a plain number beside it stands for.
        literal: It is written as a number without a unit, and takes that of its neighbour.
        field: It is this field, and nothing else.
        text: It is this text, as written.
        at: Where it stands in the condition.
    """

    asks: Asks
    kind: ValueKind
    measure: Measure = Measure.PLAIN
    bare: float = 1.0
    literal: bool = False
    field: Field[Any] | None = None
    text: str | None = None
    at: int = 0


def constant(value: float, measure: Measure) -> Part:
    literal = measure is Measure.PLAIN
    return Part(lambda _row, _rows: value, ValueKind.NUMBER, measure, literal=literal)


def words(value: str) -> Part:
    return Part(lambda _row, _rows: value, ValueKind.TEXT, text=value)


def field_part(field: Field[Any]) -> Part:
    get, factor = field.get, UNITS[field.unit].factor
    if field.kind is not ValueKind.NUMBER:
        return Part(lambda row, _rows: get(row), field.kind, field=field)

    def number(row: Any, _rows: Rows) -> Value:
        value = get(row)
        return finite(value * factor) if isinstance(value, int | float) else None

    bare = UNITS[field.bare or field.unit].factor
    return Part(number, ValueKind.NUMBER, field.measure, bare, field=field)


def not_a_number(sign: str, field: Field[Any]) -> Part:
    get, wanted = field.get, sign == "="

    def odd(row: Any, _rows: Rows) -> Value:
        value = get(row)
        return (not math.isfinite(value)) is wanted if isinstance(value, int | float) else None

    return Part(odd, ValueKind.FLAG)


def negate(part: Part) -> Part:
    return Part(_ask_known(operator.not_, part), ValueKind.FLAG)


def join(sign: str, left: Part, right: Part) -> Part:
    """Return ``left and right`` or ``left or right``; one side that decides is enough."""
    first, second, deciding = left.asks, right.asks, sign == "or"

    def asks(row: Any, rows: Rows) -> Value:
        one = first(row, rows)
        if one is deciding:
            return deciding
        other = second(row, rows)
        if other is deciding:
            return deciding
        return None if one is None or other is None else not deciding

    return Part(asks, ValueKind.FLAG)


def minus(part: Part) -> Part:
    return Part(
        _ask_known(operator.neg, part), ValueKind.NUMBER, part.measure, part.bare, part.literal
    )


def add(sign: str, left: Part, right: Part) -> Part | None:
    """Return a sum or a difference; None if the two measure different things."""
    fitting = _fit(left, right)
    if fitting is None:
        return None
    left, right = fitting
    known = left if left.measure is not Measure.PLAIN else right
    work = operator.add if sign == "+" else operator.sub
    literal = left.literal and right.literal
    return Part(_figure(work, left, right), ValueKind.NUMBER, known.measure, known.bare, literal)


def multiply(sign: str, left: Part, right: Part) -> Part | None:
    """Return a product or a quotient; None if that would measure something that has no name."""
    literal = left.literal and right.literal
    if sign == "/":
        work = _figure(lambda one, other: one / other if other else None, left, right)
        if right.measure is Measure.PLAIN:
            return Part(work, ValueKind.NUMBER, left.measure, left.bare, literal)
        return Part(work, ValueKind.NUMBER) if left.measure is right.measure else None
    if Measure.SHARE in (left.measure, right.measure) and left.measure is not right.measure:
        share, other = (left, right) if left.measure is Measure.SHARE else (right, left)
        if other.measure is not Measure.PLAIN:
            work = _figure(lambda a, b: a / 100 * b, share, other)
            return Part(work, ValueKind.NUMBER, other.measure, other.bare)
    if Measure.PLAIN not in (left.measure, right.measure):
        return None
    known = left if left.measure is not Measure.PLAIN else right
    work = _figure(operator.mul, left, right)
    return Part(work, ValueKind.NUMBER, known.measure, known.bare, literal)


def compare(sign: str, left: Part, right: Part) -> Part | None:
    fitting = _fit(left, right)
    return None if fitting is None else Part(_ask_known(COMPARED[sign], *fitting), ValueKind.FLAG)


def same_text(sign: str, left: Part, right: Part) -> Part:
    """Whether a text of the left is, or is not, among those of the right; case is ignored."""
    wanted = sign == "="

    def same(one: Value, other: Value) -> Value:
        others = _texts(other)
        return any((each in others) is wanted for each in _texts(one))

    return Part(_ask_known(same, left, right), ValueKind.FLAG)


def find_text(sign: str, left: Part, pattern: str) -> Part:
    """Return whether ``pattern`` is found, or is not, in a text of the left: ``*``, ``?``, ``[0-3]`` as in shells."""
    wanted = sign == "~"
    folded = pattern.casefold()[:LOOKED_AT_CHARS]
    begin = "" if folded.startswith("^") else "*"
    end = "" if folded.endswith("$") else "*"
    shell = f"{begin}{folded.removeprefix('^').removesuffix('$')}{end}"
    # The standard library's translation does not backtrack over text that it has read.
    matches = re.compile(fnmatch.translate(re.sub(r"\*+", "*", shell))).match

    def find(value: Value) -> Value:
        return any((matches(each) is not None) is wanted for each in _texts(value))

    return Part(_ask_known(find, left), ValueKind.FLAG)


def over_flags(function: str, inside: Part) -> Part:
    """Return ``any``, ``all`` or ``count`` of the rows for which ``inside`` holds."""
    work = {"any": _any, "all": _all, "count": lambda values: sum(map(bool, values))}[function]
    return Part(_once(inside, work), ValueKind.NUMBER if function == "count" else ValueKind.FLAG)


def over_numbers(function: str, inside: Part) -> Part:
    """Return a figure of ``inside`` over all rows with a known value; unknown without any."""
    work = FIGURES[function]

    def figure(values: Sequence[Value]) -> Value:
        known = [value for value in values if isinstance(value, int | float)]
        return finite(work(known)) if known else None

    return Part(_once(inside, figure), ValueKind.NUMBER, inside.measure, inside.bare)


COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": lambda one, other: math.isclose(one, other, rel_tol=1e-9),
    "!=": lambda one, other: not math.isclose(one, other, rel_tol=1e-9),
}
FIGURES: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "median": statistics.median,
    "p95": lambda values: _percentile(values, 95),
    "p99": lambda values: _percentile(values, 99),
}


def _ask_known(work: Callable[..., Value], *parts: Part) -> Asks:
    asks = [part.asks for part in parts]

    def value(row: Any, rows: Rows) -> Value:
        values = [ask(row, rows) for ask in asks]
        return None if None in values else work(*values)

    return value


def _figure(work: Callable[[Any, Any], float | None], left: Part, right: Part) -> Asks:
    return _ask_known(lambda one, other: finite(work(one, other)), left, right)


def _once(inside: Part, work: Callable[[Sequence[Value]], Value]) -> Asks:
    """Return what asks all rows the first time, and then remembers it as long as the rows are judged."""
    asks = inside.asks
    key = id(asks)

    def value(_row: Any, rows: Rows) -> Value:
        if key not in rows.known:
            rows.known[key] = work([asks(each, rows) for each in rows.rows])
        return rows.known[key]

    return value


def _any(values: Sequence[Value]) -> Value:
    return True if True in values else None if None in values else False


def _all(values: Sequence[Value]) -> Value:
    """Unknown without rows: before a run has ranks it is not true that all of them ended."""
    return False if False in values else None if not values or None in values else True


def _fit(left: Part, right: Part) -> tuple[Part, Part] | None:
    """Return both in one unit: a literal number takes that of the other side; None if they do not fit."""
    if left.measure is right.measure:
        return left, right
    if right.literal:
        return left, _take_as(right, left)
    if left.literal:
        return _take_as(left, right), right
    return None


def _take_as(plain: Part, other: Part) -> Part:
    work = _figure(operator.mul, plain, constant(other.bare, other.measure))
    return Part(work, ValueKind.NUMBER, other.measure, other.bare)


def _percentile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def finite(value: float | None) -> float | None:
    """Return ``value``; None in place of what no figure can be made of."""
    return value if value is not None and math.isfinite(value) else None


def _texts(value: Value) -> list[str]:
    several = value if isinstance(value, tuple) else (str(value),)
    return [each[:LOOKED_AT_CHARS].casefold() for each in several]
