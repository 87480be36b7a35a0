"""The lines of an ssh_config(5), taken apart as OpenSSH does."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from distconsole.errors import ConfigError

_LINE = re.compile(r"([A-Za-z][A-Za-z0-9]*)(?:\s*=\s*|\s+)(.*)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a line stands: for messages, and for what its includes are relative to."""

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
    """Split by blanks; double quotes keep words together, a word that begins with # ends the line."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters, lexer.quotes, lexer.escape = True, "", "\"'", ""
    try:
        words = list(lexer)
    except ValueError:
        raise ConfigError(f"{here.file}:{here.line}: a quote is not closed") from None
    comment = next((index for index, word in enumerate(words) if word.startswith("#")), len(words))
    return words[:comment]


def split_criterion(word: str) -> list[str]:
    """``host=a,b`` is ``host a,b``."""
    name, equals, value = word.partition("=")
    known = name.lower().lstrip("!") in ("host", "originalhost", "user", "localuser", "exec")
    return [name, value] if equals and known else [word]
