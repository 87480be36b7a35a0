"""The run of a line that names none."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, TypeVar

from distconsole.config.paths import runs_dir
from distconsole.errors import UsageError
from distconsole.model import requests as ask
from distconsole.model.names import RunId
from distconsole.model.time_text import age_text
from distconsole.model.verbs import verb_of
from distconsole.runs.store.store import RunStore

AnyRequest = TypeVar("AnyRequest", bound=ask.Request)
MAX_LISTED = 5
MAX_OPENED = 50
"""Runs that are looked into for such as have no end."""


def name_run(request: AnyRequest) -> tuple[AnyRequest, str]:
    """Return ``request`` about the newest run, and that run, if it names none.

    The newest of hosts that are named only they know. Raises UsageError for a verb that changes something: its run has to be named.
    """
    found: Any = request
    if not isinstance(request, ask.OfRun | ask.Export) or request.run != "":
        return request, ""
    if getattr(request, "looks_for_jobs", False):
        return request, ""
    store = RunStore(runs_dir())
    known = sorted(store.names(), reverse=True)
    if isinstance(found, ask.Stop | ask.Rerun):
        verb = verb_of(found).name
        raise UsageError(f"{verb} needs a RUN", _choices(verb, known, store))
    if not known or (isinstance(found, ask.Attach) and found.where.names_hosts):
        return replace(found, run="last"), ""
    started, name, run = known[0]
    called = f" ({name})" if name else ""
    ago = age_text(max(0.0, time.time() - started))
    return replace(found, run=run), f"the newest run: {run}{called}, started {ago} ago"


def _choices(verb: str, known: list[tuple[float, str, RunId]], store: RunStore) -> str:
    """Return lines that name a run each: for ``stop`` those without an end."""
    lines = []
    for started, _, run in known[:MAX_OPENED]:
        if verb == "stop" and store.record(run).end:
            continue
        ago = age_text(max(0.0, time.time() - started))
        lines.append(f"distconsole {verb} {run}  (started {ago} ago)")
    none = "every run that was started from here is over" if known else "there is none yet"
    return "\n".join(lines[:MAX_LISTED]) or f"{none}; distconsole runs lists all"
