"""Names for completion that lie in files: hosts, clusters, past runs. Read in a thread; it asks no host."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from itertools import islice

from distconsole.config.hostfile import names_in
from distconsole.config.load import load_config
from distconsole.config.paths import runs_dir
from distconsole.config.ssh_names import own_ssh_config, ssh_config_file, ssh_names
from distconsole.errors import ConsoleError
from distconsole.grammar import Vocabulary
from distconsole.model.names import RunId
from distconsole.model.time_text import date_text, duration_text
from distconsole.runs.store.catalogue import stamps_in
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import listed

PATIENCE_SECONDS = 0.03
FRESH_SECONDS = 10.0
MAX_RUNS = 200
MAX_LOOKED_INTO = 50
MAX_HOSTS = 2000
SHARES = {"start": 0.0, "25%": 0.25, "50%": 0.5, "75%": 0.75, "end": 1.0}
"""Moments of a run, as parts of its time."""


@cache
def known_checks() -> dict[str, str]:
    """Return what each check catches; all their rules are loaded for it, which takes a moment."""
    from distconsole.checks.engine.catalogue import CATALOGUE  # noqa: PLC0415 - not before the first screen

    return {rule.id: rule.catches for rule in CATALOGUE}


@dataclass(frozen=True, slots=True)
class Names:
    """What was found.

    Attributes:
        about: What some of them mean.
        times: By run and by name, when it began (UNIX seconds), and how long it went on.
    """

    hosts: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    about: dict[str, str] = field(default_factory=dict)
    times: dict[str, tuple[float, float]] = field(default_factory=dict)

    def moments(self, run: str) -> dict[str, str]:
        """Return what ``--at`` may be for ``run``, each with its time of day as far as that is known."""
        if run == "last":
            run = next(iter(self.runs), "")
        known = self.times.get(run) or next(
            (each for name, each in self.times.items() if run and name.startswith(run)), None
        )
        moments = dict(Vocabulary().moments(run))
        if known is not None:
            started, seconds = known
            for word, share in SHARES.items():
                moments[word] = date_text(started + share * seconds, "%H:%M:%S")
        return moments


class CompletionIndex:
    """The names, read again when they are asked for and old.

    Args:
        ssh_config: What ``--ssh-config`` says.
    """

    def __init__(self, ssh_config: str | None = None) -> None:
        self._ssh_config = ssh_config
        self._names = Names()
        self._at = float("-inf")
        self._reader: threading.Thread | None = None

    def names(self) -> Names:
        """Return what is known; the first time after at most ``PATIENCE_SECONDS``."""
        reading = self._reader is not None and self._reader.is_alive()
        if not reading and time.monotonic() - self._at > FRESH_SECONDS:
            self._reader = threading.Thread(target=self._read, name="known", daemon=True)
            self._reader.start()
            self._reader.join(PATIENCE_SECONDS)
        return self._names

    def end(self) -> None:
        """Wait a moment for the reader."""
        if self._reader is not None:
            self._reader.join(1.0)

    def _read(self) -> None:
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
        place = ssh_config_file(self._ssh_config, ssh_config, os.environ) or own_ssh_config()
        for alias in ssh_names(place):
            hosts[alias] = None
            about.setdefault(alias, f"in {place.name}")
        times: dict[str, tuple[float, float]] = {}
        runs = self._runs(about, times)
        self._names = Names(tuple(hosts)[:MAX_HOSTS], clusters, runs, about, times)
        self._at = time.monotonic()
        known_checks()

    def _runs(
        self, about: dict[str, str], times: dict[str, tuple[float, float]]
    ) -> tuple[str, ...]:
        store = RunStore(runs_dir())
        found: dict[str, None] = {}
        for at, run in enumerate(islice(stamps_in(store.folder), MAX_RUNS)):
            found[run] = None
            if at >= MAX_LOOKED_INTO:
                continue
            with contextlib.suppress(ConsoleError, OSError, ValueError):
                with store.open(RunId(run)) as run_file:
                    summary = listed(run_file.record())
                ago = duration_text(max(0.0, time.time() - summary.started))
                words = (summary.name, summary.script.rpartition("/")[2], summary.state)
                about[run] = "  ".join(filter(None, (*words, f"{ago} ago")))
                if summary.seconds is not None:
                    times[run] = summary.started, summary.seconds
                    times.setdefault(summary.name or run, times[run])
                if summary.name and not run.startswith(summary.name):
                    found[summary.name] = None
                    about.setdefault(summary.name, f"{run}, {summary.state}")
        return tuple(found)
