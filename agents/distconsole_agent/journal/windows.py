"""Folds the records of one rank into the bodies of ``window`` and ``check`` entries; its waits as the kernel counts them."""

from __future__ import annotations

import json
import os
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import ceil, inf, isfinite
from typing import Any, NamedTuple

from distconsole_agent.contract import limits
from distconsole_agent.contract.protocol import (
    MAX_CHECKED,
    MAX_CHECKED_NAME,
    MAX_METRICS,
    MAX_POINTS,
    Values,
)
from distconsole_agent.journal.rings import CHECKED_SUFFIX, RING_SUFFIX, Record
from distconsole_agent.system.kernel_files import read_foreign
from distconsole_agent.system.procfs import read_head, stat_fields
from distconsole_training.records import (
    BATCH,
    DETAIL,
    HAS_BATCH,
    HAS_PARAMETERS,
    HAS_STATE,
    LOSS,
    LOSS_NAME,
    MAX_CHECKED_BYTES,
    METRIC,
    NOWHERE,
    PLACE,
    SAME_EPOCH,
    SAMPLES_NAME,
    SKIPPED,
    STEP,
    WAIT,
    WRAPPED,
)

_PER_RECORD = 8
"""Checksums in a record of a check's details."""

REMEMBERED_CHANGES = 1024
"""Changes of the batch size that are kept, for the samples of a loss that arrives late."""

MAX_WINDOWS_AT_ONCE = 120
"""Most windows of a backlog; its oldest part is one long window."""

MAX_STEP = 1 << 60
"""Records with a larger step are invalid."""

TICKS = os.sysconf("SC_CLK_TCK")
MAX_WORKERS = 64
"""Most workers that are looked at."""
DATA_SHARE, DATA_MS = 0.1, 1.0
"""Workers are looked at while a rank waits for its data for this share of a step, and this long."""

_OF_STEPS = ([SAMPLES_NAME], [LOSS_NAME])

Point = list[Any]  # [step, value, samples | None]


def names_path(ring_path: str) -> str:
    """Return the file beside a ring that names the tensors of its checks."""
    return ring_path[: -len(RING_SUFFIX)] + CHECKED_SUFFIX


