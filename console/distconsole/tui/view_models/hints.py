"""A finding's advice in the console's keys and prompt lines, and its command for a shell."""

from __future__ import annotations

import re
from functools import cache, lru_cache

from distconsole.grammar.verbs import VERBS
from distconsole.model import requests as ask
from distconsole.model.findings import Finding
from distconsole.model.options import Kind, options_of
from distconsole.model.run_events import RunFinding
from distconsole.model.verbs import VERBS as REQUESTS
from distconsole.text.check import cure_lines
from distconsole.tui.prompt.keymap import Keymap

_VALUE = r"""(?:'[^']*'|"[^"]*"|[^\s;()'"`…]*[^\s;,.:()'"`…])"""
_NAME = rf"(?:last\b|(?=[^\s;,()]*\d|[A-Z]{{3}}|'|[^\s;,()]*[/.]\w){_VALUE})"
_OTHER = re.compile(r"(?:sudo [\w-]+|export)(?: (?=\S*[^a-z\s])\S+)*")
"""A hint that is just a command of another program."""
_ELSEWHERE = re.compile(r"\b(?:in a script|in a job of [^:;]+|and in it|salloc, then)\b[^;]*$")
"""Before a command for another shell than the console's."""
KEYED = {
    "why": "why {run}",
    "logs": "view logs",
    "top": "view cluster",
    "stop": "stop {run}",
    "check": "check",
}
"""By verb, the line of the key that does the same for the shown run."""
OF_RANK = re.compile(r" --rank (\S+)")


@cache
def command_pattern() -> re.Pattern[str]:
    """Return what matches a command in a hint: a verb, options, names of runs, hosts and files (with a digit, a dot or in capitals).

    Prose may follow. It is ``open`` if a person has to write the rest.
    """
    each = (pair for kind in (ask.Where, *REQUESTS) for pair in options_of(kind).items())
    of = [(name, option) for name, option in each if option.kind is Kind.FLAG]
    flags = {flag for name, its in of for flag in (*(its.flags or [its.flag(name)]), *its.also)}
    return re.compile(
        rf"\bdistconsole (?P<verb>{'|'.join(VERBS)})(?![\w-])"
        rf"(?P<rest>(?: (?:{'|'.join(sorted(flag.partition('/')[0] for flag in flags if flag[:2] == '--'))})(?![\w-])"
        rf"| --[a-z-]+[ =]{_VALUE}| -[a-zA-Z] {_VALUE}| {_NAME})*"
        r"(?: -- (?:'[^']*'|\"[^\"]*\"|[^;…`\"'])+(?<!\s))?"
        rf"(?P<open> ?…(?: {_NAME})*)?)"
    )


def console_hint(hint: str, keymap: Keymap | None = None) -> str:
    """Return ``hint`` with prompt lines in place of our commands, or keys given a ``keymap``."""

    def put(found: re.Match[str]) -> str:
        before, after = found.string[: found.start()], found.string[found.end() :]
        if _ELSEWHERE.search(before):
            return found[0]
        verb, rest = found["verb"], found["rest"]
        line, rank = KEYED.get(verb, ""), OF_RANK.search(rest)
        if verb == "logs" and rank:
            line = "lines filter {rank}"
        keys = (
            keymap.keys if keymap is not None and not (verb in ("check", "top") and rest) else ()
        )
        key = next((key.shown for key in keys if line and key.line == line), "")
        if key and rank:
            press = "" if after[:1] == " " else "press "
            return f"{press}{key} on rank {rank[1]}"
        quote = "" if before.endswith(("'", '"', "`")) else "`" if "'" in rest else "'"
        return key or f"{quote}{verb}{rest}{quote}"

    return command_pattern().sub(put, hint)


def command_of(finding: Finding | RunFinding) -> str:
    """Return the shell command for ``finding``: its cure, else the command in its hint; empty if the hint is prose."""
    cure = finding.cure if isinstance(finding, Finding) else None
    lines = cure_lines(cure) if cure is not None else []
    return "\n".join(lines) or _command_in(finding.hint)


@lru_cache(maxsize=64)
def _command_in(hint: str) -> str:
    # A bare `distconsole run` is a name in prose.
    found = (each for each in command_pattern().finditer(hint) if each[0] != "distconsole run")
    other = _OTHER.fullmatch(hint)
    ours = (each[0] for each in found if not each["open"])
    return next(ours, "" if other is None else other[0])
