"""Completions from files: hosts, clusters, past runs. A thread reads them."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from functools import cache
from itertools import islice

from distconsole.config.paths import runs_dir
from distconsole.errors import ConsoleError
from distconsole.grammar.completion import configured_names
from distconsole.grammar.values import Vocabulary, check_groups
from distconsole.model.names import RunId
from distconsole.model.time_text import duration_text
from distconsole.runs.store.catalogue import stamps_in
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import listed

PATIENCE_SECONDS = 0.03
FRESH_SECONDS = 10.0
MAX_RUNS = 200
MAX_LOOKED_INTO = 50
MAX_HOSTS = 2000


@cache
def checks_by_id() -> dict[str, str]:
    """Return each check's description; loads all rules, which takes a moment."""
    from distconsole.checks.engine.catalogue import CATALOGUE  # noqa: PLC0415 - not before the first screen

    return {rule.id: rule.catches for rule in CATALOGUE}


def groups_and_checks() -> dict[str, str]:
    """Return what ``check --only`` takes, with descriptions; loads all rules."""
    return {**check_groups(), **checks_by_id()}


class CompletionIndex:
    def __init__(self, ssh_config: str | None = None) -> None:
        self._ssh_config = ssh_config
        self._names = Vocabulary()
        self._at = float("-inf")
        self._reader: threading.Thread | None = None
        self._loader: threading.Thread | None = None

    def names(self, *, checks: bool = False) -> Vocabulary:
        """Return the known names; waits at most ``PATIENCE_SECONDS`` for the reader's first result.

        With ``checks`` a thread loads these ahead: a key must not wait for that.
        """
        if checks and self._loader is None:
            self._loader = threading.Thread(target=checks_by_id, name="checks", daemon=True)
            self._loader.start()
        reading = self._reader is not None and self._reader.is_alive()
        if not reading and time.monotonic() - self._at > FRESH_SECONDS:
            self._reader = threading.Thread(target=self._read, name="known", daemon=True)
            self._reader.start()
            self._reader.join(PATIENCE_SECONDS)
        return self._names

    def end(self) -> None:
        for thread in (self._reader, self._loader):
            if thread is not None:
                thread.join(1.0)

    def _read(self) -> None:
        known = configured_names(self._ssh_config)
        about = dict(known.about)
        self._names = replace(
            known, hosts=known.hosts[:MAX_HOSTS], runs=self._runs(about), about=about
        )
        self._at = time.monotonic()

    def _runs(self, about: dict[str, str]) -> tuple[str, ...]:
        store = RunStore(runs_dir())
        found: dict[str, None] = {}
        stamps: dict[str, str] = {}
        with contextlib.suppress(ConsoleError):  # `runs` says why
            stamps = stamps_in(store.folder)
        for at, run in enumerate(islice(stamps, MAX_RUNS)):
            found[run] = None
            if at >= MAX_LOOKED_INTO:
                continue
            with contextlib.suppress(ConsoleError, OSError, ValueError):
                with store.open(RunId(run)) as run_file:
                    summary = listed(run_file.record())
                ago = duration_text(max(0.0, time.time() - summary.started))
                words = (summary.name, summary.script.rpartition("/")[2], summary.state)
                about[run] = "  ".join(filter(None, (*words, f"{ago} ago")))
                if summary.name and not run.startswith(summary.name):
                    found[summary.name] = None
                    about.setdefault(summary.name, f"{run}, {summary.state}")
        return tuple(found)
