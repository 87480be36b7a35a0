"""The program that a command line has an interpreter run; recognises ours.

Agent, bridge, shim and console are known by the module or the file that runs. A word in a path is no sign of
them: a clone, a virtual environment or a job's script may lie in any folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

_AGENT = re.compile(r"agent-[0-9a-f]{16}\.pyz")
"""The zipapp, as the console names it (``Pack.name``)."""
_CONSOLE = "distconsole"
"""The file that an installer makes for the console, and its package."""
_PACKAGES = (_CONSOLE, "distconsole_agent")
_TAKE_A_WORD = ("--check-hash-based-pycs",)


class CommandTarget(NamedTuple):
    """The program of an interpreter: ``option`` is ``-m`` before a module, ``-c`` before code, empty before a file."""

    option: str
    name: str
    arguments: tuple[str, ...]


def split_words(line: bytes) -> tuple[str, ...]:
    words = line.decode("utf-8", "replace").split("\0")
    return tuple(words if words[-1] else words[:-1])


def read_target(words: Sequence[str]) -> CommandTarget:
    """Return the program of the interpreter ``words[0]``, by Python's options; None without a script."""
    at = 1
    while at < len(words) and words[at].startswith("-") and len(words[at]) > 1:
        word = words[at]
        at += 1 + (word in _TAKE_A_WORD)
        found = None if word.startswith("--") else re.search("[cmWX]", word)
        if found is not None:
            value, option = word[found.end() :], f"-{found[0]}"
            if not value:
                value, at = words[at] if at < len(words) else "", at + 1
            if option in ("-c", "-m"):
                return CommandTarget(option, value, tuple(words[at:]))
    name, *arguments = words[at:] or ("",)
    return CommandTarget("", name, tuple(arguments))


def is_ours(words: Sequence[str]) -> bool:
    """Return True if a command line runs the agent, a bridge, a shim or the console."""
    target = read_target(words)
    if target.option == "-m":
        return target.name.partition(".")[0] in _PACKAGES
    if target.option == "-c":
        # A bridge that joins an agent, and the program that stores the zipapp, have their code in the command.
        return any(_AGENT.fullmatch(os.path.basename(word)) for word in target.arguments[:3])
    name = os.path.basename(target.name)
    return name == _CONSOLE or _AGENT.fullmatch(name) is not None
