"""One small language of conditions on ranks, runs and hosts.

Tables of fields (``fields``) say what may be asked; ``parse_condition`` makes a text into a ``Condition``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from distconsole.config.spelling import suggest
from distconsole.errors import UsageError
from distconsole.expression import parts
from distconsole.expression.fields import Field, Fields, Value, ValueKind
from distconsole.expression.parts import Asks, Part, Rows
from distconsole.expression.units import UNITS, Measure

__all__ = [
    "Condition",
    "ExpressionError",
    "Field",
    "Fields",
    "Value",
    "ValueKind",
    "parse_condition",
]


MAX_CHARS = 1000
MAX_DEPTH = 40
MAX_NODES = 300

FUNCTIONS = ("any", "all", "count", *parts.FIGURES)
"""What may stand before a bracket; all are over the rows."""

COMPARISONS = ("<", "<=", ">", ">=", "=", "!=", "~", "!~")
STRENGTH = {"or": 1, "and": 2} | dict.fromkeys(COMPARISONS, 4) | {"+": 5, "-": 5, "*": 6, "/": 6}
NOT_STRENGTH = 3
MINUS_STRENGTH = 7
SAME = {"==": "=", "<>": "!=", "=~": "~", "&&": "and", "||": "or", "!": "not"}
NAN = "nan"
"""Behind = and != it stands for whatever is no finite number; no figure can be made of that."""

TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(?P<unit>%|°?[A-Za-zµ]+(?:/s(?![\w.]))?)?
    | (?P<text>"[^"]*"|'[^']*')
    | (?P<name>[A-Za-z_][A-Za-z0-9_.]*)
    | (?P<sign>==|<>|=~|<=|>=|!=|!~|&&|\|\||[-<>=~+*/()!,])
    )""",
    re.VERBOSE,
)
WORD = re.compile(r"\s*(?P<word>[^\s()'\"<>=~]+)")

SHOWN_CHARS = 60
"""Characters of a long text that are shown around a mistake."""

Row = TypeVar("Row")


