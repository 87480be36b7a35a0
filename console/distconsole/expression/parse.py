"""From a text to a tree, by the strength of each sign (a Pratt parser); it evaluates nothing.

The text is read as it goes: what stands to the right of ``host =`` is a word that needs no quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from distconsole.expression.mistakes import ExpressionError
from distconsole.expression.tree import Infix, Name, Node, Number, Over, Prefix, Words
from distconsole.expression.units import UNITS

MAX_CHARS = 1000
MAX_DEPTH = 40
MAX_NODES = 300

FUNCTIONS = ("any", "all", "count", "sum", "min", "max", "mean", "median", "p95", "p99")
"""What may stand before a bracket; all are over the rows."""

COMPARISONS = ("<", "<=", ">", ">=", "=", "!=", "~", "!~")
STRENGTH = {"or": 1, "and": 2} | dict.fromkeys(COMPARISONS, 4) | {"+": 5, "-": 5, "*": 6, "/": 6}
NOT_STRENGTH = 3
MINUS_STRENGTH = 7
SAME = {"==": "=", "<>": "!=", "=~": "~", "&&": "and", "||": "or", "!": "not"}

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


def parse(text: str, takes_words: Callable[[str], bool]) -> Node:
    """Return the tree of ``text``.

    Args:
        text: A condition.
        takes_words: Whether a field with this name is a text, so that what it is compared with may be
            a bare word.

    Raises:
        ExpressionError: if it is none, or too long or too deep.
    """
    if len(text) > MAX_CHARS:
        raise ExpressionError(f"a condition has at most {MAX_CHARS} characters", text, MAX_CHARS)
    return _Parser(text, takes_words).whole()


class _Parser:
    def __init__(self, text: str, takes_words: Callable[[str], bool]) -> None:
        self._text = text
        self._takes_words = takes_words
        self._place = 0
        self._depth = 0
        self._nodes = 0

    def whole(self) -> Node:
        tree = self._expression(0)
        kind, word, at = self._peek()
        if kind != "end":
            raise self._mistake(f"'{word}' cannot stand here", at)
        return tree

    def _expression(self, strength: int) -> Node:
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
            left = self._counted(Infix(sign, left, self._right(sign, left, mine), at))
            following = self._peek()
            if sign in COMPARISONS and following[0] == "sign" and following[1] in COMPARISONS:
                raise self._mistake("two comparisons in a row", following[2], "join them by 'and'")
        self._depth -= 1
        return left

    def _right(self, sign: str, left: Node, strength: int) -> Node:
        """Read what stands behind ``sign``: behind a text and a comparison it is a word."""
        text = sign in ("~", "!~") or (
            sign in ("=", "!=") and isinstance(left, Name) and self._takes_words(left.name)
        )
        found = WORD.match(self._text, self._place) if text else None
        if found is None:
            return self._expression(strength)
        at, word = found.start("word"), found["word"]
        self._place = found.end()
        return self._counted(Words(word, at) if sign in ("~", "!~") else Name(word, at))

    def _operand(self) -> Node:
        kind, word, at = self._next()
        if kind == "number":
            return self._number(word, at)
        if kind == "text":
            return self._counted(Words(word[1:-1], at))
        if kind == "name":
            return self._name(word, at)
        if word == "(":
            inside = self._expression(0)
            self._close(at)
            return inside
        if word == "not":
            return self._counted(Prefix("not", self._expression(NOT_STRENGTH), at))
        if word == "-":
            return self._counted(Prefix("-", self._expression(MINUS_STRENGTH), at))
        raise self._mistake(f"'{word}' cannot stand here" if word else "something is missing", at)

    def _number(self, word: str, at: int) -> Node:
        figures, _, unit = word.partition(" ")
        if unit not in UNITS:
            known = ", ".join(name for name in UNITS if name and "/" not in name)
            raise self._mistake(f"'{unit}' is no unit", at + len(figures), f"one of {known}")
        return self._counted(Number(float(figures), unit, at))

    def _name(self, word: str, at: int) -> Node:
        if word.endswith("."):
            kind, text, text_at = self._next()
            if kind != "text" or text_at != at + len(word):
                raise self._mistake("a name is missing", text_at)
            return self._counted(Name(word + text[1:-1], at))
        if self._peek()[1] != "(":
            return self._counted(Name(word, at))
        if word not in FUNCTIONS:
            raise self._mistake(f"no function '{word}'", at, f"one of {', '.join(FUNCTIONS)}")
        _, _, opened = self._next()
        inside: Node | None = None
        if word != "count" or self._peek()[1] != ")":
            inside = self._expression(0)
        self._close(opened)
        return self._counted(Over(word, inside, at))

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
        """Return the next token as its kind, itself and where it is; signs are all one kind."""
        found = TOKEN.match(self._text, self._place)
        if found is None:
            rest = self._text[self._place :]
            at = self._place + len(rest) - len(rest.lstrip())
            if not rest.strip():
                return "end", "", len(self._text)
            quote = rest.lstrip()[0] in "\"'"
            what = "this quote is not closed" if quote else f"'{rest.lstrip()[0]}' means nothing"
            raise self._mistake(what, at)
        self._place = found.end()
        if found["number"] is not None:
            unit = found["unit"] or ""
            word = f"{found['number']} {unit}" if unit else found["number"]
            return "number", word, found.start("number")
        if found["text"] is not None:
            return "text", found["text"], found.start("text")
        word = found["name"] if found["name"] is not None else found["sign"]
        at = found.start("name" if found["name"] is not None else "sign")
        word = SAME.get(word, word)
        named = found["name"] is not None and word not in ("and", "or", "not")
        return "name" if named else "sign", word, at

    def _counted(self, node: Node) -> Node:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise self._mistake(f"more than {MAX_NODES} parts", self._place)
        return node

    def _mistake(self, message: str, at: int, advice: str = "") -> ExpressionError:
        return ExpressionError(message, self._text, at, advice)
