"""How fast earlier runs of the same script, arguments and hosts were at their beginning, for ``detectors.all_ranks``."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from statistics import median
from typing import Any

import msgspec

from distconsole.errors import ConsoleError
from distconsole.model.decoding import threadsafe
from distconsole.model.names import RunId
from distconsole.rpc.frames import WindowEntry
from distconsole.runs.detectors.all_ranks import Earlier, FirstSteps
from distconsole.runs.store.catalogue import stamps_in
from distconsole.runs.store.planned import stored_plan
from distconsole.runs.store.run_file import KIND_BYTES, RunFile, RunRecord
from distconsole.runs.store.store import RunStore

LOOKED_AT, COMPARED = 8, 3
"""Number of runs of the same name, newest first, that are opened to find runs to compare with."""
FIRST_ENTRIES = 1000
"""Of each host: about a minute of eight ranks."""
SAME = ("script", "arguments", "launcher", "nproc", "module", "env")


def find_earlier(store: RunStore, record: RunRecord) -> Earlier | None:
    """Return figures of runs before ``record``; None without any. A store that refuses costs this alone."""
    found: list[tuple[str, float, float | None]] = []
    with contextlib.suppress(ConsoleError, sqlite3.Error, OSError, msgspec.MsgspecError):
        for other in _alike(store, record):
            steps = _first_steps(other)
            if steps.median_ms is not None:
                found.append((other.path.stem, steps.median_ms, steps.own_ms))
            if len(found) == COMPARED:
                break
    if not found:
        return None
    times, owns = [each[1] for each in found], [each[2] for each in found]
    own_ms = None if None in owns else max(own for own in owns if own is not None)
    return Earlier(found[0][0], len(found), median(times), max(times), own_ms)


def _alike(store: RunStore, record: RunRecord) -> Iterator[RunFile]:
    """Yield the runs of the same request and the same ranks, the newest first, each open until the next."""
    name, mine = record.run.rsplit("-", 2)[0], _what_it_is(record)
    named = [run for run in stamps_in(store.folder) if run.rsplit("-", 2)[0] == name]
    for run in [run for run in named if run != record.run][:LOOKED_AT]:
        with store.open(RunId(run)) as run_file:
            if _what_it_is(run_file.record()) == mine:
                yield run_file


def _what_it_is(record: RunRecord) -> tuple[Any, ...]:
    plan = stored_plan(record)
    asked = msgspec.json.decode(record.request) if record.request else {}
    world = plan.world_size if plan else 0
    return (record.hosts, world, *(asked.get(name) for name in SAME))


def _first_steps(run_file: RunFile) -> FirstSteps:
    steps = FirstSteps()
    for host in run_file.record().hosts:
        for body in run_file.bodies(host, 1, FIRST_ENTRIES):
            if b'"kind":"window"' in body[:KIND_BYTES]:
                with contextlib.suppress(msgspec.MsgspecError):  # of a newer agent
                    entry = msgspec.json.decode(body, type=threadsafe(WindowEntry))
                    waited = entry.waited_ms[0] if entry.waited_ms else None
                    steps.add(entry.rank, entry.step_ms[0] if entry.step_ms else None, waited)
    return steps
