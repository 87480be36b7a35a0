"""``compare``: stored runs side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from distconsole.errors import UsageError
from distconsole.formats.settings import Facts, settings_of_run
from distconsole.model.comparison import LETTERS
from distconsole.model.decoding import threadsafe
from distconsole.model.events import Event, Narration, RunsCompared
from distconsole.model.requests import Compare, Where
from distconsole.operations.sessions import SessionSource
from distconsole.operations.stored.history import fetch_news
from distconsole.operations.watching import decode_request
from distconsole.runs.compare.figures import Compared, RunStatistics, compare, curves_of
from distconsole.runs.store.planned import reducer_of, stored_plan
from distconsole.runs.store.run_file import RunFile
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import stored_events, summarise


def compare_runs(request: Compare, sessions: SessionSource, store: RunStore) -> Iterator[Event]:
    """Read the runs, say how far that is, and compare them with the first.

    Hosts of a run without an end are asked for newer entries and the run's state.

    Raises UsageError if they are fewer than two or more than eight, or one is named twice;
    RunNotFoundError if there is no such run.
    """
    runs = [store.resolve(wanted) for wanted in request.runs]
    if not 2 <= len(runs) <= len(LETTERS):
        raise UsageError(
            f"compare takes 2 to {len(LETTERS)} runs, not {len(runs)}",
            "distconsole runs lists them",
        )
    twice = next((run for at, run in enumerate(runs) if run in runs[:at]), None)
    if twice is not None:
        raise UsageError(f"{twice} is named twice", "name different runs")
    read = []
    for place, run in enumerate(runs):
        yield Narration(text=f"reading {LETTERS[place]}, {run}")
        record = store.record(run)
        state = "" if record.end else (yield from fetch_news(record, Where(), sessions, store))
        with store.open(run) as run_file:
            read.append(_read(run_file, state))
    yield RunsCompared(comparison=compare(read), curves=curves_of(read))


def _read(run_file: RunFile, state: str) -> Compared:
    """Read a run; ``state`` is the one that its hosts report, empty if none does."""
    statistics, record = RunStatistics(), run_file.record()
    reducer = reducer_of(record)
    statistics.timeline.share(reducer.stragglers)
    for event in stored_events(run_file, reducer=reducer):
        statistics.apply(event)
    statistics.close()
    facts: Facts = {}
    with contextlib.suppress(msgspec.MsgspecError):
        if record.facts:
            facts = msgspec.json.decode(record.facts, type=threadsafe(dict[str, dict[str, str]]))
    settings = settings_of_run(
        stored_plan(record), decode_request(record), facts, statistics.gpu_names
    )
    summary = summarise(record, statistics.timeline)
    if state and summary.state == "unknown":
        summary = msgspec.structs.replace(summary, state=state)
    return Compared(summary, statistics, settings)
