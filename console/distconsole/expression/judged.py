"""Parts of a condition that can be asked of a row, made of smaller ones; units fit by then."""

from __future__ import annotations

import fnmatch
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from distconsole.expression.fields import Field, Kind, Value
from distconsole.expression.units import UNITS, Measure

LOOKED_AT_CHARS = 512
"""Of a text only so much is looked at."""


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
        kind: What that is.
        measure: What a number is of.
        bare: How much of the kept unit a plain number beside it stands for.
        literal: It is written as a number without a unit, and takes that of what it stands beside.
    """

    asks: Asks
    kind: Kind
    measure: Measure = Measure.PLAIN
    bare: float = 1.0
    literal: bool = False


def constant(value: float, measure: Measure) -> Part:
    """Return a number."""
    literal = measure is Measure.PLAIN
    return Part(lambda _row, _rows: value, Kind.NUMBER, measure, literal=literal)


def words(value: str) -> Part:
    """Return a text."""
    return Part(lambda _row, _rows: value, Kind.TEXT)


def of_field(field: Field[Any]) -> Part:
    """Return what ``field`` is, in the kept unit."""
    get, factor = field.get, UNITS[field.unit].factor
    if field.kind is not Kind.NUMBER:
        return Part(lambda row, _rows: get(row), field.kind)

    def number(row: Any, _rows: Rows) -> Value:
        value = get(row)
        known = isinstance(value, int | float)
        return finite(value * factor) if known else None  # type: ignore[operator]

    return Part(number, Kind.NUMBER, field.measure, UNITS[field.bare_unit].factor)


def no_number(sign: str, field: Field[Any]) -> Part:
    """Return whether ``field`` is NaN or infinite, or is not; not known where it is not known."""
    get, wanted = field.get, sign == "="

    def odd(row: Any, _rows: Rows) -> Value:
        value = get(row)
        return (not math.isfinite(value)) is wanted if isinstance(value, int | float) else None

    return Part(odd, Kind.FLAG)


def negated(part: Part) -> Part:
    """Return ``not part``."""
    asks = part.asks

    def negate(row: Any, rows: Rows) -> Value:
        value = asks(row, rows)
        return None if value is None else not value

    return Part(negate, Kind.FLAG)


def joined(sign: str, left: Part, right: Part) -> Part:
    """Return ``left and right`` or ``left or right``; one side that decides is enough."""
    first, second, deciding = left.asks, right.asks, sign == "or"

    def join(row: Any, rows: Rows) -> Value:
        one = first(row, rows)
        if one is deciding:
            return deciding
        other = second(row, rows)
        if other is deciding:
            return deciding
        return None if one is None or other is None else not deciding

    return Part(join, Kind.FLAG)


def minus(part: Part) -> Part:
    """Return ``-part``."""
    asks = part.asks

    def negative(row: Any, rows: Rows) -> Value:
        value = asks(row, rows)
        return -value if isinstance(value, float | int) else None

    return Part(negative, Kind.NUMBER, part.measure, part.bare, part.literal)


def summed(sign: str, left: Part, right: Part) -> Part | None:
    """Return a sum or a difference; None if the two measure different things."""
    fitted = _fitted(left, right)
    if fitted is None:
        return None
    left, right = fitted
    known = left if left.measure is not Measure.PLAIN else right
    work = operator.add if sign == "+" else operator.sub
    literal = left.literal and right.literal
    return Part(_worked(work, left, right), Kind.NUMBER, known.measure, known.bare, literal)


def scaled(sign: str, left: Part, right: Part) -> Part | None:
    """Return a product or a quotient; None if that would measure something that has no name."""
    if sign == "/":
        if right.measure is Measure.PLAIN:
            literal = left.literal and right.literal
            work = _worked(_divide, left, right)
            return Part(work, Kind.NUMBER, left.measure, left.bare, literal)
        same = left.measure is right.measure
        return Part(_worked(_divide, left, right), Kind.NUMBER) if same else None
    if Measure.SHARE in (left.measure, right.measure) and left.measure is not right.measure:
        share, other = (left, right) if left.measure is Measure.SHARE else (right, left)
        if other.measure is not Measure.PLAIN:
            work = _worked(lambda a, b: a / 100 * b, share, other)
            return Part(work, Kind.NUMBER, other.measure, other.bare)
    if Measure.PLAIN not in (left.measure, right.measure):
        return None
    known = left if left.measure is not Measure.PLAIN else right
    literal = left.literal and right.literal
    product = _worked(operator.mul, left, right)
    return Part(product, Kind.NUMBER, known.measure, known.bare, literal)


def compared(sign: str, left: Part, right: Part) -> Part | None:
    """Return a comparison of numbers; None if the two measure different things."""
    fitted = _fitted(left, right)
    if fitted is None:
        return None
    first, second = fitted[0].asks, fitted[1].asks
    work = COMPARED[sign]

    def compare(row: Any, rows: Rows) -> Value:
        one, other = first(row, rows), second(row, rows)
        return None if one is None or other is None else work(one, other)

    return Part(compare, Kind.FLAG)


def same_text(sign: str, left: Part, right: Part) -> Part:
    """Return whether a text of the left is, or is not, among those of the right; letters' case is nothing."""
    first, second, wanted = left.asks, right.asks, sign == "="

    def same(row: Any, rows: Rows) -> Value:
        one, other = _texts(first(row, rows)), _texts(second(row, rows))
        if one is None or other is None:
            return None
        return any((each in other) is wanted for each in one)

    return Part(same, Kind.FLAG)


