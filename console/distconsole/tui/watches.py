"""The operator's conditions: each gives a message when it becomes true, and one when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from distconsole.expression import Condition, ExpressionError, Fields, parse_condition
from distconsole.model.names import join_some
from distconsole.model.time_text import duration_text
from distconsole.runs.conditions.load_fields import LOAD_FIELDS, LoadRow
from distconsole.runs.conditions.rank_fields import RANK_FIELDS, RankOfRun, ranks_of
from distconsole.tui.tasks import RequestTask

LOOK_SECONDS = 1.0
NAMED = 3
"""Ranks or GPUs that a message names."""
MAX_WATCHES = 32

LoadRows = Callable[[RequestTask], list[LoadRow]]


@dataclass(slots=True)
class Watch:
    """One condition; ``since`` is when it became true, ``seen`` the task and version of the last look."""

    number: int
    condition: Condition[Any]
    of_ranks: bool
    since: float | None = None
    seen: tuple[int, int] = (0, -1)

    @property
    def words(self) -> str:
        return f"watch {self.number} '{self.condition.text}'"


class Watches:
    def __init__(self, load_rows: LoadRows, monotonic: Callable[[], float]) -> None:
        self.kept: list[Watch] = []
        self._load_rows = load_rows
        self._monotonic = monotonic
        self._numbers = count(1)
        self._looked = float("-inf")

    def add(self, text: str, *, hosts_first: bool) -> str:
        """Watch ``text`` on the run or the hosts, by its fields; return a message, or raise UsageError."""
        if len(self.kept) >= MAX_WATCHES:
            return f"{MAX_WATCHES} watches are enough: unwatch NUMBER ends one"
        tables: list[tuple[Fields[Any], bool]] = [(RANK_FIELDS, True), (LOAD_FIELDS, False)]
        if hosts_first:
            tables.reverse()
        try:
            fields, of_ranks = tables[0]
            condition = parse_condition(text, fields)
        except ExpressionError as error:
            fields, of_ranks = tables[1]
            try:
                condition = parse_condition(text, fields)
            except ExpressionError:
                raise error from None
        watch = Watch(next(self._numbers), condition, of_ranks)
        self.kept.append(watch)
        self.hurry()
        return f"{watch.words} of {fields.of}: unwatch {watch.number} ends it"

    def remove(self, which: str) -> str:
        gone = [watch for watch in self.kept if which in ("", "all", str(watch.number))]
        if not gone or (not which and len(gone) > 1):
            return self.listed()
        self.kept = [watch for watch in self.kept if watch not in gone]
        return f"no more: {', '.join(watch.words for watch in gone)}"

    def listed(self) -> str:
        states = (f"{watch.words}: {'not ' * (watch.since is None)}true" for watch in self.kept)
        return "\n".join(states) or "nothing is watched: watch EXPR, such as: watch state=failed"

    def hurry(self) -> None:
        self._looked = float("-inf")

    def look(self, run: RequestTask | None, load: RequestTask | None) -> list[str]:
        """Return the watches' messages, at most once a second."""
        now = time.monotonic()
        if not self.kept or now - self._looked < LOOK_SECONDS:
            return []
        self._looked = now
        said = (self._look(watch, run if watch.of_ranks else load) for watch in self.kept)
        return [line for line in said if line]

    def _look(self, watch: Watch, task: RequestTask | None) -> str:
        if task is None or watch.seen == (id(task), task.version):
            return ""
        with task.lock:
            if id(task) != watch.seen[0]:
                watch.since = None  # of another run
            watch.seen = id(task), task.version
            rows: Sequence[Any] = ranks_of(task.run) if watch.of_ranks else self._load_rows(task)
            found = watch.condition.matching(rows)
            is_all = len(found) == len(rows) > NAMED
            words = f"all {len(rows)}" if is_all else join_some(map(_name, found), NAMED)
        was, now = watch.since, self._monotonic()
        watch.since = None if not found else now if was is None else was
        if found and was is None:
            return f"▲ {watch.words}: {words}"
        if not found and was is not None:
            return f"▽ {watch.words} has ended after {duration_text(now - was)}"
        return ""


def _name(row: RankOfRun | LoadRow) -> str:
    if isinstance(row, RankOfRun):
        return f"rank {row.view.rank} on {row.view.host}"
    return row.host if row.gpu is None else f"GPU {row.gpu.gpu} of {row.host}"
