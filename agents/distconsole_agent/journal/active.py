"""One run that is not over: the thread that drains its sources until its journal has an ``end``.

If another agent (of another version) writes the journal, this one reads along, and takes over once
that one is gone.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from distconsole_agent.contract import records
from distconsole_agent.contract.limits import QUIET_SECONDS, QUIET_TICK_SECONDS, TICK_SECONDS
from distconsole_agent.contract.runspec import RunSpec
from distconsole_agent.journal.journal import Journal
from distconsole_agent.journal.lines import body_of
from distconsole_agent.journal.reader import JournalError, Reader
from distconsole_agent.journal.roll_calls import RollCalls
from distconsole_agent.journal.source_collector import SourceCollector
from distconsole_agent.node_folder.folders import remove_tree, write_private
from distconsole_agent.supervisor.notes import record_damage
from distconsole_agent.system.kernel_files import text_of
from distconsole_agent.system.own_log import complain
from distconsole_agent.telemetry.mapping import RunningRank
from distconsole_agent.telemetry.sampling import Sample

SYNC_SECONDS = 30.0
"""How long the disk may take until it keeps a run's record for good, before its end is noted."""

RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 60.0
"""Pause after a disk that is full or an error of ours; it doubles while nothing gets better."""

DUE_SECONDS = 0.002
"""So long after windows are due they are looked for."""

READ_ALONG_SECONDS = 0.25
"""Pace of reading a journal that another agent writes."""


class ActiveRun:
    """A run here; its thread calls ``over`` when the journal ends; ``kept``: the disk may keep how it ended."""

    def __init__(self, folder: str, spec: RunSpec, over: Callable[[ActiveRun], None]) -> None:
        self.folder = folder
        self.spec = spec
        self.run = spec.run
        self.kept = True
        self.journal = Journal(os.path.join(folder, "journal"))
        self._over = over
        self._collector: SourceCollector | None = None
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._attend, name=f"run {self.run}", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        """End the thread and let another agent go on with the journal; the run is not touched."""
        self._leave.set()
        self._thread.join()
        self.journal.close()

    def rank_processes(self) -> list[RunningRank]:
        collector = self._collector
        return collector.rank_processes() if collector is not None else []

    @property
    def roll(self) -> RollCalls | None:
        """Roll calls of this node's ranks; None while another agent collects the run."""
        collector = self._collector
        return None if collector is None else collector.roll

    def give_sample(self, sample: Sample) -> None:
        collector = self._collector
        if collector is not None:
            collector.roll.take_sample(sample)
            body = {"node": sample.node, "gpus": sample.gpus}
            collector.samples.append({"t": sample.t, "kind": "sample", **body})

    @property
    def state(self) -> str:
        """``prepared``, ``running``, or how it ended."""
        collector = self._collector
        if self.journal.ended:
            return last_entry(self.journal).state
        if collector is None:
            told = text_of(os.path.join(self.folder, "shim.jsonl"))
            started = '"event":"started"' in told.replace(" ", "")
        else:
            started = collector.ranks.first_started_ns > 0
        return "running" if started else "prepared"

    def _attend(self) -> None:
        pause = RETRY_SECONDS
        while not self._leave.is_set():
            try:
                if self._go_on():
                    break
                self._leave.wait(READ_ALONG_SECONDS)
                pause = RETRY_SECONDS
                continue
            except (OSError, JournalError) as error:
                self._complain(error)
            # The one guard of this thread: without it the run would lose its record.
            except Exception as error:  # noqa: BLE001
                complain(f"run {self.run}: {type(error).__name__}: {error}")
            self._leave.wait(pause)
            pause = min(2 * pause, LONGEST_RETRY_SECONDS)
        if self.journal.ended:
            self._finish()

    def _go_on(self) -> bool:
        """Collect or read along until the run is over or we leave; return whether that is so."""
        if not self.journal.open_writer():
            self.journal.refresh()
            return self.journal.ended
        collector = self._collector = SourceCollector(self.folder, self.spec, self.journal)
        try:
            self._tick_on(collector)
        finally:
            self._collector = None
            collector.close()
        return True

    def _tick_on(self, collector: SourceCollector) -> None:
        heard_at = time.monotonic()
        to_say = []
        if self.journal.lost_bytes:
            note = record_damage(self.journal.lost_bytes, self.journal.last_seq)
            to_say = [note.entry(time.time())]
        while not collector.over and not self._leave.is_set():
            try:
                if to_say:
                    self.journal.append(to_say, {})
                    to_say = []
                if collector.tick():
                    heard_at = time.monotonic()
                self.journal.say_trouble("")
            except OSError as error:
                # Nothing was lost: the same batch is tried again.
                complain(f"run {self.run}: {error}")
                self.journal.say_trouble(f"{error.strerror}: {error.filename or self.folder}")
                self._leave.wait(RETRY_SECONDS)
            quiet = time.monotonic() - heard_at > QUIET_SECONDS
            pace = QUIET_TICK_SECONDS if quiet else TICK_SECONDS
            self._leave.wait(min(pace, collector.due_seconds + DUE_SECONDS))

    def _finish(self) -> None:
        """Write ``ended.json`` and discard the rings.

        Later agents then read neither the journal nor the rings of this run.
        """
        # A disk that is full or read-only for a while: else the rings stay in memory until another agent comes.
        pause = RETRY_SECONDS
        while not self._put_away() and pause < LONGEST_RETRY_SECONDS:
            if self._leave.wait(pause):
                break
            pause *= 2
        self._over(self)
        self.journal.close()

    def _put_away(self) -> bool:
        """Write the run's end and remove its rings; return whether that could be done."""
        try:
            logs = os.path.join(self.folder, "logs")
            files = [os.path.join(logs, name) for name in os.listdir(logs)]
            self.kept = self.journal.sync_with([*files, logs], SYNC_SECONDS)
            if not self.kept:
                why = self.journal.sync_failure or f"the disk takes longer than {SYNC_SECONDS:g} s"
                complain(f"run {self.run}: its record may not outlive a power cut: {why}")
            else:
                write_summary(self.folder, self.journal)
            if self.spec.rings is not None:
                remove_tree(self.spec.rings)
        except (OSError, JournalError, MemoryError) as error:
            self._complain(error)
            return False
        return True

    def _complain(self, error: Exception) -> None:
        complain(f"run {self.run}: {error or type(error).__name__}")


class RunEnd(NamedTuple):
    """The last entry of a run's journal; ``journal`` is its writer, in ``ended.json``."""

    seq: int
    kind: str
    state: str
    exit_code: int
    t: float = 0.0
    seconds: float = 0.0
    journal: str | None = None
    more: Mapping[str, object] = MappingProxyType({})


def write_summary(folder: str, journal: Journal) -> None:
    """Write ``ended.json``: the ``end`` entry and the journal's writer, readable without a search.

    Raises OSError when it cannot be written, JournalError when the journal cannot be read.
    """
    end = last_entry(journal)._replace(journal=journal.journal_id)
    write_private(os.path.join(folder, "ended.json"), records.write(end))


def last_entry(journal: Journal) -> RunEnd:
    """Return the last entry of a journal that has ended. Raises OSError, and JournalError as ``Reader``."""
    reader = Reader(journal.folder, journal.last_seq - 1)
    try:
        lines = reader.read()
    finally:
        reader.close()
    try:
        return records.read(RunEnd, json.loads(body_of(lines[-1])))
    except (ValueError, IndexError, RecursionError) as error:
        raise JournalError(f"its end cannot be read: {error}") from None
