"""A line as words, as a shell has them, also while the last one is unfinished."""

from __future__ import annotations

import re
from dataclasses import dataclass

from distconsole.errors import UsageError
from distconsole.grammar.asking import PROGRAM

BARE = re.compile(r"[^\s'\"\\#;&|<>()$`!*?{}]+")
"""What needs no quote; a word that begins with # is a comment."""

PIECE = re.compile(
    r"""(?P<blank>\s+)|(?P<plain>[^\s'"\\]+)|\\(?P<escaped>.?)"""
    r"""|(?:'(?P<single>[^']*)|"(?P<double>(?:\\.|[^"\\])*\\?))(?P<end>'|"|$)""",
    re.DOTALL,
)
"""Blanks, or a piece of a word: what needs no quote, an escaped character, what stands in quotes and the end of that."""


@dataclass(frozen=True, slots=True)
class OpenLine:
    """A line that is being typed; it may end in a ``comment``, or with a backslash (``escaping``)."""

    words: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    start: int
    text: str = ""
    quote: str = ""
    comment: bool = False
    escaping: bool = False


def open_line(line: str) -> OpenLine:
    """Return ``line`` as words, of which the last (empty behind a blank) is unfinished."""
    words: list[str] = []
    spans: list[tuple[int, int]] = []
    text, quote, start, inside, escaping = "", "", 0, False, False
    for piece in PIECE.finditer(line):
        if piece["blank"]:
            if inside:
                words.append(text)
                spans.append((start, piece.start()))
            text, inside, start = "", False, piece.end()
            continue
        if piece[0].startswith("#") and not inside:
            return OpenLine(tuple(words), tuple(spans), start, comment=True)
        inside = True
        text += piece["plain"] or piece["single"] or piece["escaped"] or ""
        text += re.sub(r'\\(["\\$`])', r"\1", piece["double"] or "")
        quote = "" if piece["end"] is None or piece["end"] else piece[0][0]
        escaping = piece[0] == "\\"
    return OpenLine(tuple(words), tuple(spans), start, text, quote, escaping=escaping)


def words_of(line: str) -> list[str]:
    """Return a finished line's words without a # comment; raises ValueError for an open quote."""
    found = open_line(line)
    if found.quote:
        raise ValueError(f"the quote {found.quote} is not closed")
    if found.escaping:
        raise ValueError("nothing follows the backslash")
    if found.comment or found.start == len(line):
        return list(found.words)
    return [*found.words, found.text]


def line_words(line: str) -> list[str]:
    """Return a prompt line's words without the program's name; raises UsageError for an open quote."""
    try:
        words = words_of(line)
    except ValueError as error:
        raise UsageError(
            f"cannot split the line: {error}", "close the quote, or escape it"
        ) from None
    return words[1:] if words[:1] == [PROGRAM] else words


def escape_in_quotes(text: str, *, expands: bool = False) -> str:
    """Return ``text`` as it stands between double quotes of a shell; with ``expands`` its variables are replaced."""
    return re.sub(r'(["\\`])' if expands else r'(["\\`$])', r"\\\1", text)


def quote_word(text: str, quote: str = "") -> str:
    """Return ``text`` as it is typed: inside ``quote`` (closed), else with backslashes where needed."""
    if quote == "'":
        return "'" + text.replace("'", "'\"'\"'") + "'"
    if quote == '"':
        return f'"{escape_in_quotes(text)}"'
    if not text:
        return "''"
    return "".join(
        each if BARE.fullmatch(each) or (each == "#" and at) else f"\\{each}"
        for at, each in enumerate(text)
    )


def quote_unfinished(text: str, quote: str) -> str:
    """As ``quote_word``, but the word goes on: an open quote stays open."""
    whole = quote_word(text, quote)
    return whole[: -len(quote)] if quote else whole if text else ""
