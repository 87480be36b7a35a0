"""Which words among a script's arguments name files or folders, and which of them it will write to.

A guess by the words alone: nothing is opened. What is no path for sure is left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence

MAX_PATHS = 16
HINTS = re.compile(
    r"data|path|dir|root|folder|file|ckpt|checkpoint|output|save|log|resume|load|config|cfg|corpus|"
    r"tokenizer|vocab|weights|cache|train|val|test"
)
READS = re.compile(r"resume|load|pretrained|init_from|restore|from_checkpoint|input")
WRITES = re.compile(
    r"output|out_dir|outdir|^out$|save|ckpt|checkpoint|log_?dir|log_?file|results?|tensorboard|work_?dir"
)
STRANGE = re.compile(r"://|[\n\t{}$*?<>|;]|^~")


def argument_paths(
    arguments: Sequence[str], workdir: str, exists: Callable[[str], bool]
) -> tuple[tuple[str, str, bool], ...]:
    """Return paths with the option that gives each (empty where none does), and whether it is written to.

    Args:
        arguments: The script's own.
        workdir: Where relative paths start on the hosts.
        exists: Whether a path is there on this machine.
    """
    found: dict[str, tuple[str, str, bool]] = {}
    for option, word in _pairs(arguments):
        name = option.lstrip("-").replace("-", "_").lower()
        path = posixpath.normpath(posixpath.join(workdir, word))
        if len(path) < 1024 and path != "/" and _is_path(word, name, path, exists):
            output = bool(WRITES.search(name)) and not READS.search(name)
            found.setdefault(path, (path, option, output))
    return tuple(found.values())[:MAX_PATHS]


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each value with its option."""
    option = ""
    for word in arguments:
        if word.startswith("-") and not re.fullmatch(r"-\d.*", word):
            name, equals, value = word.partition("=")
            option = "" if equals else name
            if equals:
                yield name, value
        else:
            yield option, word


def _is_path(word: str, name: str, path: str, exists: Callable[[str], bool]) -> bool:
    if not word or len(word) > 512 or STRANGE.search(word):
        return False
    if word.startswith(("/", "./", "../")):
        return True
    if re.fullmatch(r"[-+\d.eE:,x]+", word):
        return False
    return ("/" in word or not name or bool(HINTS.search(name))) and exists(path)
