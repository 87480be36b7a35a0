"""Which names and words look like secrets, and text with them hidden: for all that others may read.

Its text also stands in programs for other interpreters (``probes.scripts``).
"""

from __future__ import annotations

import re
import shlex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

HIDDEN = "***"
"""Stands for a value in text for other readers: plans, pages, files."""

_FISH = re.compile(r"-\w*[xU]\w*|--export|--universal")
"""An option of fish's ``set`` that precedes a variable's name and value."""

_SHORT = {
    **dict.fromkeys(("sshpass", "mysql", "mysqldump", "mariadb"), "-p"),
    "curl": "-u",
    "redis-cli": "-a",
    "ldapsearch": "-w",
    "smbclient": "-U",
}
"""Program -> its short option for a password, which is the next word or joined to it."""

_PERHAPS = re.compile(
    r"(?i)token(?!s|i[sz])|secret|passw|passphrase|credential|private|api_?key|access_?key"
    r"|requirepass|auth(?!or(?!i))|_key$|_pat$|(?:^|[_.])(?:pass$|(?:jwt|creds?|pwd)(?:[_.]|$))"
)
_HINT = re.compile(
    r"(?i)token|secret|pass|pwd|cred|private|key|auth|pat|bearer|jwt|://|mysql|mariadb|curl|redis|ldap|smbc"
)
"""Text without it has nothing to hide, but for the shapes of tokens."""

_ALWAYS = {
    *("secret", "secrets", "password", "passwd", "passphrase", "pwd", "credential", "credentials"),
    *("apikey", "authorization", "pat", "bearer", "jwt"),
}
_OF_TEXT = {
    *("pad", "eos", "bos", "unk", "mask", "sep", "cls", "start", "end", "stop", "special"),
    *("image", "per", "max", "num", "first", "last", "next"),
}
"""Before ``token`` these make it a piece of text, as language models have it."""
_OF_KEY = {"api", "access", "private", "secret", "auth", "account", "license", "encryption", "ssh"}

_NAMED = re.compile(
    r"(?:^|(?<=[\s;:=&|\"',{(\[?])|(?<=^\+))[-+~]{0,2}([A-Za-z_][\w.-]*)(?:\+?=|[ \t]*:[ \t]+)"
)
_GIVEN = re.compile(r"(?<![\w.+~-])([-+~]{0,2}[A-Za-z_][\w.-]*)(\+?=|[ \t]*:[ \t]+|[ \t]+)")
_LINE = re.compile(r"""(?:"[^"\n]*"?|'[^'\n]*'?|[^\s'"][^\n'"]*)""")
"""The words after a colon, as in YAML and HTTP. A name before one is prose as often: ``is_secret_name`` has to know it."""
_HEADER = re.compile(r"((?i:X-[\w-]+|(?:Proxy-)?Authorization|PRIVATE-TOKEN)|Api-Key):(?=\S)")
"""As HTTP allows it: no blank behind the colon. Hosts with a port and images with a tag have other names."""
_COUNT = re.compile(r"(?i)token[ \t]*:[ \t]+[\d.]{1,12}[a-z/%]{0,3}(?![\w.-])")
"""Of tokens of text: their number, or the characters of one."""
_COMMAND = re.compile(
    r"""(?:[^\s$`'"]{0,256}(?:`[^`]*`?|\$\("""
    r"""(?:[^()'"\\]|\\.|'[^']*'|"(?:\\.|[^"\\])*"|\([^()]*\))*(?:\)|.*)))+""",
    re.DOTALL,
)
"""A value for which a shell runs a command; one that is nested deep is taken to end with the text."""
_IN_JSON = re.compile(r"""(["'])([A-Za-z_][\w.-]*)\1(\s*:\s*)(?:"[^"]*"?|'[^']*'?|[^\s,}"']+)""")
_WORD = re.compile(r"""(?:[^\s'"\\;&|]|\\.|\\$|'[^']*'?|"(?:\\.|[^"\\])*"?)+""", re.DOTALL)
_QUOTED = re.compile(r"""'([^']*)'?|"((?:\\.|[^"\\])*)"?|\\(.)""", re.DOTALL)
_USER_IN_URL = re.compile(r"(?<=://)[^/\s:@]+(?=:(?:x-oauth-basic)?@)")
_IN_URL = re.compile(r"(?<=://)([^/\s:@]*):[^/\s@]+@")
_TOKEN = re.compile(
    r"\b(?:(?:sk|pk|rk)[-_](?:live[-_]|proj[-_]|ant[-_])?[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|hf_[A-Za-z0-9]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[A-Z0-9]{16}|glpat-[A-Za-z0-9_-]{16,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*)|(?<=[Bb]earer )[\w.~+/-]{8,}"
)
"""Well-known shapes of tokens."""


