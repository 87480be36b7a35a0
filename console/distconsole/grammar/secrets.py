"""Which names and words look like secrets, and lines and variables with them masked."""

from __future__ import annotations

import re
from collections.abc import Mapping

from distconsole.grammar.words import open_line, quote_word

MASK = "•••"
"""Stands where a secret stood; a line with it is not done."""

HIDDEN = "***"
"""Stands for a value in what others may read: plans, pages, files."""

_PERHAPS = re.compile(
    r"(?i)token(?!s|i[sz])|secret|passw|passphrase|credential|private|api_?key|access_?key|auth(?!or(?!i))|_key$|_pat$"
)

_ALWAYS = {
    *("secret", "secrets", "password", "passwd", "passphrase", "pwd", "credential", "credentials"),
    *("apikey", "authorization", "pat", "bearer"),
}
_OF_TEXT = {
    *("pad", "eos", "bos", "unk", "mask", "sep", "cls", "start", "end", "stop", "special"),
    *("image", "per", "max", "num", "first", "last", "next"),
}
"""Before ``token`` these make it a piece of text, as language models have it."""
_OF_KEY = {"api", "access", "private", "secret", "auth", "account", "license", "encryption", "ssh"}

_ASSIGNED = re.compile(r"\b([A-Za-z_][A-Za-z0-9_]*)=(\S+)")
_NAMED = re.compile(r"(?:^|(?<=[\s;=&|\"'])|(?<=^\+))-{0,2}([A-Za-z_][\w.-]*)=")
_VALUE = re.compile(r"""'[^']*'?|"[^"]*"?|[^\s;&|]*""")
IN_URL = re.compile(r"(?<=://)([^/\s:@]*):[^/\s@]+@")
TOKEN = re.compile(
    r"\b(?:(?:sk|pk|rk)[-_](?:live[-_]|proj[-_]|ant[-_])?[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|hf_[A-Za-z0-9]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[A-Z0-9]{16}|glpat-[A-Za-z0-9_-]{16,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*)"
)
"""Well-known shapes of tokens."""


def is_secret_name(name: str) -> bool:
    """Whether a name is most likely a secret's: ``HF_TOKEN``, ``db-password``; not ``max_tokens``, ``key``."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)
    low = [part.lower() for part in parts]
    before = low[-2] if len(low) > 1 else ""
    if any(part in _ALWAYS for part in low):
        return True
    if low[-1:] == ["token"]:
        return before not in _OF_TEXT
    if low[-1:] == ["key"]:
        return before in _OF_KEY or (bool(before) and name.isupper())
    return False


def may_be_secret(name: str) -> bool:
    """Whether a variable or an option of this name may hold a secret: what others read hides more than a typed line."""
    return bool(_PERHAPS.search(name.lstrip("-").replace("-", "_"))) or is_secret_name(name)


def mask_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` with the values hidden whose names say that they may be secret."""
    return {
        name: HIDDEN if value and may_be_secret(name) else value for name, value in env.items()
    }


def hide_assigned(text: str) -> str:
    """Return ``text`` with the values hidden of variables in it that may be secret."""

    def shown(found: re.Match[str]) -> str:
        return f"{found[1]}={HIDDEN}" if may_be_secret(found[1]) else found[0]

    return _ASSIGNED.sub(shown, text)


def mask_secrets(line: str) -> str:
    """Return ``line`` with what looks like a secret as ``MASK``."""
    found = open_line(line)
    last = line[found.start :] if found.comment else found.text
    words, spans = [*found.words, last], [*found.spans, (found.start, len(line))]
    hidden = {at: shown for at, word in enumerate(words) if (shown := _mask_word(word)) != word}
    for at, word in enumerate(words[:-1]):
        if word.startswith("-") and "=" not in word and is_secret_name(word):
            following = words[at + 1]
            if following and not following.startswith("-"):
                hidden[at + 1] = MASK
    for at in sorted(hidden, reverse=True):
        start, end = spans[at]
        quote = line[start] if line[start] in "'\"" else ""
        comment = found.comment and at == len(words) - 1
        shown = hidden[at] if comment else quote_word(hidden[at], quote)
        line = f"{line[:start]}{shown}{line[end:]}"
    return line


def _mask_word(word: str) -> str:
    told, at = "", 0
    for match in _NAMED.finditer(word):
        if match.start() < at or not is_secret_name(match[1]) or match.end() == len(word):
            continue
        told += f"{word[at : match.end()]}{MASK}"
        if not match.start() or " " not in word[: match.start()]:
            return told
        # In a command, as --setup has it, more follows.
        value = _VALUE.match(word, match.end())
        at = value.end() if value else len(word)
    told += word[at:]
    return TOKEN.sub(MASK, IN_URL.sub(rf"\1:{MASK}@", told))
