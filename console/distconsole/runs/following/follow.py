"""A run's events as they happen: stored history first, then the nodes' journals to their end."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import assert_never

import msgspec

from distconsole.model.decoding import threadsafe
from distconsole.model.findings import Severity
from distconsole.model.names import HostName, RunId
from distconsole.model.run_events import LinkChanged, RunEnded, RunEvents, RunFinding
from distconsole.rpc.frames import EndEntry, JournalEntry, LogEntry
from distconsole.runs.following.feed import JournalFeed, OpenStream
from distconsole.runs.following.news import (
    Delivered,
    JournalGap,
    JournalLoss,
    JournalTrouble,
    LinesLeftOut,
    LinkNews,
    News,
)
from distconsole.runs.following.waiting_lines import MOST_BYTES, WaitingLine, WaitingLines
from distconsole.runs.reduce import RunReducer
from distconsole.runs.store.keeping import Keeping
from distconsole.runs.store.keeping import encode_entry as encode_entry
from distconsole.runs.store.place import BEGINNING, Place
from distconsole.runs.store.planned import reducer_of
from distconsole.runs.store.run_file import KIND_BYTES, RunFile, RunRecord, StoredEntry
from distconsole.runs.store.store import RunStore
from distconsole.ssh.plain import plain_text

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
    for stored in entries if last is None else _noted(entries, last):
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
        places = {host: _known(places.get(host), last) for host, last in stored.items()}
        seen = dict(places)
        if until is not None and _reached(seen, until):
            return
        run_file.let_go()
        failure, told_full = "", False
        with Keeping(run_file.path, limit_bytes) as keeping:
            feed = JournalFeed(open_stream, places, keeping.keep, keeping.know_again, lines)
            try:
                for event in _live(record.run, feed, (reducer, over), seen):
                    if event is not None:
                        yield event
                    elif keeping.failure and not failure:
                        failure = keeping.failure
                        yield _store_finding(record.run, failure)
                    elif keeping.full and not told_full:
                        told_full = True
                        yield _full_finding(record.run, limit_bytes or 0)
                    elif left() or (until is not None and _reached(seen, until)):
                        break
            finally:
                feed.close()
                keeping.close()
                # Of a run without an end, attach fetches what is missing.
                why = keeping.failure or _keep_end(run_file, reducer)
        if why and not failure:
            yield _store_finding(record.run, why)
        if keeping.full and not told_full:
            yield _full_finding(record.run, limit_bytes or 0)


def known_places(run_file: RunFile, hosts: Sequence[HostName]) -> dict[HostName, Place]:
    """Return how far the journals of ``hosts`` are stored."""
    places = run_file.places()
    return {host: _known(places.get(host), run_file.last_seq(host)) for host in hosts}


def _known(place: Place | None, stored: int) -> Place:
    """Return how far a journal is known whose last stored entry has that number."""
    if place is None:
        return Place(stored)  # the first version followed it
    return place.at(max(place.seq, stored - place.shift), place.journal)


def _noted(entries: Iterable[StoredEntry], last: dict[HostName, int]) -> Iterator[StoredEntry]:
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


def _reached(seen: Mapping[HostName, Place], until: Mapping[HostName, Place]) -> bool:
    """Whether what is known goes as far; a number of another writer's stands for another entry."""
    return all(
        seen.get(host, BEGINNING).seq >= last.seq
        and last.journal in ("", seen.get(host, BEGINNING).journal)
        for host, last in until.items()
    )


def _live(
    run: RunId,
    feed: JournalFeed,
    folding: tuple[RunReducer, Callable[[], bool]],
    seen: dict[HostName, Place],
) -> Iterator[RunEvents | None]:
    """Yield events to the run's end; None when for a while nothing came, or after a delivery."""
    reducer, over = folding
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
                if isinstance(news, JournalLoss):
                    seen[news.host] = Place(news.first - 1)
                yield _event_of(run, news)
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


