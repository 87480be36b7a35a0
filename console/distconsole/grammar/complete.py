"""How an unfinished line may go on: the same completions at the prompt as in the shell."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from click.shell_completion import ShellComplete

from distconsole.grammar.asking import PROGRAM
from distconsole.grammar.root import root
from distconsole.grammar.values import Vocabulary

__all__ = ["Completion", "Vocabulary", "complete_line"]

MAX_COMPLETIONS = 200


@dataclass(frozen=True, slots=True)
class Completion:
    """One way to go on.

    Attributes:
        word: The whole word that replaces the unfinished one.
        line: The whole line that results.
        help: One line of what the word means, or empty.
    """

    word: str
    line: str
    help: str


def complete_line(
    line: str, vocabulary: Vocabulary, folder: Path | None = None
) -> list[Completion]:
    """Return the completions of ``line``'s last word, at most ``MAX_COMPLETIONS``.

    Args:
        line: What was typed so far.
        vocabulary: What exists right now.
        folder: Where file names are looked for; the working folder if not given.
    """
    words, unfinished = _split(line)
    if words[:1] == [PROGRAM]:
        words = words[1:]
    engine = ShellComplete(root, {"obj": vocabulary}, PROGRAM, "_DISTCONSOLE_COMPLETE")
    kept = line[: len(line) - len(unfinished)]
    found = []
    for item in engine.get_completions(words, unfinished):
        if item.type in ("file", "dir"):
            found += [
                Completion(word, kept + word, "")
                for word in _paths(
                    unfinished, folder or Path.cwd(), folders_only=item.type == "dir"
                )
            ]
        else:
            found.append(Completion(item.value, kept + item.value, item.help or ""))
    if not found and words[:1] in (["run"], ["check"]) and not unfinished.startswith("-"):
        found = [
            Completion(word, kept + word, "") for word in _paths(unfinished, folder or Path.cwd())
        ]
    return found[:MAX_COMPLETIONS]


def _split(line: str) -> tuple[list[str], str]:
    """Split into finished words and the unfinished one (empty after a blank)."""
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    if not words or line[-1:].isspace():
        return words, ""
    return words[:-1], words[-1] if line.endswith(words[-1]) else line.split()[-1]


def _paths(unfinished: str, folder: Path, *, folders_only: bool = False) -> list[str]:
    start, slash, last = unfinished.rpartition("/")
    place = folder / Path(start + slash).expanduser() if slash else folder
    try:
        entries = sorted(place.iterdir(), key=lambda entry: entry.name)
    except OSError:
        return []
    return [
        f"{start}{slash}{entry.name}{'/' if entry.is_dir() else ''}"
        for entry in entries
        if entry.name.startswith(last)
        and (last.startswith(".") or not entry.name.startswith("."))
        and (entry.is_dir() or not folders_only)
    ]
