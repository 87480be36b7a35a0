"""A typed line with its secrets masked; other texts are masked by ``distconsole_agent.contract.masking``."""

from __future__ import annotations

from distconsole.grammar.words import open_line, quote_word
from distconsole_agent.contract.masking import (
    is_secret_name,
    mask_env,
    mask_text,
    mask_words,
    may_be_secret,
)

__all__ = ["MASK", "mask_env", "mask_secrets", "mask_text", "mask_words", "may_be_secret"]

MASK = "•••"
"""Replaces a secret; a line with it is not executed."""


def mask_secrets(line: str) -> str:
    found = open_line(line)
    last = line[found.start :] if found.comment else found.text
    words, spans = [*found.words, last], [*found.spans, (found.start, len(line))]
    masked = mask_words(words, MASK, is_secret_name)
    for at in reversed(range(len(words))):
        if masked[at] == words[at]:
            continue
        start, end = spans[at]
        quote = line[start] if line[start] in "'\"" else ""
        comment = found.comment and at == len(words) - 1
        shown = masked[at] if comment else quote_word(masked[at], quote)
        line = f"{line[:start]}{shown}{line[end:]}"
    return line
