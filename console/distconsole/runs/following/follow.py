"""A run's events as they happen: stored history first, then the nodes' journals to their end."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from distconsole.model.decoding import threadsafe
from distconsole.model.names import HostName
from distconsole.model.run_events import RunEnded, RunEvents
from distconsole.rpc.frames import EndEntry, JournalEntry, LogEntry
from distconsole.runs.following.feed import Delivered, JournalFeed, OpenStream
from distconsole.runs.following.findings import full_finding, store_finding
from distconsole.runs.following.waiting_lines import MOST_BYTES, WaitingLine, WaitingLines
from distconsole.runs.reduce import RunReducer
from distconsole.runs.store.keeping import Keeping
from distconsole.runs.store.keeping import encode_entry as encode_entry
from distconsole.runs.store.place import BEGINNING, Place
from distconsole.runs.store.planned import reducer_of
from distconsole.runs.store.run_file import KIND_BYTES, RunFile, RunRecord, StoredEntry
from distconsole.runs.store.store import RunStore

POLL_SECONDS = 0.5
GIVE_UP_SECONDS = 15.0
"""How long a host without connection is awaited once the others have said how the run ended."""


def replay(
    run_file: RunFile,
    reducer: RunReducer,
    spoilt: Counter[str] | None = None,
    without: tuple[str, ...] = (),
    last: dict[HostName, int] | None = None,
    lines: WaitingLines | None = None,
) -> Iterator[RunEvents]:
    """Yield the events of the entries that are stored; those that cannot be read are counted.

    The end comes last: a host that the run went on without may have told more since.

    Args:
        spoilt: By host how many of them there are.
        without: Kinds of entries that nobody wants; most of them are not even decoded.
        last: Takes the number of the last entry of each host.
        lines: Takes what was printed, until a host's end, so that all else comes first.
    """
    unwanted = re.compile(f'"kind":"(?:{"|".join(without)})"'.encode()) if without else None
    entries = run_file.entries()
    for stored in entries if last is None else _note_last(entries, last):
        if unwanted is not None and unwanted.search(stored.body, 0, KIND_BYTES):
            continue
        try:
            entry = decode_entry(stored.body)
        except ValueError:
            if spoilt is not None:
                spoilt[stored.host] += 1
            continue
        for told in _in_turn(WaitingLine(stored.host, entry, stored.t), lines):
            for event in reducer.feed(*told):
                if not isinstance(event, RunEnded):
                    yield event
    if reducer.ended is not None:
        yield reducer.ended


def _in_turn(told: WaitingLine, lines: WaitingLines | None) -> Iterator[WaitingLine]:
    """Yield what is to be folded now: lines wait, where they may, for the end of a host."""
    if lines is not None and isinstance(told.entry, LogEntry):
        lines.put(told.host, told.entry, told.t)
        return
    while lines and isinstance(told.entry, EndEntry):
        yield lines.take()
    yield told


def follow(
    store: RunStore,
    record: RunRecord,
    open_stream: OpenStream,
    left: Callable[[], bool] = lambda: False,
    until: Mapping[HostName, Place] | None = None,
    over: Callable[[], bool] = lambda: False,
    limit_bytes: int | None = None,
    *,
    whole: bool = False,
) -> Iterator[RunEvents]:
    """Yield a run's events from its beginning, and keep its entries.

    Ends after ``RunEnded``, when ``left`` says so, or at the entries of ``until``. What is stored is not fetched again, and
    entries that come twice are counted once.

    Args:
        store: Where entries are kept.
        record: The run; its hosts' ends make its end.
        open_stream: How to reach a host's journal.
        left: Asked at least twice a second: whether nobody wants to see more.
        until: Host to the place in its journal up to which to read; None reads to the end.
        limit_bytes: What may be stored of it; then what ranks print is not, and all else is.
        whole: Every printed line is yielded, each in its place, as it is to ``until``. Else records pass the lines of which
            the consumer has too many, and some of these may be left out, which is said; they are stored.
    """
    reducer = reducer_of(record)
    with store.create(record) as run_file:
        # Not what the file has by now: somebody else who follows the run may have written on.
        places, stored = run_file.places(), {HostName(host): 0 for host in record.hosts}
        lines = None if whole or until is not None else WaitingLines()
        is_long = not record.end and run_file.path.stat().st_size > MOST_BYTES
        yield from replay(run_file, reducer, last=stored, lines=lines if is_long else None)
        if reducer.ended is not None:
            _keep_end(run_file, reducer)
            return
        places = {host: _place_of(places.get(host), last) for host, last in stored.items()}
        seen = dict(places)
        if until is not None and _has_reached(seen, until):
            return
        run_file.let_go()
        failure, told_full = "", False
        with Keeping(run_file.path, limit_bytes) as keeping:
            feed = JournalFeed(
                record.run, open_stream, places, keeping.keep, keeping.know_again, lines
            )
            try:
                for event in _live(feed, reducer, over, seen):
                    if event is not None:
                        yield event
                    elif keeping.failure and not failure:
                        failure = keeping.failure
                        yield store_finding(record.run, failure)
                    elif keeping.full and not told_full:
                        told_full = True
                        yield full_finding(record.run, limit_bytes or 0)
                    elif left() or (until is not None and _has_reached(seen, until)):
                        break
            finally:
                feed.close()
                keeping.close()
                # Of a run without an end, attach fetches what is missing.
                why = keeping.failure or _keep_end(run_file, reducer)
        if why and not failure:
            yield store_finding(record.run, why)
        if keeping.full and not told_full:
            yield full_finding(record.run, limit_bytes or 0)


def known_places(run_file: RunFile, hosts: Sequence[HostName]) -> dict[HostName, Place]:
    """Return how far the journals of ``hosts`` are stored."""
    places = run_file.places()
    return {host: _place_of(places.get(host), run_file.last_seq(host)) for host in hosts}


def _place_of(place: Place | None, stored: int) -> Place:
    """Return how far a journal is known whose last stored entry has that number."""
    if place is None:
        return Place(stored)  # the first version followed it
    return place.at(max(place.seq, stored - place.shift), place.journal)


def _note_last(entries: Iterable[StoredEntry], last: dict[HostName, int]) -> Iterator[StoredEntry]:
    for stored in entries:
        if stored.host in last:
            last[stored.host] = stored.seq
        yield stored


def decode_entry(body: bytes) -> JournalEntry:
    """Return a stored entry as a value.

    Raises:
        ValueError: if it is none: half written, damaged, or of a newer version.
    """
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # NaN and Infinity are what a diverged loss looks like; only the standard library reads them.
        try:
            entry: JournalEntry = msgspec.convert(json.loads(body), threadsafe(JournalEntry))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(str(error)) from None
        return entry


_DECODER: msgspec.json.Decoder[JournalEntry] = msgspec.json.Decoder(threadsafe(JournalEntry))


def _keep_end(run_file: RunFile, reducer: RunReducer) -> str:
    """Keep how the run ended, if it did; return why that could not be, or nothing."""
    if reducer.ended is not None:
        try:
            run_file.write_end(msgspec.json.encode(reducer.ended))
        except sqlite3.Error as error:
            return f"{run_file.path} cannot be written: {error}"
    return ""


def _has_reached(seen: Mapping[HostName, Place], until: Mapping[HostName, Place]) -> bool:
    """Whether what is known goes as far; a number of another writer's stands for another entry."""
    return all(
        seen.get(host, BEGINNING).seq >= last.seq
        and last.journal in ("", seen.get(host, BEGINNING).journal)
        for host, last in until.items()
    )


def _live(
    feed: JournalFeed,
    reducer: RunReducer,
    over: Callable[[], bool],
    seen: dict[HostName, Place],
) -> Iterator[RunEvents | None]:
    """Yield events to the run's end; None when for a while nothing came, or after a delivery."""
    while reducer.ended is None:
        match news := feed.next(POLL_SECONDS):
            case Delivered():
                for entry, t in zip(news.entries, news.times, strict=True):
                    yield from reducer.feed(news.host, entry, t)
                seen[news.host] = news.place
            case None:
                seen.update(feed.given_out())
                if _nobody_will_answer(feed, reducer, over):
                    yield from reducer.lost_for_good(time.time())
            case _:
                yield news
        yield None


def _nobody_will_answer(feed: JournalFeed, reducer: RunReducer, over: Callable[[], bool]) -> bool:
    """Whether the hosts that are missing will not tell more than is known.

    While no host has said how the run ended, and nobody else that it did, it may be going on
    unseen, and is awaited.
    """
    if feed.exhausted:
        return True
    waiting = [HostName(host) for host in reducer.waiting]
    return feed.lost_seconds(waiting) > GIVE_UP_SECONDS and (reducer.judged or over())
