"""Completions at the prompt: the grammar's and those of the screen's own verbs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from distconsole.grammar.completion import (
    Completion,
    Listing,
    complete_line,
    going_on,
    read_folder,
)
from distconsole.grammar.options import params_of
from distconsole.grammar.secrets import mask_secrets
from distconsole.grammar.values import UNFINISHED_NAME
from distconsole.grammar.words import open_line
from distconsole.model import requests as ask
from distconsole.runs.compare.figures import AXES
from distconsole.runs.conditions.check_fields import CHECK_FIELDS
from distconsole.runs.conditions.load_fields import LOAD_FIELDS
from distconsole.runs.conditions.rank_fields import RANK_FIELDS
from distconsole.runs.conditions.summary_fields import summary_fields
from distconsole.tui.jobs import jobs_of
from distconsole.tui.prompt.completion_index import checks_by_id
from distconsole.tui.prompt.keys import PROMPT_VERBS, SCREEN_VERBS, SORTS, VIEWS, WHATS
from distconsole.tui.prompt.shortcuts import Shortcuts
from distconsole.tui.session import ConsoleSession
from distconsole.tui.theme.themes import NAMES

OF_RUNS = {each.name: each.about for each in summary_fields()}
LOADS = {each.name: each.about for each in LOAD_FIELDS}
FIELDS_OF_VIEWS = {
    "check": {each.name: each.about for each in CHECK_FIELDS},
    "cluster": LOADS,
    "run": {each.name: each.about for each in RANK_FIELDS},
    "runs": OF_RUNS,
}
FIELDS = {name: about for fields in FIELDS_OF_VIEWS.values() for name, about in fields.items()}
"""Names of fields in conditions, and their meanings."""

MOMENTS = {
    "start": "of the run",
    "end": "of the run",
    "next": "what stands out next: a finding, a restart, the end",
    "previous": "what stands out before",
    "step": "step 1200: when some rank had first done it",
}
"""Words that ``at`` takes, besides times."""
WAYS = {"toggle": "go on or stand"}
"""Words that ``play`` takes."""

Words = Mapping[str, str]
"""Completion -> its meaning."""

STANDING: Mapping[str, Words] = {
    "sort": dict.fromkeys(SORTS, "of the ranks") | LOADS | OF_RUNS,
    "lines": WHATS,
    "group": {"none": "no groups"} | LOADS | OF_RUNS,
    "at": MOMENTS,
    "play": WAYS,
    "axis": dict.fromkeys(AXES, ""),
    "unwatch": {"all": "every watch"},
    "help": PROMPT_VERBS,
    "launch": {
        "last": "what was launched before",
        "start": "what the form says",
        "copy": "the command that does the same in a shell",
    },
}
"""Words after a verb that do not depend on the console's state."""

STAND_FOR = {**dict.fromkeys(("save", "screenshot"), "report -o "), "hosts": "top --hosts "}
"""Screen verbs that take a file or hosts, and the verb line that completes them."""
OF_HOSTS = {flag for option in params_of(ask.Where).values() for flag in option.opts}


PATIENCE_SECONDS = 0.03
"""Keeps the answer to a key well within 50 ms."""
FRESH_SECONDS = 2.0
MAX_ENTRIES = 20_000
MAX_READING = 8
"""Folders that may hang before no further one is read."""


