"""Decides which files a ``.gitignore`` leaves out, by Git's own rules (gitignore(5)).

Unlike Git it does not know tracked files (the caller excepts them), nor rules from outside the
project (``core.excludesFile``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    """A line of an ignore file: a pattern of whole relative paths; ``negated`` brings them back."""

    pattern: re.Pattern[str]
    negated: bool = False
    folders_only: bool = False


class IgnoreRules:
    """Rules in the order of reading; the last that matches decides."""

    def __init__(self, rules: Iterable[IgnoreRule] = ()) -> None:
        self._rules = tuple(rules)
        # Most files match no rule: one joined expression decides that much faster.
        joined = "|".join(f"(?:{rule.pattern.pattern})" for rule in self._rules)
        self._any = re.compile(joined or r"(?!)", re.DOTALL)

    def __add__(self, other: IgnoreRules) -> IgnoreRules:
        if not other._rules:
            return self
        return IgnoreRules((*self._rules, *other._rules))

    def leave_out(self, path: str, *, folder: bool) -> bool:
        rule = self._last_match(path, folder)
        return rule is not None and not rule.negated

    def bring_back(self, path: str) -> bool:
        """True if a rule with ``!`` decides on this file and names it alone: its whole path, no wildcard."""
        rule = self._last_match(path, folder=False)
        whole = re.escape(_bytewise(path))
        return rule is not None and rule.negated and rule.pattern.pattern == whole

    def _last_match(self, path: str, folder: bool) -> IgnoreRule | None:
        path = _bytewise(path)
        if self._any.fullmatch(path) is None:
            return None
        for rule in reversed(self._rules):
            if (folder or not rule.folders_only) and rule.pattern.fullmatch(path):
                return rule
        return None


def read_rules(text: str, folder: str = "") -> IgnoreRules:
    """Return the rules of an ignore file in ``folder``, relative to the project's."""
    lines = _bytewise(text.removeprefix("\ufeff")).split("\n")
    folder = _bytewise(folder)
    return IgnoreRules(rule for line in lines if (rule := _rule(line.removesuffix("\r"), folder)))


def _bytewise(text: str) -> str:
    """Return ``text`` with one character a byte, as Git compares names."""
    return text if text.isascii() else os.fsencode(text).decode("latin-1")


def _rule(line: str, folder: str) -> IgnoreRule | None:
    kept = line.rstrip(" ")
    escaped = len(kept) - len(kept.rstrip("\\"))
    line = f"{kept} " if kept != line and escaped % 2 else kept
    if not line or line.startswith("#"):
        return None
    negated = line.startswith("!")
    line = line[1:] if negated else line
    folders_only = line.endswith("/")
    line = line.removesuffix("/")
    if not line:
        return None
    anchored = "/" in line
    base = re.escape(f"{folder}/") if folder else ""
    start = base if anchored else f"{base}(?:.*/)?"
    pattern, at, expression = line.removeprefix("/"), 0, start
    while at < len(pattern):
        piece, at = _piece(pattern, at)
        expression += piece
    return IgnoreRule(re.compile(expression, re.DOTALL), negated, folders_only)


def _piece(pattern: str, at: int) -> tuple[str, int]:
    """Translate the piece at ``at``; return it and the position of the next one."""
    character = pattern[at]
    if character == "*":
        return _stars(pattern, at)
    if character == "?":
        return "[^/]", at + 1
    if character == "[":
        return _bracket(pattern, at)
    if character == "\\":
        # A backslash at the end makes the pattern invalid: it matches nothing.
        return (re.escape(pattern[at + 1]), at + 2) if at + 1 < len(pattern) else ("(?!)", at + 1)
    return re.escape(character), at + 1


def _stars(pattern: str, at: int) -> tuple[str, int]:
    end = at
    while end < len(pattern) and pattern[end] == "*":
        end += 1
    whole_part = (at == 0 or pattern[at - 1] == "/") and (
        end == len(pattern) or pattern[end] == "/"
    )
    if end - at != 2 or not whole_part:
        return "[^/]*", end
    if end < len(pattern):
        return "(?:.*/)?", end + 1
    return ".+" if at else ".*", end


_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \\t",
    "digit": "0-9",
    "lower": "a-z",
    "space": "\\s",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
    "punct": re.escape("!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~"),
}


def _bracket(pattern: str, at: int) -> tuple[str, int]:
    """Translate ``[...]``; a bracket that is not closed matches nothing, as in Git."""
    inner, end = [], at + 1
    negated = pattern[end : end + 1] in ("!", "^")
    end += negated
    first = end
    while end < len(pattern) and (pattern[end] != "]" or end == first):
        member, end = _member(pattern, end)
        inner.append(member)
    if end >= len(pattern):
        return "(?!)", len(pattern)
    return f"(?!/)[{'^' if negated else ''}{''.join(inner)}]", end + 1


def _member(pattern: str, at: int) -> tuple[str, int]:
    """Translate one character, range or named class of a bracket."""
    named = re.match(r"\[:([a-z]+):\]", pattern[at:])
    if named and named[1] in _CLASSES:
        return _CLASSES[named[1]], at + named.end()
    low, at = _character(pattern, at)
    if pattern[at : at + 1] != "-" or pattern[at + 1 : at + 2] in ("", "]"):
        return re.escape(low), at
    high, at = _character(pattern, at + 1)
    # Git compares the first end before it sees that this is a range: [z-a] matches z.
    return (f"{re.escape(low)}-{re.escape(high)}" if low <= high else re.escape(low)), at


def _character(pattern: str, at: int) -> tuple[str, int]:
    at += pattern[at] == "\\" and at + 1 < len(pattern)
    return pattern[at], at + 1
