"""How an unfinished line may go on: the same completions at the prompt as in the shell."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from click.shell_completion import ShellComplete

from distconsole.config.hostfile import names_in
from distconsole.config.load import load_config
from distconsole.config.paths import runs_dir
from distconsole.config.ssh_names import own_ssh_config, ssh_config_file, ssh_names
from distconsole.errors import ConsoleError
from distconsole.grammar.asking import PROGRAM
from distconsole.grammar.pasting.starters import STARTERS
from distconsole.grammar.values import Vocabulary
from distconsole.grammar.verbs import root
from distconsole.grammar.words import OpenLine, open_line, quote_unfinished, quote_word

MAX_COMPLETIONS = 500

Listing = Callable[[Path], Iterable[tuple[str, bool]]]
"""From a folder to its entries: names, and whether they are folders. It raises no exception."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A way to go on: the whole unquoted ``word``, its part ``shown``; ``goes_on``: more of it is likely."""

    word: str
    line: str
    help: str = ""
    shown: str = ""
    goes_on: bool = False


def complete_line(
    line: str, vocabulary: Vocabulary, listing: Listing | None = None
) -> list[Completion]:
    """Return the completions of ``line``'s last word, at most ``MAX_COMPLETIONS``."""
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
    names = path_names(unfinished, Path.cwd(), listing or read_folder)
    found: list[Completion] = []
    for item in engine.get_completions([*words, flag] if flag else words, unfinished):
        if item.type in ("file", "dir"):
            for path, is_folder in names:
                if is_folder or item.type == "file":
                    shown = path[path.removesuffix("/").rfind("/") + 1 :]
                    word = flag + equals + path
                    found.append(going_on(line, typed, word, shown=shown, on=is_folder))
            if item.starts and typed.text and all(word.startswith("-") for word in words[1:]):
                starters = (name for name in STARTERS if name.startswith(typed.text))
                found += [
                    going_on(line, typed, name, "what starts the ranks") for name in starters
                ]
        else:
            value = item.value
            shown = item.shown or (value if value[:1] == "-" else value.rpartition(",")[2])
            word = f"{flag}{equals}{value}"
            on = word.endswith("=") or bool(item.goes_on)
            found.append(going_on(line, typed, word, item.help or "", shown=shown, on=on))
    return found[:MAX_COMPLETIONS]


def going_on(
    line: str, typed: OpenLine, word: str, meaning: str = "", *, shown: str = "", on: bool = False
) -> Completion:
    written = quote_unfinished(word, typed.quote) if on else quote_word(word, typed.quote)
    return Completion(word, line[: typed.start] + written, meaning, shown or word, on)


def read_folder(folder: Path) -> Iterator[tuple[str, bool]]:
    """Yield the entries of a folder; one that cannot be read has none."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield entry.name, entry.is_dir()
    except OSError:
        return


def path_names(
    unfinished: str, folder: Path, listing: Listing = read_folder
) -> Iterator[tuple[str, bool]]:
    """Yield the paths that begin with ``unfinished``, sorted, a folder's with a slash, and whether each is complete."""
    start, slash, last = unfinished.rpartition("/")
    start += slash
    # The names of other users may be asked for over a network.
    place = str(Path.home()) + start[1:] if start.startswith("~/") else start
    for name, is_folder in sorted(listing(folder / place)):
        hidden = name.startswith(".") and not last.startswith(".")
        if name.startswith(last) and name.isprintable() and not hidden:
            yield f"{start}{name}{'/' if is_folder else ''}", is_folder


MAX_RUNS = 100


def shell_vocabulary() -> Vocabulary:
    """Return the words of a shell's completion; unreadable ones are left out."""
    runs: list[str] = []
    with contextlib.suppress(OSError):
        files = [(path.stat().st_mtime, path.stem) for path in runs_dir().glob("*.db")]
        runs = [name for _, name in sorted(files, reverse=True)[:MAX_RUNS]]
    return replace(configured_names(), runs=tuple(runs))


def configured_names(given_ssh_config: str | None = None) -> Vocabulary:
    about: dict[str, str] = {}
    hosts: dict[str, None] = {}
    clusters: tuple[str, ...] = ()
    ssh_config = None
    with contextlib.suppress(ConsoleError, OSError):
        config = load_config(refuse=False)
        ssh_config = config.ssh_config
        clusters = tuple(config.clusters)
        for name, cluster in config.clusters.items():
            for host in names_in(cluster.hosts):
                hosts[host] = None
                about.setdefault(host, f"of {name}")
            about[name] = ",".join(cluster.hosts) or str(cluster.hostfile)
        hosts |= dict.fromkeys(config.hosts)
    place = ssh_config_file(given_ssh_config, ssh_config, os.environ) or own_ssh_config()
    for alias in ssh_names(place):
        hosts[alias] = None
        about.setdefault(alias, f"in {place.name}")
    return Vocabulary(hosts=tuple(hosts), clusters=clusters, about=about)
