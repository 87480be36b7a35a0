"""A past run at a chosen moment, as a task."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

from msgspec import UNSET

from distconsole.config.paths import runs_dir
from distconsole.errors import ConsoleError
from distconsole.model import requests as ask
from distconsole.model.run_events import LogLine, RunEnded, RunEvents, RunFinding
from distconsole.runs.replay.clock import Axis, ReplayClock, parse_time
from distconsole.runs.replay.recording import Mark, Recording, ReplayWalk, RunState
from distconsole.runs.store.run_file import RunFile
from distconsole.tui.prompt.keys import SCREEN_VERBS
from distconsole.tui.tasks import RequestTask
from distconsole.tui.view_models.hosts import LoadModel

if TYPE_CHECKING:
    from distconsole.runs.timeline import RunTimeline

READ_ENTRIES = 128
"""Entries read at once while the screen waits."""
WALK_ENTRIES = 256
YIELD_SECONDS = 0.001
PLAY_SECONDS = 0.1
"""Seconds between two pictures of a moving time."""
IDLE_SECONDS = 0.25


class ReplayTask(RequestTask):
    """A stored run at the chosen moment: at first its end.

    Its pictures (``run``, ``history``, ``load``) are those of that moment; its ``log_buffer`` has all lines.
    """

    clock: ReplayClock | None = None
    """None until the run is open."""
    recording: Recording | None = None

    _shown_t = 0.0
    _walk: ReplayWalk | None = None
    _whole_shown = False
    _wanted = ""
    _wake: threading.Event

    @property
    def moment_t(self) -> float | None:
        """The shown moment, UNIX seconds; None until there is one."""
        return self._shown_t or None

    @property
    def travelling(self) -> bool:
        return self.clock is not None and (self.clock.playing or not self.clock.at_end)

    def unix(self) -> float:
        """The shown moment, which ages are counted from."""
        return self._shown_t or super().unix()

    def load_clock(self) -> float:
        return self._shown_t

    def marks(self) -> list[Mark]:
        return [] if self.recording is None else list(self.recording.marks)

    def go(self, wanted: str) -> None:
        """Show the moment ``wanted`` (``parse_time``, ``next``, ``previous``); raises ValueError if it is none."""
        clock, recording = self.clock, self.recording
        if clock is None or recording is None:
            self._wanted = wanted
            return
        if wanted in ("next", "previous"):
            self._go_to_mark(clock, recording, after=wanted == "next")
        else:
            clock.seek(parse_time(wanted, clock.axis, clock.t, recording.time_of_step))
        self.wake()

    def go_to(self, t: float) -> None:
        if self.clock is not None:
            self.clock.seek(t)
            self.wake()

    def play(self, words: list[str]) -> None:
        """Let it go on, or stand by ``pause``, or the one after the other by ``toggle``; else raises ValueError."""
        clock = self.clock
        if words and words not in (["toggle"], ["pause"]):
            raise ValueError(f"'{' '.join(words)}' is not known of play")
        if clock is None:
            return
        if words == ["pause"] or (words and clock.playing):
            clock.pause()
        else:
            clock.play()
        self.wake()

    def wake(self) -> None:
        self._wake.set()

    def start(self) -> None:
        self._wake = threading.Event()
        super().start()

    def _go_to_mark(self, clock: ReplayClock, recording: Recording, *, after: bool) -> None:
        # While it plays, the mark that was just passed is not the one before.
        here = clock.t - (clock.speed if clock.playing and not after else 0) - 1e-3
        places = [mark.t for mark in recording.marks]
        if after:
            clock.seek(min((t for t in places if t > clock.t + 1e-3), default=clock.axis.end))
        else:
            clock.seek(max((t for t in places if t < here), default=clock.axis.start))

    def _follow(self) -> None:
        assert isinstance(self.request, ask.Replay)
        self._wanted = self._wanted or self.request.at or ""
        from distconsole.operations.stored.history import open_kept  # noqa: PLC0415 - only who looks back needs it

        with open_kept(self.request.run) as run_file:
            folder = runs_dir()
            recording = Recording(run_file, folder if folder.is_dir() else None, self._keep)
            try:
                with closing(recording):
                    self._show_all(recording, run_file)
            finally:
                self._walk = None  # it still reads the file

    def _show_all(self, recording: Recording, run_file: RunFile) -> None:
        end = run_file.last_seen(recording.record.hosts) or recording.start
        self.clock = ReplayClock(Axis(recording.start, end), self._clocks.monotonic)
        self.recording = recording
        while self.control.asked is None:
            if not recording.whole:
                self._read_some(recording)
            waits = self._show_moment(recording, self.clock)
            if recording.whole:
                self._wake.wait(waits)
                self._wake.clear()
            else:
                time.sleep(YIELD_SECONDS)

    def _read_some(self, recording: Recording) -> None:
        with self.lock:
            recording.read(READ_ENTRIES)
        clock = self.clock
        assert clock is not None
        clock.axis.end = recording.end if recording.whole else max(clock.axis.end, recording.end)
        if self._wanted and (recording.whole or not self._wanted.startswith("step")):
            wanted, self._wanted = self._wanted, ""
            try:
                self.go(wanted)
            except ValueError as error:
                self.voice.say(str(error))
        if recording.whole:
            self.done = True

    def _show_moment(self, recording: Recording, clock: ReplayClock) -> float:
        """Show the clock's moment; return seconds until the next drawing, unless the clock is moved."""
        stands = clock.stop_at_end() if recording.whole else not clock.playing
        t = clock.t
        if t >= recording.end:
            if t != self._shown_t or self._walk is not None or not self._whole_shown:
                self._walk, self._whole_shown = None, recording.whole
                self._show(recording.head, t)
        elif t != self._shown_t or self._walk is None:
            self._move(recording, t)
        return IDLE_SECONDS if stands else PLAY_SECONDS

    def _move(self, recording: Recording, t: float) -> None:
        walk = self._walk
        if walk is None or t < self._shown_t or recording.leaps(self._shown_t, t):
            self._walk = walk = recording.at(t)
            self._show(walk.state, t)
            return
        there = False
        while not there:
            with self.lock:
                there = walk.to(t, WALK_ENTRIES)
            time.sleep(0)
        self._show(walk.state, t)

    def _show(self, state: RunState, t: float) -> None:
        jumps = self.clock.jumps if self.clock is not None else 0
        load = _load_of(state.timeline)
        with self.lock:
            self.run, self.history, self.load = state.timeline, state.history, load
            self._shown_t = t
            self.version += 1
            self.jumps = jumps

    def _keep(self, event: RunEvents) -> None:
        if isinstance(event, LogLine) and not event.transient:
            self.log_buffer.add(event)
        elif isinstance(event, RunEnded):
            self.exit_code = event.exit_code
        elif isinstance(event, RunFinding) and event.check == "run.record_damaged":
            self.voice.say(f"! {event.summary}: {event.seen}")


def _load_of(timeline: RunTimeline) -> LoadModel:
    """Return the hosts and their GPUs in the run's journal, ages counted from its own times."""
    picture = LoadModel(
        nodes=dict(timeline.nodes), gpus=dict(timeline.gpus), links=dict(timeline.links)
    )
    for gpu in timeline.gpus.values():
        if gpu.rank is not UNSET:
            picture.seen_at.setdefault(gpu.host, gpu.t)
    picture.seen_at.update({host: node.t for host, node in timeline.nodes.items()})
    return picture


def travel(task: RequestTask | None, words: list[str]) -> None:
    """Perform ``at``, ``play`` and ``pause`` on the shown run; raises ConsoleError if they are invalid."""
    if not isinstance(task, ReplayTask):
        raise ConsoleError(
            f"'{words[0]}' moves through a past run, and none is shown", "replay RUN shows one"
        )
    verb, rest = words[0], words[1:]
    try:
        if verb == "at":
            task.go(" ".join(rest))
        else:
            task.play(["pause"] if verb == "pause" else rest)
    except ValueError as error:
        raise ConsoleError(str(error), f"{verb}: {SCREEN_VERBS[verb]}") from None
