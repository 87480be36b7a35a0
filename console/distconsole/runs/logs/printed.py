"""Progress that ranks print, and their loss if the hook sees none."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import UNSET

from distconsole.model.run_events import LogLine, Metric
from distconsole.rpc.frames import LogEntry
from distconsole.runs.logs.slices import LogLines
from distconsole.runs.points import Point, PointReducer

LOOKED_AT_CHARS = 200
PROGRESS = re.compile(
    r"\b(epoch|step|steps|iter|iteration|batch|round)\b[\s:#=\[(]{0,3}(\d{1,12})\s{0,2}(?:/|of)\s{0,2}(\d{1,12})\b",
    re.IGNORECASE,
)
TOTAL = "total_steps"
"""Metric by which a script may announce its number of steps."""

PRINTED = "printed "
"""Begins the name of a metric that was read from lines."""
MAX_PRINTED_NAMES = 8
MAX_POINTS = 32
"""Values of one metric that are taken of one slice of a log, the last ones."""
WAIT_SECONDS = 10.0
"""Seconds after the first printed loss in which the hook may still report one; then printed losses are used."""
MAX_HELD = 512
"""Slices of logs whose losses are kept until then."""

_PREFIXES = "train(?:ing)?|val(?:id(?:ation)?)?|test|eval|total|mean|avg|average|running|lm|gen(?:erator)?|disc(?:riminator)?|g|d"
LOSS = re.compile(
    rf"(?<![\w.])((?:(?:{_PREFIXES})\s|\w{{1,24}}[_/-])?loss(?:[_/-](?!scal|weight|coef|fn\b)\w{{1,24}})?)"
    r"['\"]?(?:\s{0,4}[:=]|\s)\s{0,8}['\"]?(?:tensor\()?"
    r"([-+]?(?:\d{1,30}(?:\.\d{0,30})?(?:e[-+]?\d{1,3})?|nan))(?![\w/%]|[.,]\d)",
    re.IGNORECASE | re.ASCII,
)
"""``loss 4.18``, ``train_loss=4.18``, ``Loss_D: 0.3``, ``'loss': 4.18``; neither ``loss scale: 1024`` nor ``loss_scale=1``."""
AT = re.compile(
    r"\b(?:global_)?(?:steps?|iter|iteration|batch)\b['\"]?[\s:=#\[(]{0,4}(\d{1,12})\b",
    re.IGNORECASE | re.ASCII,
)
PLACE = re.compile(r"[\[|]\s{0,8}(\d{1,12})\s?/\s{0,8}\d{1,12}", re.ASCII)
"""``[ 10/500]``, or the place in a progress bar; the last one in a line is the innermost."""
MAY_BE_NAN = frozenset({"loss", "train loss", "training loss"})
"""Names whose NaN is reported; a validation without samples or a best loss may be NaN in a good run."""


class PrintedLosses:
    """The lines of a run, and the losses that ranks print in them, if ``points`` has none of the hook or of ``report``.

    A value belongs to the step that its line names, else to the one after the value before.
    """

    def __init__(self, run: str, points: PointReducer) -> None:
        self._lines = LogLines(run)
        self._points = points
        self._names: dict[str, None] = {}
        self._last: dict[tuple[int, str], Point] = {}
        self._held: list[tuple[int, dict[str, list[Point]]]] | None = []
        """Printed losses while the hook may still report one; None once it has reported none in time."""
        self._since = math.inf

    def feed(self, host: str, entry: LogEntry, t: float) -> Iterator[LogLine | Metric]:
        """Yield the lines that an entry of ``host`` ends at ``t`` (UNIX seconds), and the losses in them."""
        found: dict[str, list[Point]] = defaultdict(list)
        for event in self._lines.feed(host, entry, t):
            yield event
            if event.rank is not UNSET and ("oss" in event.line or "OSS" in event.line):
                self._read(event.rank, event.line[: 2 * LOOKED_AT_CHARS], found)
        if found and entry.rank is not None:
            yield from self._take(entry.rank, {n: ps[-MAX_POINTS:] for n, ps in found.items()}, t)

    def flush(self, t: float, host: str | None = None) -> Iterator[LogLine | Metric]:
        """Yield the last lines without an end, of one host or of all; of all, also those held back."""
        yield from self._lines.flush(t, host)
        if host is None:
            yield from self._release(t)

    def _read(self, rank: int, line: str, found: dict[str, list[Point]]) -> None:
        named = AT.search(line)
        step = named[1] if named else next(iter(PLACE.findall(line)[-1:]), None)
        for words, number in LOSS.findall(line):
            name, value = re.sub(r"[\s_/-]+", " ", words.lower()), float(number)
            if math.isinf(value) or (math.isnan(value) and name not in MAY_BE_NAN):
                continue
            self._names.update({name: None} if len(self._names) < MAX_PRINTED_NAMES else {})
            before = self._last.get((rank, name), Point(-1, math.nan, None))
            point = Point(before.step + 1 if step is None else int(step), value, None)
            if name in self._names and point != before:  # a bar that stands still repeats it
                self._last[rank, name] = point
                found[PRINTED + name].append(point)

    def _take(self, rank: int, found: dict[str, list[Point]], t: float) -> Iterator[Metric]:
        if self._points.has("loss"):
            self._held = []
            return
        if self._held is None:
            yield from self._points.add_all([(rank, found)], t)
            return
        self._since = min(self._since, t)
        self._held = [*self._held, (rank, found)][-MAX_HELD:]
        if t - self._since > WAIT_SECONDS:
            yield from self._release(t)

    def _release(self, t: float) -> Iterator[Metric]:
        held, self._held = self._held or [], None
        if not self._points.has("loss"):
            yield from self._points.add_all(held, t)


class PrintedCount(NamedTuple):
    """The first and the newest value of one count, such as epochs; ``t`` in UNIX seconds."""

    total: int
    first: int
    first_t: float
    newest: int
    newest_t: float


class EtaEstimator:
    """Estimates when a run will be over, by its first rank's output (``epoch 3/10``) or reports.

    Two values of a count give the speed; a count that starts over, as of steps in an epoch, is left out.
    """

    def __init__(self) -> None:
        self._counts: dict[str, PrintedCount] = {}
        self._inner: set[str] = set()

    def read(self, line: str, t: float) -> None:
        """Look at a line that the first rank printed at ``t``."""
        head = line[:LOOKED_AT_CHARS]
        found = PROGRESS.search(head) if "/" in head or " of " in head else None
        if found is None:
            return
        word, done, total = found[1].lower(), int(found[2]), int(found[3])
        before = self._counts.get(word)
        if word in self._inner or done > total or total < 2:
            return
        if before is None:
            self._counts[word] = PrintedCount(total, done, t, done, t)
        elif done < before.newest or total != before.total:
            self._inner.add(word)
            del self._counts[word]
        elif done > before.newest:
            self._counts[word] = before._replace(newest=done, newest_t=t)

    def seconds_left(
        self, now: float, step: int | None, step_ms: float | None, metrics: Mapping[str, float]
    ) -> float | None:
        """Return the remaining time at ``now`` (UNIX seconds); None if the amount of work is unknown."""
        total = metrics.get(TOTAL, math.nan)
        if math.isfinite(total) and step is not None and step_ms:
            return max(0.0, (total - step - 1) * step_ms / 1000)
        known = [each for each in self._counts.values() if each.newest > each.first]
        if not known:
            return None
        longest = max(known, key=lambda each: each.newest_t - each.first_t)
        each_seconds = (longest.newest_t - longest.first_t) / (longest.newest - longest.first)
        over_t = longest.newest_t + (longest.total - longest.newest) * each_seconds
        return max(0.0, over_t - now)
