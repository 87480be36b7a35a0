"""The rings of one run: the rank of each, and new records as entries."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from distconsole_agent.contract.limits import MAX_RINGS
from distconsole_agent.journal.rank_states import Entry, RankStates, world_of
from distconsole_agent.journal.rings import RING_SUFFIX, Header, Record, Ring
from distconsole_agent.journal.windows import (
    Checks,
    Offset,
    ProcessWaits,
    StepMemory,
    cut,
    names_path,
    window,
)
from distconsole_agent.supervisor import notes
from distconsole_agent.system.procfs import lives
from distconsole_training.records import BATCH, CHECK, DETAIL, METRIC, PHASE, PHASES, STEP, WAIT

REBUILT_RECORDS = 4096
"""Records before the cursor that are looked at again after a restart of the agent."""

CHILD_SECONDS = 10
"""For how long a child that trains without a process group may yet join one; then it trains in its parent's place."""

TRAINING = (STEP, METRIC)
LIVE_PHASES = ("init_process_group", "first_step")


class RankProgress(NamedTuple):
    """A rank's process, its last finished step (-1: none), when that was (monotonic ns, 0: never), its usual seconds."""

    pid: int
    step: int
    at_ns: int
    usual: float | None


class RankRing:
    def __init__(self, path: str, enclosed: str | None = None) -> None:
        self.ring = Ring(path, enclosed=enclosed)
        self._path = path
        self.rank = -1
        self.active = False
        self.offset = Offset(0)
        self.guard_errors = 0
        self.lost_told = 0
        self.was_alive = False
        self.ended = False
        self.trains_ns = 0
        """When its child was first seen to train without a number, in UNIX nanoseconds."""
        self.is_substitute = False
        """True if it speaks for its parent's rank, as it has none of its own."""
        self.meets_ns = self.met_ns = self.first_step_ns = 0
        self.checks = Checks(path)
        self.waits = ProcessWaits()

    @property
    def started_ns(self) -> int:
        """When its process started, in UNIX nanoseconds of the process."""
        return self.ring.header.started_time_ns

    def discard(self) -> None:
        """Remove the files of its process: they lie in the node's memory."""
        self.ring.close()
        for path in (self._path, names_path(self._path)):
            with contextlib.suppress(OSError):
                os.unlink(path)

    def mark(self) -> list[Any]:
        ring, offset = self.ring, self.offset
        return [ring.index, self.guard_errors, offset.base, offset.counted, self.rank, self.active]

    def restore(self, mark: list[Any]) -> None:
        self.ring.index, self.guard_errors, base, counted, self.rank, self.active = mark
        self.offset = Offset(base)
        self.offset.counted = counted
        self.is_substitute = self.rank >= 0 and self.ring.header.rank < 0

    def trains(self) -> bool:
        ring, found = self.ring, False
        index, lost = ring.index, ring.lost
        while not found and (taken := ring.read()):
            found = any(record[3] in TRAINING for record in taken)
        ring.index, ring.lost = index, lost
        return found

    def skip(self) -> None:
        self.ring.index = max(self.ring.index, self.ring.header.written)

    def check_process(self) -> None:
        if self.ended:
            return
        alive = lives(self.ring.header.pid)
        # A pid of another namespace is never seen alive: such a process ends with its rank.
        self.was_alive = self.was_alive or alive
        self.ended = self.ring.header.finished or (self.was_alive and not alive)


