"""How an unfinished line may go on: the same completions at the prompt as in the shell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from click.shell_completion import CompletionItem, ShellComplete

from distconsole.grammar.asking import PROGRAM
from distconsole.grammar.pasting.starters import STARTERS
from distconsole.grammar.root import root
from distconsole.grammar.values import Vocabulary
from distconsole.grammar.words import OpenLine, open_line, opened, quoted

__all__ = [
    "Completion",
    "Listing",
    "Vocabulary",
    "complete_line",
    "going_on",
    "path_names",
    "read_folder",
]

MAX_COMPLETIONS = 500

Listing = Callable[[Path], Iterable[tuple[str, bool]]]
"""From a folder to its entries: names, and whether they are folders. It raises nothing."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One way to go on.

    Attributes:
        word: The whole word that replaces the unfinished one, without quotes.
        line: The whole line that results.
        help: One line of what the word means, or empty.
        shown: What is chosen here: of a path its last part, of a list its last element.
        goes_on: Whether more of the same word is likely: a folder, ``--flag=``.
    """

    word: str
    line: str
    help: str = ""
    shown: str = ""
    goes_on: bool = False


def complete_line(
    line: str,
    vocabulary: Vocabulary,
    folder: Path | None = None,
    listing: Listing | None = None,
) -> list[Completion]:
    """Return the completions of ``line``'s last word, at most ``MAX_COMPLETIONS``.

    Args:
        line: What was typed so far.
        vocabulary: What exists right now.
        folder: Where file names are looked for; the working folder if not given.
        listing: How folders are read.
    """
    typed = open_line(line)
    if typed.comment:
        return []
    words = list(typed.words)
    if words[:1] == [PROGRAM]:
        words = words[1:]
    flag, equals, unfinished = "", "", typed.text
    if unfinished.startswith("-") and "=" in unfinished:
        flag, equals, unfinished = unfinished.partition("=")
    engine = ShellComplete(root, {"obj": vocabulary}, PROGRAM, "_DISTCONSOLE_COMPLETE")
    names = path_names(unfinished, folder or Path.cwd(), listing or read_folder)
    found: list[Completion] = []
    for item in engine.get_completions([*words, flag] if flag else words, unfinished):
        if item.type in ("file", "dir"):
            found += _of_paths(names, line, typed, flag + equals, only_folders=item.type == "dir")
        else:
            found.append(_of_item(item, line, typed, flag + equals))
    if not found and words[:1] in (["run"], ["check"]) and not typed.text.startswith("-"):
        if _awaits_value(words):
            return []
        if words[0] == "check" and all(word.startswith("-") for word in words[1:]):
            starters = (name for name in STARTERS if typed.text and name.startswith(typed.text))
            found = [going_on(line, typed, name, "what starts the ranks") for name in starters]
        found += _of_paths(names, line, typed)
    return found[:MAX_COMPLETIONS]


def _awaits_value(words: Sequence[str]) -> bool:
    """Whether the last of ``words`` is an option that its value follows."""
    verb = root.commands[words[0]]
    options = (each for each in verb.params if isinstance(each, click.Option))
    return any(words[-1] in each.opts and not each.is_flag for each in options)


def going_on(
    line: str, typed: OpenLine, word: str, meaning: str = "", *, shown: str = "", on: bool = False
) -> Completion:
    """Return the completion of ``line`` by ``word``, quoted as the line has begun to."""
    written = opened(word, typed.quote) if on else quoted(word, typed.quote)
    return Completion(word, line[: typed.start] + written, meaning, shown or word, on)


def read_folder(folder: Path) -> Iterator[tuple[str, bool]]:
    """Yield the entries of a folder; one that cannot be read has none."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield entry.name, entry.is_dir()
    except OSError:
        return


def _of_item(item: CompletionItem, line: str, typed: OpenLine, flag: str) -> Completion:
    word = f"{flag}{item.value}"
    shown = item.value if item.value.startswith("-") else item.value.rpartition(",")[2]
    on = word.endswith("=") or bool(item.goes_on)
    return going_on(line, typed, word, item.help or "", shown=item.shown or shown, on=on)


def _of_paths(
    names: Iterable[tuple[str, bool]],
    line: str,
    typed: OpenLine,
    flag: str = "",
    *,
    only_folders: bool = False,
) -> Iterator[Completion]:
    for path, is_folder in names:
        if is_folder or not only_folders:
            last = path.removesuffix("/").rfind("/") + 1
            yield going_on(line, typed, flag + path, shown=path[last:], on=is_folder)


def path_names(
    unfinished: str, folder: Path, listing: Listing = read_folder
) -> Iterator[tuple[str, bool]]:
    """Yield the paths that go on from ``unfinished``, sorted, a folder's with a slash, and whether each is one.

    Args:
        unfinished: What was typed of it; names that begin with a dot are found by a dot.
        folder: Where it begins, unless it begins with ``/`` or ``~/``.
        listing: How folders are read.
    """
    start, slash, last = unfinished.rpartition("/")
    start += slash
    # The names of other users may be asked for over a network.
    place = str(Path.home()) + start[1:] if start.startswith("~/") else start
    for name, is_folder in sorted(listing(folder / place)):
        hidden = name.startswith(".") and not last.startswith(".")
        if name.startswith(last) and name.isprintable() and not hidden:
            yield f"{start}{name}{'/' if is_folder else ''}", is_folder
