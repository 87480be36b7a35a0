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
"""Of the newest runs of the same name so many are opened, to find so many to compare with."""
FIRST_ENTRIES = 1000
"""Of each host: about a minute of eight ranks."""
SAME = ("script", "arguments", "launcher", "nproc", "module", "env")


def find_earlier(store: RunStore, record: RunRecord) -> Earlier | None:
    """Return what is known of runs before ``record``; None without any. A store that refuses costs this alone."""
    found: list[tuple[str, float]] = []
    with contextlib.suppress(ConsoleError, sqlite3.Error, OSError, msgspec.MsgspecError):
        for other in _alike(store, record):
            step_ms = _first_step_ms(other)
            if step_ms is not None:
                found.append((other.path.stem, step_ms))
            if len(found) == COMPARED:
                break
    times = [step_ms for _, step_ms in found]
    return Earlier(found[0][0], len(found), median(times), max(times)) if found else None


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


def _first_step_ms(run_file: RunFile) -> float | None:
    steps = FirstSteps()
    for host in run_file.record().hosts:
        for body in run_file.bodies(host, 1, FIRST_ENTRIES):
            if b'"kind":"window"' in body[:KIND_BYTES]:
                with contextlib.suppress(msgspec.MsgspecError):  # of a newer agent
                    entry = msgspec.json.decode(body, type=threadsafe(WindowEntry))
                    steps.add(entry.rank, entry.step_ms[0] if entry.step_ms else None)
    return steps.median_ms
