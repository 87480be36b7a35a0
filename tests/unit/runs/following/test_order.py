"""Whatever the order in which hosts' journals come, the picture at the end is that of a replay."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from distconsole.errors import LinkLostError
from distconsole.model.names import HostName, RunId
from distconsole.model.run_events import RunEvents
from distconsole.rpc.frames import Entries
from distconsole.runs.following import feed as feeds
from distconsole.runs.following import follow as follows
from distconsole.runs.following.follow import follow
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import stored_timeline
from distconsole.runs.timeline import RunTimeline
from fakes.journals import STEPS_A_WINDOW, Journal
from fakes.streams import PlayedJournal, Step

PLAYED = Journal(hosts=3, per_host=2, seconds=90, slow=3, lockstep=True)
RECORD = RunRecord(RunId(PLAYED.run), started=PLAYED.started, hosts=PLAYED.names)
LAST_STEP = PLAYED.seconds * STEPS_A_WINDOW - 1
APART = 0.13
"""Seconds between what hosts tell of the same moment: which is first is certain."""


class Late(PlayedJournal):
    """Has nothing to tell until it is let go."""

    def __init__(self, script: list[Step], clock_offset: float) -> None:
        super().__init__([*script, None], clock_offset)
        self._waits = True

    def take(self, timeout: float | None) -> Entries | None:
        return None if self._waits else super().take(timeout)

    def let_go(self) -> None:
        self._waits = False
        self._listener()


class Watcher:
    """Follows a run and folds what it is told, as a front end does."""

    def __init__(self) -> None:
        self.timeline = RunTimeline()
        self.retold = 0
        self.unordered = False

    def retell(self, events: Iterator[RunEvents]) -> None:
        assert self.unordered
        self.retold += 1
        self.timeline = RunTimeline()
        for event in events:
            self.timeline.apply(event)

    def note(self, _behind: bool, unordered: bool) -> None:
        self.unordered = unordered

    def follow(self, store: RunStore, open_stream: Any, late: Late | None = None) -> None:
        for event in follow(store, RECORD, open_stream, note=self.note, retell=self.retell):
            self.timeline.apply(event)
            if late is not None and self.timeline.steps == LAST_STEP:
                late.let_go()


def told_by(host: str) -> list[dict[str, Any]]:
    return [json.loads(each.body) for each in PLAYED.entries() if each.host == host]


def pieces(entries: list[dict[str, Any]], dice: random.Random, most: int) -> list[Step]:
    cuts = sorted({0, len(entries), *(dice.randrange(len(entries)) for _ in range(most))})
    return [{"entries": entries[begin:end]} for begin, end in pairwise(cuts)]


def assert_as_replayed(timeline: RunTimeline, store: RunStore, *, unended: bool = False) -> None:
    with store.open(RECORD.run) as run_file:
        replayed = stored_timeline(run_file)
    for each in (timeline, replayed):
        each.close()
    assert timeline.throughput.points() == replayed.throughput.points()
    assert timeline.step_ms.series.points() == replayed.step_ms.series.points()
    assert timeline.gpu_use.series.points() == replayed.gpu_use.series.points()
    assert timeline.metrics["loss"].points() == replayed.metrics["loss"].points()
    assert timeline.best == replayed.best
    assert timeline.metric_last == replayed.metric_last
    assert timeline.mean_samples_s == replayed.mean_samples_s
    assert timeline.step_times == replayed.step_times
    assert timeline.findings == replayed.findings
    if not unended:
        assert timeline.end == replayed.end is not None
        assert {rank: asdict(view) for rank, view in timeline.ranks.items()} == {
            rank: asdict(view) for rank, view in replayed.ranks.items()
        }


@pytest.mark.parametrize("cuts", [(0, 0, 0), (9, 9, 9), (0, 40, 3)])
def test_pasts_of_several_hosts_are_told_in_the_order_of_time(
    tmp_path: Path, cuts: tuple[int, ...]
) -> None:
    store, dice, watcher = RunStore(tmp_path), random.Random(1), Watcher()
    journals = {
        host: PlayedJournal([*pieces(told_by(host), dice, cuts[place]), None], APART * place)
        for place, host in enumerate(PLAYED.names)
    }
    watcher.follow(store, lambda host, _after, _by: journals[host])
    assert_as_replayed(watcher.timeline, store)
    assert watcher.retold == 0
    assert watcher.timeline.metric_last["loss"].ranks == PLAYED.world


@pytest.mark.parametrize("late", range(3))
@pytest.mark.parametrize("broken", [False, True])
def test_a_past_that_comes_after_the_others_is_told_again_with_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int, broken: bool
) -> None:
    monkeypatch.setattr(feeds, "HOLD_SECONDS", 0.1)
    store, dice, watcher = RunStore(tmp_path), random.Random(late), Watcher()
    scripts = [pieces(told_by(host), dice, 9) for host in PLAYED.names]
    middle = len(scripts[late]) // 2 if broken else 0
    held = Late(scripts[late][middle:], APART * late)
    connections = {
        host: [PlayedJournal([*scripts[place], None], APART * place)]
        for place, host in enumerate(PLAYED.names)
    }
    connections[PLAYED.names[late]] = [held]
    if broken:
        first = PlayedJournal(
            [*scripts[late][:middle], LinkLostError("cable pulled")], APART * late
        )
        connections[PLAYED.names[late]] = [first, held]
    watcher.follow(store, lambda host, _after, _by: connections[host].pop(0), held)
    assert_as_replayed(watcher.timeline, store)
    assert watcher.retold
    assert not watcher.unordered


def test_a_host_that_never_comes_leaves_the_picture_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follows, "GIVE_UP_SECONDS", 0.0)
    store, watcher = RunStore(tmp_path), Watcher()

    def open_stream(host: HostName, _after: int, _by: str) -> PlayedJournal:
        if host == PLAYED.names[2]:
            raise LinkLostError("no route to host")
        place = PLAYED.names.index(host)
        return PlayedJournal([{"entries": told_by(host)}, None], APART * place)

    watcher.follow(store, open_stream)
    assert_as_replayed(watcher.timeline, store, unended=True)
    assert watcher.retold == 0