def is_secret_name(name: str) -> bool:
    """True if a name is most likely a secret's: ``HF_TOKEN``, ``db-password``; not ``max_tokens``, ``key``."""
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
    """True if a variable or an option of this name may hold a secret; wider than ``is_secret_name``: for text shown to others."""
    return bool(_PERHAPS.search(name.lstrip("-+~").replace("-", "_"))) or is_secret_name(name)


def mask_words(
    words: Sequence[str], mark: str = HIDDEN, is_secret: Callable[[str], bool] = may_be_secret
) -> list[str]:
    """Return a command's words with the values hidden of options, ``NAME=VALUE`` and commands in them."""
    shown: list[str] = []
    hide, last, short = False, "", ""
    for word in words:
        hide = hide and word != "" and not word.startswith("-")
        given = short != "" and word.startswith(short)
        masked = short + mark if given and word != short else _mask_word(word, mark, is_secret)
        shown.append(mark if hide else masked)
        names = word.startswith("-") or last == "setenv"
        hide = (names and "=" not in word and is_secret(word)) or (given and word == short)
        short = "" if given else _SHORT.get(word.rpartition("/")[2], short)
        last = "setenv" if last == "set" and _FISH.fullmatch(word) else word
    return shown


def mask_text(
    text: str, mark: str = HIDDEN, is_secret: Callable[[str], bool] = may_be_secret
) -> str:
    """Return text, such as lines of a shell, with likely secrets hidden."""
    if _HINT.search(text) is None:
        return _TOKEN.sub(mark, text)
    text = _hide_values(text, mark, is_secret)
    # A line that goes on ends with a backslash.
    found = [word for word in _WORD.finditer(text) if word[0].strip("\\\n")]
    words = [
        _QUOTED.sub(lambda part: part[1] or part[2] or (part[3] or "").strip("\n"), word[0])
        for word in found
    ]
    told, at = "", 0
    for match, word, masked in zip(found, words, mask_words(words, mark, is_secret)):
        if masked != word:
            plain = shlex.quote(masked.replace(mark, "x")) == masked.replace(mark, "x")
            told += text[at : match.start()] + (masked if plain else shlex.quote(masked))
            at = match.end()
    return _mask_shapes(told + text[at:], mark, is_secret)


def mask_env(env: Mapping[str, str]) -> dict[str, str]:
    return {
        name: HIDDEN if value and may_be_secret(name) else mask_text(value)
        for name, value in env.items()
    }


def _hide_values(text: str, mark: str, is_secret: Callable[[str], bool]) -> str:
    told, at = "", 0
    for given in _GIVEN.finditer(text):
        labelled = ":" in given[2]
        if given.start() >= at and (is_secret_name if labelled else is_secret)(given[1]):
            value = (_LINE if labelled else _COMMAND).match(text, given.end())
            if value and not _COUNT.match(text, given.start()):
                told, at = told + text[at : given.end()] + mark, value.end()
    return told + text[at:]


def _mask_word(word: str, mark: str, is_secret: Callable[[str], bool]) -> str:
    header = _HEADER.match(word)
    if header is not None and is_secret_name(header[1]):
        return header[0] + mark
    for match in _NAMED.finditer(word):
        if match.end() == len(word) or not is_secret(match[1]):
            continue
        if match.start() and " " in word[: match.start()]:
            return mask_text(word, mark, is_secret)  # a command, in which more follows
        return word[: match.end()] + mark
    if " " in word and _HINT.search(word):
        return mask_text(word, mark, is_secret)
    return _mask_shapes(word, mark, is_secret)


def _mask_shapes(text: str, mark: str, is_secret: Callable[[str], bool]) -> str:
    """Hide words with the shape of a secret, under any name, and values of JSON."""

    def shown(found: re.Match[str]) -> str:
        value = (
            f'"{mark}"'
            if is_secret(found[2])
            else found[0][len(found[1] * 2 + found[2] + found[3]) :]
        )
        return f"{found[1]}{found[2]}{found[1]}{found[3]}{value}"

    return _TOKEN.sub(
        mark, _IN_URL.sub(rf"\1:{mark}@", _USER_IN_URL.sub(mark, _IN_JSON.sub(shown, text)))
    )