class ExpressionError(UsageError):
    """A malformed condition: the error, its place ``at`` in ``text``, a suggestion."""

    def __init__(self, message: str, text: str, at: int, advice: str = "") -> None:
        begin = max(0, min(at - SHOWN_CHARS // 2, len(text) - SHOWN_CHARS))
        shown = "".join(each if each.isprintable() else " " for each in text)
        excerpt = shown[begin : begin + SHOWN_CHARS]
        words = advice or "here:"
        super().__init__(
            f"{message}, at character {at + 1}", f"{words}\n  {excerpt}\n  {' ' * (at - begin)}^"
        )
        self.at = at
        self.short = f"{advice}  in: {excerpt[: at - begin]}▸{excerpt[at - begin :]}".strip()
        """The advice and the place in one line, for where lines are few."""


@dataclass(frozen=True, slots=True)
class Condition(Generic[Row]):
    """A condition on rows, of which only a true one matches: its text, and the fields that it names in order."""

    text: str
    names: tuple[str, ...]
    _asks: Asks

    def answers(self, rows: Sequence[Row]) -> list[bool | None]:
        """Return for each of ``rows``, which are evaluated together, whether it matches; None is unknown."""
        together = Rows(rows)
        found = (self._asks(row, together) for row in rows)
        return [each if isinstance(each, bool) else None for each in found]

    def matching(self, rows: Sequence[Row]) -> list[Row]:
        return [row for row, yes in zip(rows, self.answers(rows), strict=True) if yes]


def parse_condition(text: str, fields: Fields[Row]) -> Condition[Row]:
    """Return ``text`` as a condition on rows with ``fields``; raises ExpressionError if it is none."""
    if len(text) > MAX_CHARS:
        raise ExpressionError(f"a condition has at most {MAX_CHARS} characters", text, MAX_CHARS)
    return _Parser(text, fields).condition()


class _Parser(Generic[Row]):
    def __init__(self, text: str, fields: Fields[Row]) -> None:
        self._text = text
        self._fields = fields
        self._place = 0
        self._depth = 0
        self._nodes = 0
        self._names: dict[str, None] = {}
        """Fields that were named so far; those that gave way to a twin left out."""

    def condition(self) -> Condition[Row]:
        part = self._expression(0)
        kind, word, at = self._peek()
        if kind != "end":
            raise self._mistake(f"'{word}' cannot stand here", at)
        asks = self._flag(part).asks
        return Condition(self._text, tuple(self._names), asks)

    def _expression(self, strength: int) -> Part:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._mistake(f"more than {MAX_DEPTH} levels deep", self._place)
        left = self._operand()
        while True:
            kind, sign, at = self._peek()
            mine = STRENGTH.get(sign, 0) if kind == "sign" else 0
            if mine <= strength:
                break
            self._next()
            left = self._place_at(self._infix(sign, left, at), at)
            following = self._peek()
            if sign in COMPARISONS and following[0] == "sign" and following[1] in COMPARISONS:
                raise self._mistake("two comparisons in a row", following[2], "join them by 'and'")
        self._depth -= 1
        return left

    def _infix(self, sign: str, left: Part, at: int) -> Part:
        if sign in ("and", "or"):
            return parts.join(sign, self._flag(left), self._flag(self._expression(STRENGTH[sign])))
        if left.kind is ValueKind.TEXT:
            return self._compare_texts(sign, left, at)
        if sign in ("~", "!~"):
            raise self._mistake(f"'{sign}' compares texts", at)
        if sign in ("=", "!=") and left.kind is ValueKind.NUMBER and self._takes_nan():
            if left.field is None:
                raise self._mistake("only a field is compared with nan", left.at)
            return parts.not_a_number(sign, left.field)
        left, right = self._number(left), self._number(self._expression(STRENGTH[sign]))
        if sign in ("*", "/"):
            made = parts.multiply(sign, left, right)
        else:  # a field whose twin fits the other side better gives way to it
            left, right = self._twin(left, right.measure), self._twin(right, left.measure)
            made = (parts.add if sign in ("+", "-") else parts.compare)(sign, left, right)
        if made is None:
            raise self._mistake(
                f"{left.measure.value} and {right.measure.value} cannot stand around '{sign}'", at
            )
        return made

    def _compare_texts(self, sign: str, left: Part, at: int) -> Part:
        if sign not in ("=", "!=", "~", "!~"):
            raise self._mistake("texts are compared by = != ~ !~", at)
        word = WORD.match(self._text, self._place)
        if word is None:
            right = self._expression(STRENGTH[sign])
        else:
            self._place = word.end()
            is_field = sign in ("=", "!=") and self._fields.find(word["word"]) is not None
            begin = word.start("word")
            right = (
                self._field(word["word"], begin) if is_field
                else self._place_at(parts.words(word["word"]), begin)
            )  # fmt: skip
        if sign in ("~", "!~"):
            if right.text is None:
                raise self._mistake("what is looked for is a text", right.at)
            return parts.find_text(sign, left, right.text)
        if right.kind is not ValueKind.TEXT:
            raise self._mistake(f"a text is compared with a {right.kind.value}", right.at)
        return parts.same_text(sign, left, right)

    def _takes_nan(self) -> bool:
        kind, word, _ = self._peek()
        found = kind == "name" and word.casefold() == NAN and self._fields.find(NAN) is None
        if found:
            self._next()
        return found

    def _twin(self, part: Part, other: Measure) -> Part:
        if part.field is None or part.measure is other or other not in part.field.twins:
            return part
        self._names.pop(part.field.name, None)
        return self._field(part.field.twins[other], part.at)

    def _operand(self) -> Part:
        kind, word, at = self._next()
        if kind == "number":
            return self._place_at(self._constant(word, at), at)
        if kind == "text":
            return self._place_at(parts.words(word[1:-1]), at)
        if kind == "name":
            return self._name(word, at)
        if word == "(":
            inside = self._expression(0)
            self._close(at)
            return inside
        if word == "not":
            operand = self._flag(self._expression(NOT_STRENGTH))
            return self._place_at(parts.negate(operand), at)
        if word == "-":
            number = self._number(self._expression(MINUS_STRENGTH))
            return self._place_at(parts.minus(number), at)
        raise self._mistake(f"'{word}' cannot stand here" if word else "something is missing", at)

    def _constant(self, word: str, at: int) -> Part:
        figures, _, unit = word.partition(" ")
        if unit not in UNITS:
            known = ", ".join(name for name in UNITS if name and "/" not in name)
            raise self._mistake(f"'{unit}' is no unit", at + len(figures), f"one of {known}")
        return parts.constant(float(figures) * UNITS[unit].factor, UNITS[unit].measure)

    def _name(self, word: str, at: int) -> Part:
        if word.endswith("."):
            kind, text, text_at = self._next()
            if kind != "text" or text_at != at + len(word):
                raise self._mistake("a name is missing", text_at)
            return self._field(word + text[1:-1], at)
        if self._peek()[1] == "(":
            return self._place_at(self._over_rows(word, at), at)
        return self._field(word, at)

    def _over_rows(self, function: str, at: int) -> Part:
        if function not in FUNCTIONS:
            raise self._mistake(f"no function '{function}'", at, f"one of {', '.join(FUNCTIONS)}")
        _, _, opened = self._next()
        if function == "count" and self._peek()[1] == ")":
            self._close(opened)
            return Part(lambda _row, rows: len(rows.rows), ValueKind.NUMBER)
        inside = self._expression(0)
        self._close(opened)
        if function in parts.FIGURES:
            return parts.over_numbers(function, self._number(inside))
        return parts.over_flags(function, self._flag(inside))

    def _field(self, name: str, at: int) -> Part:
        self._names[name] = None
        return self._place_at(parts.field_part(self._find(name, at)), at)

    def _find(self, name: str, at: int) -> Field[Row]:
        found = self._fields.find(name)
        if found is None:
            names = self._fields.names
            advice = suggest(name, names, f"one of {', '.join(sorted(names))}")
            raise self._mistake(f"{self._fields.of} have no field '{name[:40]}'", at, advice)
        return found

    def _flag(self, part: Part) -> Part:
        if part.kind is not ValueKind.FLAG:
            words = f"this is a {part.kind.value}, no condition"
            raise self._mistake(words, part.at, "compare it: < = > ~")
        return part

    def _number(self, part: Part) -> Part:
        if part.kind is not ValueKind.NUMBER:
            raise self._mistake(f"this is a {part.kind.value}, no number", part.at)
        return part

    def _close(self, opened: int) -> None:
        kind, word, _ = self._next()
        if word != ")" or kind != "sign":
            raise self._mistake("this bracket is not closed", opened)

    def _peek(self) -> tuple[str, str, int]:
        place = self._place
        token = self._next()
        self._place = place
        return token

    def _next(self) -> tuple[str, str, int]:
        """Return the next token as its kind, its text and its place; signs are all one kind."""
        found = TOKEN.match(self._text, self._place)
        if found is None:
            rest = self._text[self._place :]
            at = self._place + len(rest) - len(rest.lstrip())
            if not rest.strip():
                return "end", "", len(self._text)
            quote = rest.lstrip()[0] in "\"'"
            what = (
                "this quote is not closed" if quote else f"'{rest.lstrip()[0]}' is not understood"
            )
            raise self._mistake(what, at)
        self._place = found.end()
        kind = str(found.lastgroup if found["unit"] is None else "number")
        at, word = found.start(kind), found[kind]
        if kind == "number" and found["unit"]:
            word = f"{word} {found['unit']}"
        word = SAME.get(word, word)
        return "sign" if kind == "name" and word in ("and", "or", "not") else kind, word, at

    def _place_at(self, part: Part, at: int) -> Part:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise self._mistake(f"more than {MAX_NODES} parts", self._place)
        return replace(part, at=at)

    def _mistake(self, message: str, at: int, advice: str = "") -> ExpressionError:
        return ExpressionError(message, self._text, at, advice)
