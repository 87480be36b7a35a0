"""What stands around a command and its script: what only a shell understands, and Python's own options.

Redirections and pipes are taken out, and so is what stands before the command with ``&&`` or ``;``. An option of
Python becomes the variable that says the same; one that no variable says is refused.
"""

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
OTHER_SYNTAX = re.compile(r"<<<|<<-?\w+|[0-9&]?>.*")  # text as input, output into a command
KEPT = "nothing: every rank's output is kept: distconsole logs"
BY_ITSELF = "nothing: a run goes on by itself"
BEFORE = ("cd", "export")
"""What may stand before the command, with ``&&`` or ``;`` behind it."""

NOT_HELD_BACK = "nothing: what a rank prints is not held back"
FLAGS = {
    "u": NOT_HELD_BACK,
    "q": "nothing: ranks have no prompt",
    "O": "PYTHONOPTIMIZE",
    "B": "PYTHONDONTWRITEBYTECODE",
    "s": "PYTHONNOUSERSITE",
    "v": "PYTHONVERBOSE",
    "d": "PYTHONDEBUG",
    "P": "PYTHONSAFEPATH",
}
"""Its options of one letter without a value: the variable with the same effect, or why no note is needed."""
MORE = {"0": "1", "1": "2", "2": "3"}
"""A flag may be repeated: the variable's value -> its value with the flag once more."""
DEVELOPS = {
    "faulthandler": "PYTHONFAULTHANDLER",
    "dev": "PYTHONDEVMODE",
    "utf8": "PYTHONUTF8",
    "importtime": "PYTHONPROFILEIMPORTTIME",
    "tracemalloc": "PYTHONTRACEMALLOC",
    "no_debug_ranges": "PYTHONNODEBUGRANGES",
}
"""Argument of ``-X`` -> the variable that has the same effect."""


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
    """Take out the shell's syntax, and note its equivalents.

    Raises UsageError for what starts something else, or reads a file.
    """
    kept: list[str] = []
    rows: list[tuple[str, str]] = []
    at = 0
    while at < len(words):
        word, end = words[at], at + 1
        told = REDIRECTION.fullmatch(word)
        if told is not None and ">(" not in "".join(words[at : end + 1]):
            end += not told[1]
            rows.append((" ".join(words[at:end]), KEPT))
        elif word in ("|", "|&") and words[end : end + 1] == ["tee"]:
            end = next((i for i in range(end, len(words)) if words[i] in JOINS), len(words))
            rows.append((" ".join(words[at:end]), KEPT))
        elif word in ("<", "</dev/null"):
            end += word == "<"
            shown = " ".join(words[at:end])
            if not shown.endswith("/dev/null"):
                cure = "a file's name as the script's argument"
                raise UsageError(f"{shown}: ranks have no standard input", cure)
            rows.append((shown, "nothing: ranks have no standard input"))
        elif word == "&" and end == len(words):
            rows.append((word, BY_ITSELF))
        elif word in JOINS or word[-1:] == ";" or OTHER_SYNTAX.fullmatch(word):
            joins = ";" if word[-1:] == ";" else word
            raise UsageError(
                f"one command is read, and {joins} joins it with something else",
                "give the one that starts the training; --setup takes what comes before it",
            )
        else:
            kept.append(word)
        at = end
    return kept, tuple(rows)


def take_options(word: str, words: list[str], found: Pasted) -> tuple[Pasted, list[str], bool]:
    """Take the options from before a script; return the rest, and whether it begins with a module's name.

    Raises UsageError for one that has no equivalent.
    """
    while words and words[0].startswith("-") and words[0] != "-":
        option, *words = words
        if option == "--":
            break
        for at, letter in enumerate(option[1:], 1):  # they may stand together: -um
            rest = option[at + 1 :]
            if letter == "m":
                return found, [rest, *words] if rest else words, True
            if letter in ("X", "W"):
                if not rest and not words:
                    raise UsageError(f"{word} {option} lacks its value", "such as: -W ignore")
                value, words = (rest, words) if rest else (words[0], words[1:])
                found = _with_value(found, letter, value)
                break
            found = _with_flag(found, option, letter)
    return found, words, False


def _with_flag(found: Pasted, option: str, letter: str) -> Pasted:
    if letter == "c":
        raise UsageError("python -c has no script to check", "put the text into a file")
    name = FLAGS.get(letter, "")
    if not name:
        known = letter.isalpha() and not option.startswith("--")
        what = (
            f"python -{letter} has no equivalent"
            if known
            else f"python has no option {option} that is known"
        )
        raise UsageError(f"{what} here", "leave it out")
    if not name.startswith("PYTHON"):
        return found.telling(f"-{letter}", name)
    before = dict(found.env).get(name, "0") if letter in "Ov" else "0"
    return found.changing(f"-{letter}", name, MORE.get(before, "1"))


def _with_value(found: Pasted, letter: str, value: str) -> Pasted:
    """Return ``found`` with what ``-W`` or ``-X`` says; raises UsageError for what no variable says."""
    name, equals, text = value.partition("=")
    variable = "PYTHONWARNINGS" if letter == "W" else DEVELOPS.get(name, "")
    if not variable:
        raise UsageError(f"python -X {value} has no equivalent here", "leave it out")
    told = value if letter == "W" else text if equals else "1"
    if letter == "W" and (before := dict(found.env).get(variable)):
        told = f"{before},{value}"
    return found.changing(f"-{letter} {value}", variable, told)
