"""Python's own options before a script, as the variables that say the same. Those that no variable says are refused."""

from __future__ import annotations

from dataclasses import replace

from distconsole.errors import UsageError
from distconsole.grammar.pasting.meanings import Pasted

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
"""Its options of one letter without a value: the variable that says the same, or why nothing need be said."""
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


def take_options(word: str, words: list[str], found: Pasted) -> tuple[Pasted, list[str], bool]:
    """Take the options from before a script; return what is left, and whether it begins with a module's name.

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
                value, words = (rest, words) if rest else _value_of(word, option, words)
                found = _with_value(found, letter, value)
                break
            found = _with_flag(found, option, letter)
    return found, words, False


def _value_of(word: str, option: str, words: list[str]) -> tuple[str, list[str]]:
    if not words:
        raise UsageError(f"{word} {option} lacks its value", "such as: -W ignore")
    return words[0], words[1:]


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
    value = MORE.get(before, "1")
    env = tuple(pair for pair in found.env if pair[0] != name)
    return replace(found, env=(*env, (name, value))).telling(f"-{letter}", f"--env {name}={value}")


def _with_value(found: Pasted, letter: str, value: str) -> Pasted:
    """Return ``found`` with what ``-W`` or ``-X`` says; raises UsageError for what no variable says."""
    name, equals, text = value.partition("=")
    variable = "PYTHONWARNINGS" if letter == "W" else DEVELOPS.get(name, "")
    if not variable:
        raise UsageError(f"python -X {value} has no equivalent here", "leave it out")
    told = value if letter == "W" else text if equals else "1"
    if letter == "W" and (before := dict(found.env).get(variable)):
        told = f"{before},{value}"
    env = tuple(pair for pair in found.env if pair[0] != variable)
    return replace(found, env=(*env, (variable, told))).telling(
        f"-{letter} {value}", f"--env {variable}={told}"
    )
