"""One run's sources (shim, logs, rings, telemetry) into its journal, a batch at a time.

All that it keeps can be had again from a mark or a source, so it may be killed at any point.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from distconsole_agent.contract.limits import RING_SCAN_SECONDS, SHIM_CHECK_SECONDS
from distconsole_agent.contract.runspec import MPI, RunSpec
from distconsole_agent.coordination import blame
from distconsole_agent.coordination.link import tell_death_in_background
from distconsole_agent.engines.slurm_words import has_srun, read_reason, read_srun_death
from distconsole_agent.journal.journal import Journal
from distconsole_agent.journal.log_sources import LogSources
from distconsole_agent.journal.nccl_logs import NcclLogs
from distconsole_agent.journal.notices import NodeNotices
from distconsole_agent.journal.rank_states import Entry, RankStates
from distconsole_agent.journal.reader import Mark
from distconsole_agent.journal.recorders import Recorders
from distconsole_agent.journal.roll_calls import RollCalls
from distconsole_agent.journal.shim_events import ShimEventReducer, ShimLines
from distconsole_agent.journal.unwatched import UnwatchedProcesses
from distconsole_agent.node_folder.proofs import shim_may_live
from distconsole_agent.supervisor import notes
from distconsole_agent.supervisor.failures import forget_exceptions, read_raised
from distconsole_agent.supervisor.proctree import kill_run
from distconsole_agent.supervisor.runlog import ShimEvent, is_over
from distconsole_agent.system.procfs import read_process
from distconsole_agent.system.steady import to_next_second
from distconsole_agent.telemetry.mapping import VISIBLE, RunningRank, visible_devices

MAX_BATCH_ENTRIES = 4096

LARGE_KINDS = frozenset({"log", "window", "sample", "check", "roll_call"})
"""Entries that a journal on a full disk leaves out, to keep room for the run's outcome."""

UNBORN_SECONDS = 60.0
"""Longest preparation of a folder without ``shim.pid``."""

LATER_SECONDS, MOST_LATE_SECONDS = 0.002, 0.5
"""Seconds between the windows of two nodes, and at most: spreads the load on the console."""

KEPT_SECONDS = 1.0
"""How long the end of a run waits for the disk to sync all earlier entries."""

SRUN_SECONDS = 10.0
"""How long the agent waits for srun to end once the shim that it started has died: srun may still print the reason."""


@contextmanager
def read_along(folder: str, spec: RunSpec) -> Iterator[RollCalls]:
    """Yield the roll calls of a run whose journal another agent writes, from the shim's events and the rings so far."""
    ranks, rings = _ranks_of(spec), _rings_of(folder, spec)
    recorders = Recorders(rings, ranks, time.time_ns, folder if spec.enter else None)
    events = ShimEventReducer(spec, ranks)
    with closing(ShimLines(os.path.join(folder, "shim.jsonl"))) as shim, closing(recorders):
        while told := shim.read():
            for _, event in told:
                if event.event == "attempt":
                    recorders.begin_again(event.restart, event.t_ns)
                events.tell(event)
        recorders.scan({})
        recorders.drain()
        yield RollCalls(folder, rings, ranks, recorders)


def _ranks_of(spec: RunSpec) -> RankStates:
    # Ranks of mpirun report themselves to the shim, so each is known as if it were its child.
    return RankStates(
        spec.nodes[spec.node_index].ranks,
        engine_ranks=spec.engine_ranks or spec.launcher == MPI,
        watched=spec.watch,
        planned_world=spec.planned_world,
        own_numbers=spec.numbers_itself,
    )


def _rings_of(folder: str, spec: RunSpec) -> str:
    return spec.rings or os.path.join(folder, "rings")