class StepMemory:
    """State from a rank's earlier steps for its later windows."""

    def __init__(self) -> None:
        self.last_step = -1
        self.has_stepped = False
        """True after the first step. Until then batches are counted, and the rank never stalls: it may only evaluate."""
        self.last_step_ns = 0
        self.longest_seconds = 0.0
        """The longest pause between two steps, as to save or to validate; short ones are not measured."""
        self.metric_names: set[str] = set()
        self.step_seconds: deque[float] = deque(maxlen=64)
        self._sizes: deque[tuple[int, int]] = deque([(0, 0)], maxlen=REMEMBERED_CHANGES)

    def stepped(self, first_ns: int, last_ns: int) -> None:
        """Note the ends of a window's first and last step (monotonic)."""
        if self.last_step_ns:
            self.longest_seconds = max(self.longest_seconds, (first_ns - self.last_step_ns) / 1e9)
        self.last_step_ns = max(self.last_step_ns, last_ns)

    def begin_steps(self, offset: Offset) -> None:
        """Start counting steps: the counts before the first one were batches."""
        if not self.has_stepped:
            self.has_stepped = True
            self.last_step, offset.counted = offset.base - 1, -1
            self.step_seconds.clear()

    def remember(self, step: int, samples: int) -> None:
        """Keep the samples of ``step`` (0: unknown) for its late loss; steps come in order."""
        if samples != self._sizes[-1][1]:
            self._sizes.append((step, samples))

    def samples(self, step: int) -> int | None:
        """Return the samples of a remembered step; None if they are unknown."""
        for since, samples in reversed(self._sizes):
            if step >= since:
                return samples or None
        return None

    def stall_seconds(self) -> float:
        """Return how long a rank may make no step; without a limit before the first one."""
        if not self.last_step_ns or not self.step_seconds:
            return inf
        median = self.median_seconds()
        least = limits.LONG_START_SECONDS if median is None else limits.STALL_SECONDS
        usual = max(self.step_seconds) if median is None else median
        return max(least, limits.STALL_STEPS * usual, limits.STALL_PAUSES * self.longest_seconds)

    def median_seconds(self) -> float | None:
        """Return the median duration of the last steps; None before the third one."""
        if len(self.step_seconds) < 3:
            return None
        return sorted(self.step_seconds)[len(self.step_seconds) // 2]


def cut(records: Sequence[Record]) -> list[Sequence[Record]]:
    """Return ``records`` in pieces of about ``limits.WINDOW_SECONDS``, by their own times."""
    length_ns = int(limits.WINDOW_SECONDS * 1e9)
    if records and records[-1][2] - records[0][2] < 1.5 * length_ns:
        return [records]
    pieces: list[Sequence[Record]] = []
    end = len(records)
    while end and len(pieces) < MAX_WINDOWS_AT_ONCE - 1:
        start = end - 1
        bound = records[start][2] - length_ns
        while start and records[start - 1][2] > bound:
            start -= 1
        pieces.append(records[start:end])
        end = start
    if end:
        pieces.append(records[:end])
    return pieces[::-1]


class Offset:
    """Turns the step numbers of one process into the rank's.

    A process that replaces another one (a restart, an ``execv``) counts from 0 again; the rank's
    steps go on. A reported step beyond the process's count is the script's own number and
    stays as it is.
    """

    def __init__(self, base: int) -> None:
        self.base = base
        self.counted = -1

    def of_steps(self, steps: Sequence[int]) -> list[int]:
        """Return the rank's numbers of steps (at least one) that the process counted."""
        self.counted = max(self.counted, *steps)
        return [step + self.base for step in steps]

    def of_report(self, step: int) -> int:
        """Return the rank's number of a step that a metric names."""
        return step + self.base if step <= self.counted + 1 else step


def window(
    rank: int,
    records: Sequence[Record],
    names: Sequence[str],
    offset: Offset,
    memory: StepMemory,
    dropped: int,
) -> dict[str, Any] | None:
    """Return the body of a ``window`` entry; None if ``records`` hold no training.

    ``records`` are those of one process in this window, in order; ``names`` is the table of
    its ring; ``memory`` is the rank's, and changed; ``dropped`` are records and errors lost since
    the last window.
    """
    made = [record for record in records if record[3] == STEP]
    if made:
        memory.begin_steps(offset)
    counted = made or [each for each in records if each[3] == BATCH and not memory.has_stepped]
    steps = _fill_samples([each for each in counted if each[1] < MAX_STEP], records, names)
    dropped += len(counted) - len(steps)
    columns = list(zip(*steps))
    points: dict[str, list[Point]] = {}
    hook_loss = _take_steps(columns, offset, memory) if steps else []
    for record in records:
        kind = record[3]
        if kind == LOSS and record[1] < MAX_STEP:
            step = record[1] + offset.base
            hook_loss.append([step, record[12], memory.samples(step)])
        elif kind == METRIC and not _add_metric(points, record, names, offset, memory):
            dropped += 1
    if hook_loss and LOSS_NAME not in memory.metric_names:
        points[LOSS_NAME] = sorted(hook_loss, key=_step_of)
    if not (steps or points or dropped):
        return None
    body = _body(rank, columns, points, memory, dropped) | _waits(records, steps)
    return body if made or not steps else {**body, "batches": True}


def _fill_samples(
    steps: list[Record], records: Sequence[Record], names: Sequence[str]
) -> list[Record]:
    """Return ``steps``; those of unknown size get the samples that the script reported for them or their loss."""
    by_step = {
        record[1]: record[6]
        for record in records
        if record[3] == METRIC and record[6] and names[record[5] :][:1] in _OF_STEPS
    }
    if not by_step:
        return steps
    return [each if each[6] else (*each[:6], by_step.get(each[1], 0), *each[7:]) for each in steps]


def _waits(records: Sequence[Record], steps: Sequence[Record]) -> dict[str, Any]:
    """Return the waiting time of a step, its data, forward, backward and optimizer, if it was measured.

    Only some of the short steps were measured: their mean without waits is taken for all, and the
    rest of the mean of all steps was waiting. So longer measured steps do not make a rank look slower.
    """
    waits = {record[1]: record[7:12] for record in records if record[3] == WAIT}
    looked = [(step[7:12], waits[step[1]]) for step in steps if step[1] in waits]
    if not looked:
        return {}
    waited = []
    for part in range(5):
        all_steps = _drop_nan([step[7 + part] for step in steps])
        own = _drop_nan([step[part] - wait[part] for step, wait in looked])
        seconds = _mean([wait[part] for _, wait in looked])
        if own and len(looked) < len(steps):
            seconds = _mean(all_steps) - _mean(own)
        waited.append(_ms(max(0.0, seconds)))
    return {"waited_ms": waited}


def _take_steps(columns: list[Any], offset: Offset, memory: StepMemory) -> list[Point]:
    """Remember figures of the steps for later windows, and return the losses known already."""
    numbers, sizes, losses = offset.of_steps(columns[1]), columns[6], columns[12]
    memory.last_step = max(memory.last_step, numbers[-1])
    if memory.has_stepped:
        memory.stepped(columns[2][0], columns[2][-1])
    for step, samples in zip(numbers, sizes):
        memory.remember(step, samples)
    return [
        [step, loss, samples or None]
        for step, loss, samples in zip(numbers, losses, sizes)
        if loss == loss
    ]


def _add_metric(
    points: dict[str, list[Point]],
    record: Record,
    names: Sequence[str],
    offset: Offset,
    memory: StepMemory,
) -> bool:
    if record[5] >= len(names) or record[1] >= MAX_STEP:
        return False
    name = names[record[5]]
    if name == SAMPLES_NAME:
        return True
    if name not in memory.metric_names:
        if len(memory.metric_names) >= MAX_METRICS or not name:
            return False
        memory.metric_names.add(name)
    step = offset.of_report(record[1])
    points.setdefault(name, []).append([step, record[12], record[6] or None])
    return True


def _body(
    rank: int, columns: list[Any], points: dict[str, list[Point]], memory: StepMemory, dropped: int
) -> dict[str, Any]:
    flags, sizes, seconds, *parts = (
        (columns[i] for i in (4, 6, 7, 8, 9, 10, 11)) if columns else ([()] * 7)
    )
    known_seconds = _drop_nan(seconds)
    counted = [each for each in zip(sizes, seconds) if each[0] and each[1] == each[1]]
    total = sum(each[1] for each in counted)
    memory.step_seconds.extend(known_seconds[-64:])
    last_step = memory.last_step
    if last_step < 0:
        last_step = max((each[-1][0] for each in points.values()), default=0)
    data_ms, forward_ms, backward_ms, optimizer_ms = map(_mean_ms, parts)
    return {
        "rank": rank,
        "step": last_step,
        "steps": len(flags),
        "skipped": sum(1 for each in flags if each & SKIPPED) if any(flags) else 0,
        "step_ms": [_mean_ms(seconds), _ms(p95(known_seconds))] if known_seconds else None,
        "data_ms": data_ms,
        "forward_ms": forward_ms,
        "backward_ms": backward_ms,
        "optimizer_ms": optimizer_ms,
        "samples_s": round(sum(each[0] for each in counted) / total, 3) if total > 0 else None,
        "metrics": {name: each[-1][1] for name, each in points.items()},
        "dropped": dropped,
        "points": {name: thin(each) for name, each in points.items()},
    }


def thin(points: list[Point]) -> list[Point]:
    """Return at most ``MAX_POINTS``: those at steps divisible by a power of two, and the last.

    Every rank keeps the same steps that way, so that values can be reduced at equal steps. The
    first value that is not finite is kept besides: there may be only one.
    """
    kept, power = points, 1
    while len(kept) > MAX_POINTS:
        power *= 2
        kept = [point for point in points[:-1] if point[0] % power == 0] + points[-1:]
        if power > MAX_STEP:
            # Many values of one step: no power of two separates them.
            kept = points[-MAX_POINTS:]
    odd = next((point for point in points if not isfinite(point[1])), None)
    if odd is None or any(point is odd for point in kept):
        return kept
    return sorted([*kept, odd], key=_step_of)


def p95(values: Sequence[float]) -> float:
    return sorted(values)[ceil(0.95 * len(values)) - 1]


def _drop_nan(values: Sequence[float]) -> list[float]:
    return [value for value in values if value == value]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _mean_ms(values: Sequence[float]) -> float | None:
    known = _drop_nan(values)
    return _ms(_mean(known)) if known else None


def _step_of(point: Point) -> int:
    return int(point[0])


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 4)