def _event_of(run: RunId, news: News) -> RunEvents:
    match news:
        case LinkNews():
            return LinkChanged(
                t=news.t, run=run, host=news.host, connected=news.connected, reason=news.reason
            )
        case JournalGap():
            return _gap_finding(run, news)
        case JournalLoss():
            return _loss_finding(run, news)
        case JournalTrouble():
            return _trouble_finding(run, news)
        case LinesLeftOut():
            return _left_out_finding(run, news)
        case _:
            assert_never(news)


def _gap_finding(run: RunId, gap: JournalGap) -> RunFinding:
    return RunFinding(
        t=gap.t,
        run=run,
        check="run.journal_gap",
        severity=Severity.WARN,
        hosts=(gap.host,),
        summary=f"{gap.last - gap.first + 1} journal entries of {gap.host} are missing",
        seen=f"entries {gap.first} to {gap.last}",
        expected="every number from 1 on",
    )


def _loss_finding(run: RunId, loss: JournalLoss) -> RunFinding:
    host, lost = loss.host, loss.last - loss.first + 1
    entries = f"{lost} entries" if lost > 1 else "entry"
    return RunFinding(
        t=loss.t,
        run=run,
        check="run.journal_lost",
        severity=Severity.WARN if loss.known else Severity.INFO,
        hosts=(host,),
        summary=f"{host} has lost the last {entries} of its journal; what it told is kept here"
        if loss.known
        else f"the journal of {host} is read anew from its beginning: who wrote what is "
        "kept here is not known",
        seen=f"entries {loss.first} to {loss.last}",
        expected="a node keeps what it has told",
        hint=f"a loss of power or a failed disk does this: look at the kernel's log and the uptime of {host}; "
        "nobody else can fetch these entries",
    )


def _trouble_finding(run: RunId, trouble: JournalTrouble) -> RunFinding:
    host, why = trouble.host, plain_text(trouble.why)
    if not why:
        return RunFinding(
            t=trouble.t,
            run=run,
            check="run.journal",
            severity=Severity.INFO,
            hosts=(host,),
            summary=f"{host} keeps the record of this run again",
        )
    return RunFinding(
        t=trouble.t,
        run=run,
        check="run.journal",
        severity=Severity.WARN,
        hosts=(host,),
        summary=f"{host} cannot keep the record of this run: {why}",
        expected="room in the node folder",
        hint=f"{_for_a_disk(why)} on {host}; its ranks go on unseen, and what they did is told then",
    )


def _left_out_finding(run: RunId, left_out: LinesLeftOut) -> RunFinding:
    rank = left_out.rank
    who, ranks = (
        ("what starts the ranks", "") if rank is None else (f"rank {rank}", f" --rank {rank}")
    )
    return RunFinding(
        t=left_out.t,
        run=run,
        check="run.output_left_out",
        severity=Severity.WARN,
        hosts=(left_out.host,),
        summary=f"lines of {who} on {left_out.host} come faster than this console takes them: some "
        "are not shown, and a line says so where they are missing",
        hint=f"they are kept: distconsole logs {run}{ranks}",
    )


def _for_a_disk(why: str) -> str:
    """Return what to do about a disk that refused to be written for ``why``: more room helps a full one only."""
    full = any(words in why.lower() for words in ("space", "full", "quota"))
    return "make room" if full else "look at the disk and its mount"


def _store_finding(run: RunId, failure: str) -> RunFinding:
    return RunFinding(
        t=time.time(),
        run=run,
        check="run.store",
        severity=Severity.WARN,
        summary="the rest of this run is not kept here",
        seen=failure,
        hint=f"{_for_a_disk(failure)} on this machine; the nodes keep their journals, distconsole attach fetches them again",
    )


def _full_finding(run: RunId, limit_bytes: int) -> RunFinding:
    return RunFinding(
        t=time.time(),
        run=run,
        check="run.store_limit",
        severity=Severity.WARN,
        summary="what its ranks print from here on is shown, and not kept on this machine",
        seen=f"the run takes {limit_bytes // (1 << 20)} MiB here, its limit",
        hint="steps, metrics, findings and the end are kept; --store-limit allows more",
    )