class Recorders:
    """All rings in one folder; ``unread``: not opened, and why; ``busy``: there is more, look again soon.

    ``enclosed`` is the folder of a run in a container, whose processes have other pids there.
    """

    def __init__(
        self,
        folder: str,
        ranks: RankStates,
        wall_ns: Callable[[], int],
        enclosed: str | None = None,
    ) -> None:
        self._folder, self._enclosed = folder, enclosed
        self._ranks = ranks
        self._wall_ns = wall_ns
        self._found: dict[str, RankRing] = {}
        self._since_ns = 0
        self._restart = 0
        self.unread: dict[str, str] = {}
        self._active: dict[int, RankRing] = {}
        self._rare: set[int] = set()
        self._two_told = False
        self._memory: dict[int, StepMemory] = {}
        self.busy = False

    def close(self) -> None:
        for recorder in self._found.values():
            recorder.ring.close()

    def marks(self) -> dict[str, list[Any]]:
        return {name: recorder.mark() for name, recorder in self._found.items()}

    def scan(self, marks: dict[str, list[Any]]) -> None:
        """Open new rings; ``marks`` has the positions of known ones."""
        try:
            names = [name for name in os.listdir(self._folder) if name.endswith(RING_SUFFIX)]
        except OSError:
            return
        self.unread.clear()
        for name in names:
            if name in self._found:
                continue
            if len(self._found) >= MAX_RINGS:
                self.unread[name] = f"more than {MAX_RINGS}"
                continue
            path = os.path.join(self._folder, name)
            try:
                recorder = RankRing(path, self._enclosed)
            except (FileNotFoundError, ValueError):
                continue  # it is gone, or its process is still writing the header
            except OSError as error:
                self.unread[name] = error.strerror or str(error)
                continue
            if self._is_past(recorder):
                recorder.discard()
                continue
            self._found[name] = recorder
            if name in marks:
                self._restore(recorder, marks[name])

    def begin_again(self, restart: int, t_ns: int) -> None:
        """Forget every process of an earlier attempt; ``t_ns``: UNIX time of the restart.

        All that they recorded must have been read. A rank's new process counts its steps from 0.
        """
        self._restart, self._since_ns = restart, t_ns
        for name, recorder in list(self._found.items()):
            if self._is_past(recorder):
                del self._found[name]
                recorder.discard()
        self._active.clear()
        self._memory.clear()
        for recorder in self._found.values():
            recorder.active = False

    def _is_past(self, recorder: RankRing) -> bool:
        """Return True for a process of an earlier attempt; older hooks record only their start time."""
        attempt = recorder.ring.header.attempt
        return attempt <= self._restart if attempt else recorder.started_ns < self._since_ns

    def drain(
        self,
        ranks: frozenset[int] | None = None,
        *,
        ended_ns: int | None = None,
        everybody: bool = False,
    ) -> list[Entry]:
        """Return the entries for new records, of some ranks or of all.

        Args:
            ranks: Only these ranks'.
            ended_ns: Its processes that started before this UNIX time have ended: of these also
                records hidden behind another ring are read, and of no other.
            everybody: All processes of the attempt have ended then.
        """
        self.busy = False
        heard = []
        for recorder in sorted(self._found.values(), key=lambda each: each.started_ns):
            if recorder.ended and not recorder.active and not recorder.ring.backlog:
                continue
            recorder.ring.refresh()
            final = ended_ns is not None
            if ended_ns is not None:
                # Of the processes that the shim reported as ended, not of later ones.
                attempt, is_later = recorder.ring.header.attempt, recorder.started_ns > ended_ns
                if attempt > self._restart + 1 if everybody and attempt else is_later:
                    continue
            if recorder.rank < 0 or recorder.is_substitute:
                self._place(recorder, final=final)
            if recorder.rank >= 0 and (ranks is None or recorder.rank in ranks):
                recorder.ended = recorder.ended or final
                heard.append(recorder)
        claims = Counter(recorder.rank for recorder in heard)
        for recorder in heard:
            # The shim does not report the end of each process.
            if claims[recorder.rank] > 1 or self._ranks.watches_ends(recorder.rank):
                recorder.check_process()
        return [entry for recorder in heard for entry in self._take(recorder)]

    def silent(self, now_monotonic_ns: int) -> list[int]:
        """Return the ranks that made steps, and none for longer than they may."""
        return [
            rank
            for rank, memory in self._memory.items()
            if now_monotonic_ns - memory.last_step_ns > memory.stall_seconds() * 1e9
        ]

    def place_of(self, rank: int) -> RankProgress | None:
        """Return the process that speaks for a rank and its last step; None without one."""
        speaker, memory = self._active.get(rank), self._memory.get(rank) or StepMemory()
        if speaker is None or speaker.ended:
            return None
        usual = memory.median_seconds()
        return RankProgress(speaker.ring.header.pid, memory.last_step, memory.last_step_ns, usual)

    def meeting(self, now_monotonic_ns: int, seconds: float) -> frozenset[int]:
        """Return the ranks that have waited ``seconds`` for the others in ``init_process_group``."""
        since = now_monotonic_ns - int(seconds * 1e9)
        active = list(self._active.items())
        return frozenset(
            rank for rank, each in active if not each.ended and 0 < each.meets_ns < since
        )

    def left_behind(self, now_monotonic_ns: int) -> dict[int, float]:
        """Return the ranks without a step or a batch that others wait for or train without, and seconds since.

        That is since their process group was made, or since another rank of this node made its first step.
        """
        active = list(self._active.items())
        begun = [each.first_step_ns for _, each in active if each.first_step_ns and not each.ended]
        first = min(begun, default=0)
        waiting = (
            (rank, [ns for ns in (each.met_ns, first) if ns])
            for rank, each in active
            if not each.ended and not self.has_steps(rank)
        )
        return {rank: (now_monotonic_ns - min(ns)) / 1e9 for rank, ns in waiting if ns}

    def has_steps(self, rank: int) -> bool:
        """Return True if a rank, or an unnumbered child of it, has completed a step or a batch since the last restart."""
        return (self._memory.get(rank) or StepMemory()).last_step >= 0 or any(
            each.trains_ns and self._ranks.of_process(-1, each.ring.header.parent_pid, -1) == rank
            for each in self._found.values()
            if each.rank < 0
        )

    def gone(self) -> list[tuple[int, int, Header]]:
        active = self._active.items()
        return [(rank, each.ring.own_pid, each.ring.header) for rank, each in active if each.ended]

    def _restore(self, recorder: RankRing, mark: list[Any]) -> None:
        recorder.restore(mark)
        if recorder.rank < 0:
            return
        memory = self._memory.setdefault(recorder.rank, StepMemory())
        memory.metric_names.update(recorder.ring.names())
        base = recorder.offset.base
        if recorder.offset.counted >= 0:
            memory.last_step = max(memory.last_step, base + recorder.offset.counted)
        for record in recorder.ring.before(REBUILT_RECORDS):
            if record[3] == STEP:
                memory.has_stepped = True
                memory.remember(record[1] + base, record[6])
                memory.stepped(record[2], record[2])
                if record[7] == record[7]:
                    memory.step_seconds.append(record[7])
        if recorder.active:
            self._active[recorder.rank] = recorder

    def _place(self, recorder: RankRing, *, final: bool) -> None:
        """Assign a process to its rank; records that it made in its parent's place stay there."""
        header, before = recorder.ring.header, recorder.rank
        recorder.rank = self._ranks.of_process(header.pid, 0, header.rank)
        recorder.is_substitute = recorder.rank < 0 and self._is_substitute(recorder, final=final)
        if recorder.is_substitute:
            header = recorder.ring.refresh()
            recorder.rank = self._ranks.of_process(header.pid, header.parent_pid, header.rank)
        if before not in (-1, recorder.rank) and self._active.get(before) is recorder:
            recorder.active = False
            del self._active[before], self._memory[before]

    def _is_substitute(self, recorder: RankRing, *, final: bool) -> bool:
        """Return True if a process without a number trains in its parent's place.

        A child does not while it may yet join a process group, nor beside a parent that trains or has joined one. Of several
        children of one parent only the first does, at the end, if none has joined a group.
        """
        header = recorder.ring.header
        if not (recorder.is_substitute or recorder.trains()):
            return final and not header.is_child
        recorder.trains_ns = recorder.trains_ns or self._wall_ns()
        if not header.is_child:
            return True
        others = [each for each in self._found.values() if each is not recorder]
        parents = [each for each in others if each.ring.header.pid == header.parent_pid]
        siblings = [each for each in others if each.ring.header.parent_pid == header.parent_pid]
        if any(map(self._is_own_rank, parents)):
            return False
        if siblings:
            first = recorder.started_ns < min(each.started_ns for each in siblings)
            return final and first and all(each.ring.header.rank < 0 for each in siblings)
        waited = self._wall_ns() - recorder.trains_ns >= CHILD_SECONDS * 1e9
        return final or waited or recorder.ring.backlog > header.capacity // 2

    def _is_own_rank(self, recorder: RankRing) -> bool:
        """Return whether a process has joined a process group or trains itself."""
        memory = self._memory.get(recorder.rank) if recorder.active else None
        trained = memory is not None and memory.last_step >= 0
        return trained or recorder.met_ns > 0 or recorder.trains()

    def _take(self, recorder: RankRing) -> list[Entry]:
        current = self._active.get(recorder.rank)
        entries: list[Entry] = []
        if current is not recorder:
            if current is not None and not self._replaces(recorder, current):
                if recorder.started_ns < current.started_ns and not current.ended:
                    # A newer process speaks for the rank; this one's records are not the rank's.
                    entries = self._tell_two(recorder, current)
                    recorder.skip()
                return entries
            if current is not None:
                entries += self._read(current)
                current.active = False
            memory = self._memory.setdefault(recorder.rank, StepMemory())
            recorder.offset.base = memory.last_step - recorder.offset.counted
            recorder.active = True
            self._active[recorder.rank] = recorder
        header = recorder.ring.header
        began = self._time(recorder, header.started_monotonic_ns)
        entries += self._ranks.found(recorder.rank, header, began)
        return entries + self._read(recorder)

    def _tell_two(self, older: RankRing, newer: RankRing) -> list[Entry]:
        """Say once that a process trains as a rank beside another one, of which neither started the other."""
        headers = older.ring.header, newer.ring.header
        pids = [each.pid for each in headers]
        related = any(each.is_child or each.parent_pid in pids for each in headers)
        alike = headers[0].rank == headers[1].rank >= 0
        if self._two_told or related or not alike or not newer.first_step_ns or not older.trains():
            return []
        self._two_told = True
        t = self._time(newer, None)
        return [notes.two_trainings(newer.rank, pids).entry(t)]

    def _replaces(self, recorder: RankRing, current: RankRing) -> bool:
        newer = recorder.started_ns > current.started_ns
        if newer and current.ended and self._ranks.is_engines_own(recorder.ring.header.parent_pid):
            return True  # the rank of torchrun's next round
        return (newer or current.ended) and recorder.trains()

    def _read(self, recorder: RankRing) -> list[Entry]:
        ring = recorder.ring
        records: list[Record] = []
        while taken := ring.read(final=recorder.ended):
            records += taken
        self.busy = self.busy or len(records) > ring.header.capacity // 4
        guard_errors = max(recorder.guard_errors, ring.header.guard_errors)
        dropped = ring.lost - recorder.lost_told + guard_errors - recorder.guard_errors
        if not records and not dropped:
            return []
        recorder.lost_told, recorder.guard_errors = ring.lost, guard_errors
        entries = self._phases(recorder, records)
        if any(record[3] in (*TRAINING, BATCH) for record in records):
            entries += self._ranks.trains(recorder.rank, self._time(recorder, records[-1][2]))
        memory = self._memory.setdefault(recorder.rank, StepMemory())
        pid, waits = ring.header.pid, recorder.waits.look(ring.header.pid)
        pieces, names = cut(records) or [()], ring.names()
        for piece in pieces:
            body = window(recorder.rank, piece, names, recorder.offset, memory, dropped)
            dropped = 0
            if body is not None:
                t = self._time(recorder, piece[-1][2] if piece else None)
                if piece is pieces[-1]:
                    waits["workers"] = recorder.waits.look_at_workers(pid, body)
                entries.append({"t": t, "kind": "window", **body, **waits})
        for record in records:
            if record[3] in (WAIT, DETAIL, CHECK):
                entries += self._tell(recorder, record)
        return entries

    def _tell(self, recorder: RankRing, record: Record) -> list[Entry]:
        rank, t = recorder.rank, self._time(recorder, record[2])
        if record[3] != WAIT:
            body = recorder.checks.take(rank, record, recorder.offset.of_report)
            return [] if body is None else [{"t": t, "kind": "check", **body}]
        if not record[6] or rank in self._rare:
            return []
        self._rare.add(rank)
        return [notes.rare_looks(rank, record[6]).entry(t)]

    def _phases(self, recorder: RankRing, records: list[Record]) -> list[Entry]:
        begun = self._ranks.start_of(recorder.rank, recorder.ring.header)
        entries: list[Entry] = []
        for record in records:
            if record[3] == PHASE and record[5] < len(PHASES):
                t = self._time(recorder, record[2])
                world = world_of(record, self._ranks.planned_world)
                if world.get("world") and not recorder.ring.header.is_child:
                    self._ranks.joins(recorder.rank, world["world"])
                    entries += self._renumber(recorder, PHASES[record[5]], world, t)
                seconds = t - (begun or recorder.started_ns) / 1e9
                entries.append(
                    {
                        "t": t,
                        "kind": "phase",
                        "rank": recorder.rank,
                        "phase": PHASES[record[5]],
                        "seconds": round(max(0.0, seconds), 6),
                        **({"child": True} if recorder.ring.header.is_child else {}),
                        **world,
                    }
                )
                recorder.meets_ns = record[2] if PHASES[record[5]] == "rendezvous" else 0
                if PHASES[record[5]] == "init_process_group":
                    recorder.met_ns = record[2]
                elif PHASES[record[5]] == "first_step":
                    recorder.first_step_ns = record[2]
                if PHASES[record[5]] in LIVE_PHASES:
                    entries += self._ranks.trains(recorder.rank, t)
        return entries

    def _renumber(self, recorder: RankRing, phase: str, world: Entry, t: float) -> list[Entry]:
        known, number = recorder.rank, world.get("group_rank")
        if phase != "init_process_group" or number is None:
            return []
        if number != known and number in self._active:
            return []
        told = self._ranks.renumber(known, number, t)
        if told:
            recorder.rank = number
            if known in self._active:
                self._active[number] = self._active.pop(known)
            if known in self._memory:
                self._memory[number] = self._memory.pop(known)
        return told

    def _time(self, recorder: RankRing, monotonic_ns: int | None) -> float:
        """Return a record's time in UNIX seconds; now, if the process's clocks are implausible."""
        now = self._wall_ns() / 1e9
        if monotonic_ns is None:
            return round(now, 6)
        header = recorder.ring.header
        t = (monotonic_ns - header.started_monotonic_ns + header.started_time_ns) / 1e9
        return round(t if now - 86400 < t <= now else now, 6)