class Checks:
    """The checks (``run --verify-sync``) of the process with the ring at ``path``, as entries."""

    def __init__(self, path: str) -> None:
        self._path = names_path(path)
        self._details: list[int] = []
        self._step = -1
        self._named_layout = -1

    def take(
        self, rank: int, record: Record, step_of: Callable[[int], int]
    ) -> dict[str, Any] | None:
        """Return the ``check`` entry's body if ``record`` ends a check; ``step_of`` numbers the rank's steps."""
        step, kind, number = record[1], record[3], record[5]
        if kind == DETAIL:
            if number == 0:
                self._step, self._details = step, []
            expected = number * _PER_RECORD
            if step == self._step and len(self._details) == expected < MAX_CHECKED:
                self._details += struct.unpack("<8I", struct.pack("<4Q", *record[7:11]))
            return None
        details, self._details = self._details, []
        whole = self._step == step and len(details) == number * _PER_RECORD
        count = record[6] & 0xFFFF
        flags = record[4]
        rank_there, world, layout = PLACE.unpack(record[10].to_bytes(8, "little"))
        shown = details[:count] if whole and 0 < count <= min(MAX_CHECKED, len(details)) else None
        return {
            "rank": rank,
            "step": step_of(step),
            "parameters": f"{record[7]:016x}" if flags & HAS_PARAMETERS else None,
            "state": f"{record[8]:016x}" if flags & HAS_STATE else None,
            "batch": f"{record[9]:016x}" if flags & HAS_BATCH else None,
            "layout": layout,
            "wrapped": bool(flags & WRAPPED),
            "same_epoch": bool(flags & SAME_EPOCH),
            "place": None if rank_there == NOWHERE else [rank_there, world],
            "bad_gradient": (record[6] >> 16) - 1 if record[6] >> 16 else None,
            "details": None if shown is None else "".join(f"{each:08x}" for each in shown),
            "names": None if shown is None else self._names(layout),
        }

    def _names(self, layout: int) -> list[str] | None:
        """Return the names of the details, once for each layout; None if they cannot be read."""
        if layout == self._named_layout:
            return None
        try:
            content = json.loads(read_foreign(self._path, MAX_CHECKED_BYTES))
            names = [str(each)[:MAX_CHECKED_NAME] for each in content["names"][:MAX_CHECKED]]
            if content["layout"] != layout:
                return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        self._named_layout = layout
        return names