class LineCompleter:
    def __init__(
        self,
        session: ConsoleSession,
        shortcuts: Shortcuts,
        themes: Callable[[], Iterable[str]],
        came: Callable[[], object],
        view: Callable[[], str],
    ) -> None:
        self._session = session
        self._view = view
        self._shortcuts = shortcuts
        self._themes = themes
        self._folders = Folders(came)

    @property
    def waiting(self) -> str:
        return self._folders.waiting

    def complete(self, line: str) -> list[Completion]:
        return self._completions(line, self._folders.list)

    def glance(self, line: str) -> list[Completion]:
        """As ``complete``, without waiting for a folder."""
        return self._completions(line, self._folders.glance)

    def _theme_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*NAMES, *sorted(self._themes()))))

    def _completions(self, line: str, listing: Listing) -> list[Completion]:
        line, blanks = line.lstrip(), line[: len(line) - len(line.lstrip())]
        if blanks:
            found = self._completions(line, listing)
            return [replace(each, line=blanks + each.line) for each in found]
        typed = open_line(line)
        vocabulary = replace(self._session.vocabulary(line), themes=self._theme_names())
        if not typed.words:
            found = complete_line(line, vocabulary, listing=listing)
            aliases = self._shortcuts.aliases.values()
            own = {alias.name: f"= {mask_secrets(alias.line)}" for alias in aliases}
            found += _among({**SCREEN_VERBS, **own}, line)
            return sorted(found, key=lambda each: each.word)
        verb = typed.words[0]
        if verb in ("watch", "filter"):
            of_view = FIELDS_OF_VIEWS.get(self._view(), FIELDS)
            return _names(line, of_view if verb == "filter" else {**of_view, **FIELDS})
        dashed = typed.text[:1] == "-"
        if verb == "hosts" and (dashed or (typed.words[1:2] and typed.words[1][:1] == "-")):
            found = complete_line(f"top{line[len(verb) :]}", vocabulary, listing=listing)
            return [
                replace(each, line=f"{verb}{each.line[len('top') :]}")
                for each in found
                if not dashed or each.word.partition("=")[0] in OF_HOSTS
            ]
        if verb in STAND_FOR and dashed:
            return _among({"--yes": "over what is there"} if verb == "save" else {}, line)
        if verb in STAND_FOR:
            like = STAND_FOR[verb]
            found = complete_line(f"{like}{line[typed.start :]}", vocabulary, listing=listing)
            return [
                replace(each, line=line[: typed.start] + each.line[len(like) :]) for each in found
            ]
        words = self.candidates(verb)
        if words is None:
            return complete_line(line, vocabulary, listing=listing)
        return _among(words, line) if len(typed.words) == 1 else []

    def candidates(self, verb: str) -> Words | None:
        session = self._session
        match verb:
            case "view":
                runs = {task.run.run: task.line for task in session.tasks if task.run.run}
                return dict.fromkeys(VIEWS, "") | runs
            case "repeat":
                return checks_by_id()
            case "heat":
                task = session.shown_run()
                known = dict.fromkeys(task.history.known if task is not None else (), "")
                return {"span": "minutes or the whole run", "next": "", **known}
            case "mark":
                return dict.fromkeys(session.vocabulary().runs, "")
            case "cancel":
                jobs = jobs_of(session.tasks, session.clocks.monotonic())
                return {str(job.number): job.line for job in jobs} | {"all": ""}
            case "unalias":
                return {name: alias.line for name, alias in self._shortcuts.aliases.items()}
            case "theme":
                return dict.fromkeys(self._theme_names(), "")
            case _:
                return STANDING.get(verb, {} if verb in SCREEN_VERBS else None)


def _among(words: Words, line: str) -> list[Completion]:
    typed = open_line(line)
    return [
        going_on(line, typed, word, meaning)
        for word, meaning in words.items()
        if word.startswith(typed.text)
    ]


def _names(line: str, names: Words) -> list[Completion]:
    match = UNFINISHED_NAME.search(line)
    start = match.start() if match else len(line)
    return [
        Completion(name, line[:start] + name, meaning, name)
        for name, meaning in names.items()
        if name.startswith(line[start:])
    ]


class Folders:
    """A ``Listing`` that never blocks for longer than ``PATIENCE_SECONDS``; ``came`` is called from a thread
    once a late folder has been read."""

    def __init__(self, came: Callable[[], object], read: Listing = read_folder) -> None:
        self._came = came
        self._read = read
        self._kept: dict[Path, tuple[float, list[tuple[str, bool]]]] = {}
        self._reading: dict[Path, threading.Thread] = {}
        self.waiting = ""
        """The folder of the last listing while it has not answered, else empty."""

    def list(
        self, folder: Path, patience_seconds: float = PATIENCE_SECONDS
    ) -> Iterable[tuple[str, bool]]:
        """Return the entries of ``folder``, stale or none while it does not answer."""
        self.waiting = ""
        at, entries = self._kept.get(folder, (float("-inf"), []))
        if time.monotonic() - at < FRESH_SECONDS:
            return entries
        self.waiting = str(folder)
        reader = self._reading.get(folder)
        if reader is None:
            if len(self._reading) >= MAX_READING:
                return entries
            reader = threading.Thread(
                target=self._work, args=(folder,), name="folder", daemon=True
            )
            self._reading[folder] = reader
            reader.start()
        reader.join(patience_seconds)
        if not reader.is_alive():
            self.waiting = ""
        return self._kept.get(folder, (0.0, entries))[1]

    def glance(self, folder: Path) -> Iterable[tuple[str, bool]]:
        """As ``list``, without waiting."""
        return self.list(folder, 0.0)

    def _work(self, folder: Path) -> None:
        entries = list(islice(self._read(folder), MAX_ENTRIES))
        if len(self._kept) > MAX_READING:
            self._kept = {}
        self._kept[folder] = (time.monotonic(), entries)
        del self._reading[folder]
        if self.waiting == str(folder):
            self._came()