class SourceCollector:
    """The sources of one run here, for a ``journal`` to write; ``monotonic`` seconds, ``wall_ns`` of entries."""

    def __init__(
        self,
        folder: str,
        spec: RunSpec,
        journal: Journal,
        monotonic: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._folder = folder
        self._errors = os.path.join(folder, "errors")
        self._spec = spec
        self._journal = journal
        self._monotonic, self._wall_ns = monotonic, wall_ns
        self.samples: deque[Entry] = deque(maxlen=8)
        self.ranks, rings = _ranks_of(spec), _rings_of(folder, spec)
        self._recorders = Recorders(rings, self.ranks, wall_ns, folder if spec.enter else None)
        self.roll = RollCalls(folder, rings, self.ranks, self._recorders, monotonic, wall_ns)
        self._shim = ShimLines(os.path.join(folder, "shim.jsonl"))
        self._logs = LogSources(os.path.join(folder, "logs"), spec.host, self.ranks.log_rank)
        self._events = ShimEventReducer(spec, self.ranks)
        self._nccl = NcclLogs(folder, spec)
        self._unwatched = UnwatchedProcesses(folder, spec.hook)
        self._entries: list[Entry] = []
        self._shim_offset = 0
        self._unread_told = 0
        self._has_to_end, self._left_out = False, 0
        self._unkept_told = False
        self._next_window = self._next_check = self._next_scan = 0.0
        self._late = min(MOST_LATE_SECONDS, spec.node_index * LATER_SECONDS)
        self._srun_until: float | None = None
        self._unborn_since = 0.0
        self._restore()
        stalled = (rank.rank for rank in self.ranks if rank.state == "stalled")
        self._notices = NodeNotices(folder, spec, stalled)

    @property
    def over(self) -> bool:
        return self._journal.ended

    @property
    def due_seconds(self) -> float:
        return max(0.0, self._next_window - self._monotonic())

    def close(self) -> None:
        self._shim.close()
        self._recorders.close()
        self._logs.close()
        self._notices.close()

    def tick(self) -> bool:
        """Write new entries as a batch; return whether shim or ranks spoke; on OSError call it again."""
        # Entries that could not be written last time: nothing is read before they are.
        try:
            self._commit()
        except OSError:
            if self._has_to_end or not is_over(self._folder):
                raise
            # Room may never come, and all consoles wait for the run's outcome.
            self._has_to_end = True
            self._commit()
        now = self._monotonic()
        told = not self.over and self._take_shim(now)
        return (not self.over and self._take_rest(now)) or told

    def _take_rest(self, now: float) -> bool:
        if now >= self._next_scan:
            self._next_scan = now + RING_SCAN_SECONDS
            self._open_sources()
        if self.ranks.await_numbers:
            # Rings before logs: lines get the number that the process group has given.
            self._entries += self._recorders.drain()
        printed = self._logs.take(now, self._t())
        self._entries += printed
        if now >= self._next_window or self._recorders.busy:
            self._next_window = now + to_next_second(self._wall_ns() / 1e9 - self._late)
            self._take_windows()
        for waiting in (self.samples, self.roll.entries):
            while waiting:
                self._entries.append(waiting.popleft())
        while not self._notices.entries.empty():
            self._entries.append(self._notices.entries.get())
        if now >= self._next_check:
            self._next_check = now + SHIM_CHECK_SECONDS
            self._say_unkept()
            self._say_ways(now)
            for note in self._unwatched.take(now, recorded=bool(self._recorders.marks())):
                self._say(note)
            if self._shim_is_gone() and not self._waits_for_srun(now):
                self._lose(now)
        self._commit()
        return bool(printed)

    def rank_processes(self) -> list[RunningRank]:
        """Return the processes of this node's ranks, for mapping GPUs."""
        return [
            RunningRank(
                rank.rank,
                rank.local_rank if rank.is_placed else -1,
                rank.pid,
                self._visible_devices(rank.rank),
            )
            for rank in list(self.ranks)
            if rank.alive and rank.pid is not None
        ]

    def _restore(self) -> None:
        mark = self._journal.mark
        upto = mark.get("shim", {}).get("offset", 0)
        while self._shim_offset < upto and (events := self._shim.read()):
            for offset, event in events:
                if offset <= upto:
                    self._apply(event)
                    self._shim_offset = offset
        self._shim.offset = self._shim_offset = upto
        self._entries.clear()
        self.ranks.restore(mark.get("ranks", {}), mark.get("origins", {}))
        self._open_sources()

    def _open_sources(self) -> None:
        mark = self._journal.mark
        self._recorders.scan(mark.get("rings", {}))
        unread = self._recorders.unread
        if len(unread) > self._unread_told:  # a note for each new maximum
            self._unread_told = len(unread)
            self._say(notes.rings_unread(len(unread), next(iter(unread.values()))))
        self._logs.open(mark.get("logs", {}))

    def _say(self, note: notes.RunNote) -> None:
        self._entries.append(note.entry(self._t()))

    def _say_unkept(self) -> None:
        """Tell, once, that the disk has refused to keep the record of this run."""
        if self._journal.sync_failure and not self._unkept_told:
            self._unkept_told = True
            self._say(notes.record_unkept(self._journal.sync_failure))

    def _say_ways(self, now: float, *, final: bool = False) -> None:
        for note in self._nccl.take(now, final=final):
            self._say(note)

    def _take_shim(self, now: float) -> bool:
        told = False
        # A batch that fails between two events leaves the rest of them for the next time.
        self._shim.offset = self._shim_offset
        for offset, event in self._shim.read():
            self._next_scan = 0.0
            told = True
            kind = event.event
            if kind in ("exited", "failed", "ended", "attempt"):
                # Output and records of a process come before its end.
                one = event.rank if kind in ("exited", "failed") else None
                over = kind in ("ended", "attempt")
                final = kind != "attempt"
                self._take_everything(now, one, event.t_ns, over=over, final=final)
            if kind == "attempt":
                self._commit()  # the rings go now
            if kind == "ended":
                self._prepare_end()
            self._apply(event)
            self._shim_offset = offset
            if len(self._entries) >= MAX_BATCH_ENTRIES or kind == "ended":
                self._commit()
            if self.over:
                break
        return told

    def _prepare_end(self) -> None:
        """Sync everything before the end entry: no failure can be reported after it."""
        self._say_ways(self._monotonic(), final=True)
        self._commit()
        self._journal.sync_with([], KEPT_SECONDS)
        self._say_unkept()

    def _apply(self, event: ShimEvent) -> None:
        if event.event == "attempt":
            self._recorders.begin_again(event.restart, event.t_ns)
            forget_exceptions(self._errors, event.t_ns)
        self._entries += self._events.tell(event)

    def _take_everything(
        self,
        now: float,
        rank: int | None,
        ended_ns: int,
        *,
        over: bool = True,
        final: bool = True,
    ) -> None:
        """Take all that a rank (or all ranks) left until it ended, in batches of bounded size.

        Not ``final``: ranks may print again by now, so that a rest without an end waits for it.
        """
        self._open_sources()
        only = rank if self.ranks.engine_ranks else None
        numbered = None if only is None else self.ranks.numbers_of(only)
        self._entries += self._recorders.drain(numbered, ended_ns=ended_ns, everybody=rank is None)
        self._take_vanished(self._wall_ns() / 1e9)
        while ends := self._logs.take_ends(now, self._t(), only, over=over, final=final):
            self._entries += ends
            self._commit()

    def _t(self) -> float:
        return round(self._wall_ns() / 1e9, 6)

    def _take_windows(self) -> None:
        self._entries += self._recorders.drain()
        now_ns = self._wall_ns()
        self._entries += self.ranks.old_enough(now_ns)
        for rank in self._recorders.silent(int(self._monotonic() * 1e9)):
            self._entries += self.ranks.stalled(rank, now_ns / 1e9)
        self.roll.watch()
        self._take_vanished(now_ns / 1e9)

    def _take_vanished(self, t: float) -> None:
        """Take the ends of processes that the shim did not start: without an exception, how is not known."""
        gone = [
            (number, own_pid, header)
            for number, own_pid, header in self._recorders.gone()
            if self.ranks.watches_ends(number)
            and (rank := self.ranks.get(number)) is not None
            and (rank.alive and rank.pid == header.pid)
        ]
        if not gone:
            return
        raised = {each.pid for each in read_raised(self._errors, past=True)}
        for number, own_pid, header in gone:
            state = "failed" if own_pid in raised else "exited"
            self._entries += self.ranks.vanished(number, header.pid, state, t)

    def _shim_is_gone(self) -> bool:
        path = os.path.join(self._folder, "shim.pid")
        try:
            with open(path, encoding="ascii") as file:
                pid, starttime = map(int, file.read().split())
        except FileNotFoundError:
            now = self._monotonic()
            self._unborn_since = self._unborn_since or now
            return now - self._unborn_since > UNBORN_SECONDS
        except (OSError, ValueError):
            return False
        stat = read_process(pid)
        if stat is not None and stat.starttime == starttime and not stat.has_ended:
            return False
        if shim_may_live(self._folder):
            return False  # /proc was unreadable, perhaps for want of a descriptor
        # It may have written its last words since they were looked for.
        self._take_shim(self._monotonic())
        return not self.over

    def _waits_for_srun(self, now: float) -> bool:
        """Return True while the srun that started the dead shim may still report why it died."""
        if not has_srun(self._folder):
            return False
        if self._srun_until is None:
            kill_run(self._folder)
            self._srun_until = now + SRUN_SECONDS
        return now < self._srun_until

    def _lose(self, now: float) -> None:
        """End a run whose shim has died: none of its processes may stay on this node."""
        left = kill_run(self._folder)
        t = self._t()
        self._take_everything(now, None, self._wall_ns())
        self._prepare_end()
        death = read_srun_death(self._folder)
        reason = death.error if death else read_reason(self._folder, final=True)
        if reason:
            rank = self._spec.nodes[0].ranks[0]
            code = death.exit_code if death is not None else 128 + signal.SIGTERM
            self._events.add(blame.Failure(0, rank, 0, 0, code, None, reason, ""))
        slurm, outlived = self._spec.below_slurm, self._events.may_be_outlived
        what = reason or f"the run's supervisor on {self._spec.host} is gone"
        self._say(notes.supervisor_lost(what, left, slurm=slurm, outlived=outlived))
        self._entries += self.ranks.lose(t)
        if not self._events.judged and self._spec.node_index == 0:
            # The coordinator died with the shim: no other node judges.
            self._entries += self._events.judge_lost(self._wall_ns(), reason or blame.SHIM_GONE)
        elif not self._events.judged:
            tell_death_in_background(self._folder, reason or "")
        self._entries.append(self._events.end_lost(t))

    def _visible_devices(self, rank: int) -> str | None:
        spec = self._spec
        unset, plan = set(VISIBLE).intersection(spec.unset), dict(spec.env)
        for each in spec.ranks:
            plan.update(each.env if each.rank == rank else {})
        if not unset and not set(VISIBLE) & plan.keys():
            return spec.visible_devices
        given = {n: value for n, value in spec.visible_variables.items() if n not in unset}
        return visible_devices({**given, **plan})

    def _commit(self) -> None:
        if not self._entries:
            return
        if self._has_to_end:
            self._journal.append(self._what_counts(), self._changed(), last=True)
        else:
            self._journal.append(self._entries, self._changed())
        self._notices.see(self._entries)
        self._entries = []

    def _what_counts(self) -> list[Entry]:
        """Return the entries without large ones, which do not fit on the disk; count those."""
        kept = [entry for entry in self._entries if entry["kind"] not in LARGE_KINDS]
        self._left_out += len(self._entries) - len(kept)
        if self._left_out and kept and kept[-1]["kind"] == "end":
            note = notes.record_cut(self._left_out, os.path.join(self._folder, "logs"))
            kept.insert(-1, note.entry(kept[-1]["t"]))
            self._left_out = 0
        return kept

    def _changed(self) -> Mark:
        now: Mark = {
            "shim": {"offset": self._shim_offset},
            "logs": self._logs.marks(),
            "rings": self._recorders.marks(),
            "ranks": self.ranks.states(),
            "origins": self.ranks.origins(),
        }
        known = self._journal.mark
        return {
            group: changed
            for group, positions in now.items()
            if (
                changed := {
                    name: value
                    for name, value in positions.items()
                    if known.get(group, {}).get(name) != value
                }
            )
        }