class _Stat(NamedTuple):
    name: bytes
    state: bytes
    cpu_ticks: int
    disk_ticks: int


class ProcessWaits:
    """The rank's process as it was at the last look."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root
        self._before: tuple[int, int, int] | None = None
        self._ticks: dict[int, int] = {}
        """Worker -> clock ticks of a processor that it had used, at ``_looked_ns``."""
        self._looked_ns = 0

    def look(self, pid: int) -> Values:
        """Return ``cpu_wait`` and ``disk_wait`` of the time since the last look, 0 to 100; null if unknown."""
        try:
            queued_ns = int(read_head(f"{self._root}/{pid}/schedstat", 100).split()[1])
        except (ValueError, IndexError):
            queued_ns = -1
        stat, now_ns = self._stat(pid), time.monotonic_ns()
        disk_ticks = stat.disk_ticks if stat else 0
        before, self._before = self._before, (now_ns, queued_ns, disk_ticks)
        shares: Values = {"cpu_wait": None, "disk_wait": None}
        if before is None or now_ns <= before[0]:
            return shares
        if queued_ns >= 0 <= before[1]:
            shares["cpu_wait"] = _percent(queued_ns - before[1], now_ns - before[0])
        if stat is not None:
            # Few kernels count it (kernel.task_delayacct); else use the process's present state.
            waited_ns = (disk_ticks - before[2]) * 10**9 // TICKS
            now = 100.0 * (stat.state == b"D")
            shares["disk_wait"] = _percent(waited_ns, now_ns - before[0]) if disk_ticks else now
        return shares

    def look_at_workers(self, pid: int, window: Mapping[str, Any]) -> list[float] | None:
        """Return how many DataLoader workers ``pid`` has, percent of a processor that each uses, of them in state D.

        None if ``window`` shows hardly any wait for data, and at the first look.
        """
        step_ms, data_ms = (window["step_ms"] or [0.0])[0] or 0.0, window["data_ms"] or 0.0
        if data_ms < max(DATA_MS, DATA_SHARE * step_ms):
            return None
        pids = read_head(f"{self._root}/{pid}/task/{pid}/children", 4096).split()
        stats = {int(each): self._stat(int(each)) for each in pids[:MAX_WORKERS]}
        children = {child: stat for child, stat in stats.items() if stat is not None}
        # As torch names them; before version 2.6 every child has its parent's name.
        named = {child: s for child, s in children.items() if s.name == b"pt_data_worker"}
        workers = named or children
        now_ns = time.monotonic_ns()
        used = [s.cpu_ticks - self._ticks[w] for w, s in workers.items() if w in self._ticks]
        over_ns, self._looked_ns = now_ns - self._looked_ns, now_ns
        self._ticks = {worker: stat.cpu_ticks for worker, stat in workers.items()}
        if not used or over_ns <= 0:
            return None
        busy = _percent(sum(used) * 10**9 // TICKS, over_ns * len(used))
        blocked = sum(stat.state == b"D" for stat in workers.values())
        return [len(workers), busy, round(100 * blocked / len(workers), 1)]

    def _stat(self, pid: int) -> _Stat | None:
        name, fields = stat_fields(read_head(f"{self._root}/{pid}/stat", 4096))
        if len(fields) < 40:
            return None
        return _Stat(name, fields[0], int(fields[11]) + int(fields[12]), int(fields[39]))


def _percent(part: int, whole: int) -> float:
    return round(100 * min(1.0, max(0.0, part / whole)), 1)