def found_in(sign: str, left: Part, pattern: str) -> Part:
    """Return whether ``pattern`` is found, or is not, in a text of the left: ``*``, ``?``, ``[0-3]`` as in shells."""
    asks, wanted = left.asks, sign == "~"
    folded = pattern.casefold()[:LOOKED_AT_CHARS]
    begin = "" if folded.startswith("^") else "*"
    end = "" if folded.endswith("$") else "*"
    shell = f"{begin}{folded.removeprefix('^').removesuffix('$')}{end}"
    # What the standard library makes of it never goes back over what it has read.
    matches = re.compile(fnmatch.translate(re.sub(r"\*+", "*", shell))).match

    def find(row: Any, rows: Rows) -> Value:
        texts = _texts(asks(row, rows))
        return (
            None if texts is None else any((matches(each) is not None) is wanted for each in texts)
        )

    return Part(find, Kind.FLAG)


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9)


COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": _same,
    "!=": lambda one, other: not _same(one, other),
}


def _fitted(left: Part, right: Part) -> tuple[Part, Part] | None:
    """Return both in one unit: a literal number takes that of the other side; None if they do not fit."""
    if left.measure is right.measure:
        return left, right
    if right.literal:
        return left, _taken_as(right, left)
    if left.literal:
        return _taken_as(left, right), right
    return None


def _taken_as(plain: Part, other: Part) -> Part:
    work = _worked(operator.mul, plain, constant(other.bare, other.measure))
    return Part(work, Kind.NUMBER, other.measure, other.bare)


def _worked(work: Callable[[Any, Any], float | None], left: Part, right: Part) -> Asks:
    first, second = left.asks, right.asks

    def value(row: Any, rows: Rows) -> Value:
        one, other = first(row, rows), second(row, rows)
        return None if one is None or other is None else finite(work(one, other))

    return value


def _divide(one: float, other: float) -> float | None:
    return one / other if other else None


def finite(value: float | None) -> float | None:
    """Return ``value``; None in place of what no figure can be made of."""
    return value if value is not None and math.isfinite(value) else None


def _texts(value: Value) -> tuple[str, ...] | None:
    if value is None:
        return None
    several = value if isinstance(value, tuple) else (str(value),)
    return tuple(each[:LOOKED_AT_CHARS].casefold() for each in several)
