"""The lines of an ssh_config(5), taken apart as OpenSSH does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from distconsole.errors import ConfigError

_LINE = re.compile(r"([A-Za-z][A-Za-z0-9]*)(?:\s*=\s*|\s+)(.*)")
_CHARACTER = re.compile(r"""\\(['"\\ ])|(.)""", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a line: for messages, and as the base of its includes."""

    file: Path
    base: Path
    line: int = 0


def split_line(line: str, here: Place) -> tuple[str, str] | None:
    """Return keyword (lower case) and the rest of a line; None for blanks and comments."""
    stripped = line.strip()
    if not stripped or stripped.startswith("#"):
        return None
    found = _LINE.fullmatch(stripped)
    if found is None or "\0" in stripped:
        raise ConfigError(f"{here.file}:{here.line}: not a line of an ssh_config: {stripped[:80]}")
    return found[1].lower(), found[2].strip()


def split_words(text: str, here: Place) -> list[str]:
    """Split by blanks that no quotes keep together; a backslash protects a blank, a quote and itself, ``#`` begins a comment."""
    words: list[str] = []
    word, quote = None, ""
    for found in _CHARACTER.finditer(text):
        escaped, plain = found.groups()
        if escaped:
            word = (word or "") + (found[0] if quote and escaped == " " else escaped)
        elif quote and plain == quote:
            quote = ""
        elif quote or not (plain.isspace() or plain in "#\"'"):
            word = (word or "") + plain
        elif plain.isspace():
            words += [] if word is None else [word]
            word = None
        elif plain != "#":
            word, quote = word or "", plain
        elif word is None:
            return words
        else:
            word += plain
    if quote:
        raise ConfigError(f"{here.file}:{here.line}: a quote is not closed")
    return words if word is None else [*words, word]


def split_criterion(word: str) -> list[str]:
    """``host=a,b`` is ``host a,b``."""
    name, equals, value = word.partition("=")
    known = name.lower().lstrip("!") in ("host", "originalhost", "user", "localuser", "exec")
    return [name, value] if equals and known else [word]
