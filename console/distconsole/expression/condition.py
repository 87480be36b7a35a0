"""A condition made ready: names and units are judged once, then rows are only asked. Nothing is unknown twice.

What is not known is None: a comparison with it is neither true nor false, ``and``, ``or`` and ``not``
go by the three values of logic, and only what is true matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, assert_never

from distconsole.config.spelling import nearest
from distconsole.expression import judged, over
from distconsole.expression.fields import Field, Fields, Kind
from distconsole.expression.judged import Asks, Part, Rows
from distconsole.expression.mistakes import ExpressionError
from distconsole.expression.parse import parse
from distconsole.expression.tree import Infix, Name, Node, Number, Over, Prefix, Words
from distconsole.expression.units import UNITS, Measure

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Condition(Generic[Row]):
    """A condition on rows.

    Attributes:
        text: As it was written.
        names: The fields that it names, in the order in which they stand.
    """

    text: str
    names: tuple[str, ...]
    _asks: Asks

    def answers(self, rows: Sequence[Row]) -> list[bool | None]:
        """Return for each of ``rows``, all of which are looked at together, whether it matches; None is unknown."""
        together = Rows(rows)
        found = (self._asks(row, together) for row in rows)
        return [each if isinstance(each, bool) else None for each in found]

    def matching(self, rows: Sequence[Row]) -> list[Row]:
        """Return those of ``rows`` that match."""
        return [row for row, yes in zip(rows, self.answers(rows), strict=True) if yes]


def compiled(text: str, fields: Fields[Row]) -> Condition[Row]:
    """Make ``text`` ready for rows with ``fields``.

    Raises:
        ExpressionError: if it is no condition, or names a field that they do not have.
    """

    def takes_words(name: str) -> bool:
        found = fields.find(name)
        return found is not None and found.kind is Kind.TEXT

    tree = parse(text, takes_words)
    maker = _Maker(text, fields)
    part = maker.made(tree)
    if part.kind is not Kind.FLAG:
        raise ExpressionError(
            f"this is a {part.kind.value}, no condition", text, tree.at, "compare it: < = > ~"
        )
    return Condition(text, tuple(maker.names), part.asks)


NAN = "nan"
"""Behind = and != it stands for whatever is no finite number; no figure can be made of that."""


class _Maker(Generic[Row]):
    def __init__(self, text: str, fields: Fields[Row]) -> None:
        self._text = text
        self._fields = fields
        self.names: dict[str, None] = {}
        """Fields that were named so far; those that gave way to a twin left out."""

    def made(self, node: Node) -> Part:
        match node:
            case Number(value=value, unit=name):
                unit = UNITS[name]
                return judged.constant(value * unit.factor, unit.measure)
            case Words(value=value):
                return judged.words(value)
            case Name():
                self.names[node.name] = None
                return judged.of_field(self._found(node))
            case Prefix():
                return self._prefix(node)
            case Over():
                return self._over(node)
            case Infix(sign="and" | "or"):
                left, right = self._flag(node.left), self._flag(node.right)
                return judged.joined(node.sign, left, right)
            case Infix():
                return self._infix(node)
            case _:
                assert_never(node)

    def _found(self, node: Name) -> Field[Row]:
        found = self._fields.find(node.name)
        if found is None:
            names = self._fields.names
            like = nearest(node.name, names)
            advice = f"did you mean {like}?" if like else f"one of {', '.join(sorted(names))}"
            raise self._mistake(
                f"{self._fields.of} have no field '{node.name[:40]}'", node, advice
            )
        return found

    def _prefix(self, node: Prefix) -> Part:
        if node.sign == "not":
            return judged.negated(self._flag(node.operand))
        return judged.minus(self._number(node.operand))

    def _over(self, node: Over) -> Part:
        if node.inside is None:
            return over.counted_all()
        if node.function in ("any", "all", "count"):
            return over.of_flags(node.function, self._flag(node.inside))
        return over.of_numbers(node.function, self._number(node.inside))

    def _infix(self, node: Infix) -> Part:
        left = self.made(node.left)
        if left.kind is Kind.NUMBER and self._asks_for_nan(node):
            if not isinstance(node.left, Name):
                raise self._mistake("only a field is compared with nan", node.left)
            return judged.no_number(node.sign, self._found(node.left))
        if left.kind is Kind.TEXT:
            return self._texts(node, left)
        if node.sign in ("~", "!~"):
            raise self._mistake(f"'{node.sign}' compares texts", node)
        left, right = self._numbers(node)
        match node.sign:
            case "*" | "/":
                made = judged.scaled(node.sign, left, right)
            case "+" | "-":
                made = judged.summed(node.sign, left, right)
            case _:
                made = judged.compared(node.sign, left, right)
        if made is None:
            raise self._mistake(
                f"{left.measure.value} and {right.measure.value} cannot stand around '{node.sign}'",
                node,
            )
        return made

    def _asks_for_nan(self, node: Infix) -> bool:
        right = node.right
        named = isinstance(right, Name) and right.name.casefold() == NAN
        return named and node.sign in ("=", "!=") and self._fields.find(NAN) is None

    def _numbers(self, node: Infix) -> tuple[Part, Part]:
        """Return both sides; a field whose twin fits the other side better gives way to it."""
        left, right = self._number(node.left), self._number(node.right)
        if node.sign in ("*", "/"):
            return left, right
        return (
            self._twin(node.left, left, right.measure),
            self._twin(node.right, right, left.measure),
        )

    def _twin(self, node: Node, part: Part, other: Measure) -> Part:
        if not isinstance(node, Name) or part.measure is other:
            return part
        twin = self._found(node).twins.get(other)
        if twin is None:
            return part
        self.names.pop(node.name, None)
        return self.made(Name(twin, node.at))

    def _texts(self, node: Infix, left: Part) -> Part:
        if node.sign not in ("=", "!=", "~", "!~"):
            raise self._mistake("texts are compared by = != ~ !~", node)
        right = node.right
        if isinstance(right, Name) and self._fields.find(right.name) is None:
            right = Words(right.name, right.at)
        if node.sign in ("~", "!~"):
            if not isinstance(right, Words):
                raise self._mistake("what is looked for is a text", right)
            return judged.found_in(node.sign, left, right.value)
        part = self.made(right)
        if part.kind is not Kind.TEXT:
            raise self._mistake(f"a text is compared with a {part.kind.value}", right)
        return judged.same_text(node.sign, left, part)

    def _flag(self, node: Node) -> Part:
        part = self.made(node)
        if part.kind is not Kind.FLAG:
            raise self._mistake(
                f"this is a {part.kind.value}, no condition", node, "compare it: < = > ~"
            )
        return part

    def _number(self, node: Node) -> Part:
        part = self.made(node)
        if part.kind is not Kind.NUMBER:
            raise self._mistake(f"this is a {part.kind.value}, no number", node)
        return part

    def _mistake(self, message: str, node: Node, advice: str = "") -> ExpressionError:
        return ExpressionError(message, self._text, node.at, advice)
