"""What only a shell understands around a command: redirections, pipes, and what stands before it with ``&&`` or ``;``."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace

from distconsole.errors import UsageError
from distconsole.grammar.pasting.meanings import Pasted, export
from distconsole.grammar.pasting.starters import refuse_variable

JOINS = ("&&", "||", ";", "|", "|&", "&")
REDIRECTION = re.compile(r"(?:[0-9]*|&)>(?:[>|]|&(?=[0-9-]))?([^>]*)")
"""Output of the command that goes elsewhere; where, unless that is the next word."""
KEPT = "nothing: every rank's output is kept: distconsole logs"
BY_ITSELF = "nothing: a run goes on by itself"
BEFORE = ("cd", "export")
"""What may stand before the command, with ``&&`` or ``;`` behind it."""


def take_before(words: list[str], found: Pasted) -> tuple[Pasted, list[str]]:
    """Take a ``cd DIR &&`` and an ``export NAME=VALUE;`` from before the command, and the prompt of a page."""
    if words[:1] == ["$"]:
        words = words[1:]
    if not words or words[0] not in BEFORE:
        return found, words
    at = next(
        (at for at, word in enumerate(words) if word in ("&&", ";") or word[-1:] == ";"), None
    )
    if at is None:
        raise UsageError(
            f"{words[0]} starts no training",
            f"{words[0]} … && and the command, or the command alone",
        )
    said = [*words[1:at], *([words[at][:-1]] if words[at] not in ("&&", ";") else [])]
    if words[0] == "export":
        for word in said:
            found = export(found, f"export {word}", word)
    elif len(said) == 1:
        refuse_variable("cd", said[0])
        workdir = posixpath.join(found.workdir, said[0])
        found = replace(found, workdir=workdir).telling(f"cd {said[0]}", f"--workdir {workdir}")
    else:
        raise UsageError(f"cd {' '.join(said)}: not one folder", "cd DIR && and the command")
    return take_before(words[at + 1 :], found)


def take_out(words: list[str]) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """Take out what only a shell understands, and tell what it becomes.

    Raises UsageError for what starts something else, or reads a file.
    """
    kept: list[str] = []
    rows: list[tuple[str, str]] = []
    at = 0
    while at < len(words):
        word, end = words[at], at + 1
        told = REDIRECTION.fullmatch(word)
        if told is not None:
            end += not told[1]
            rows.append((" ".join(words[at:end]), KEPT))
        elif word in ("|", "|&") and words[end : end + 1] == ["tee"]:
            end = next((i for i in range(end, len(words)) if words[i] in JOINS), len(words))
            rows.append((" ".join(words[at:end]), KEPT))
        elif word in ("<", "</dev/null"):
            end += word == "<"
            rows.append(
                (_no_input(" ".join(words[at:end])), "nothing: ranks have no standard input")
            )
        elif word == "&" and end == len(words):
            rows.append((word, BY_ITSELF))
        elif word in JOINS or word[-1:] == ";":
            joins = ";" if word[-1:] == ";" else word
            raise UsageError(
                f"one command is read, and {joins} joins it with something else",
                "give the one that starts the training; --setup takes what comes before it",
            )
        else:
            kept.append(word)
        at = end
    return kept, tuple(rows)


def _no_input(shown: str) -> str:
    if not shown.endswith("/dev/null"):
        raise UsageError(
            f"{shown}: ranks have no standard input", "a file's name as the script's argument"
        )
    return shown
