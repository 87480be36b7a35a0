"""Requests that run in threads, each folding its events into a picture that the screen reads.

The screen sets the pace: a task never waits for it and never posts a message per event. A picture
is read and folded under the task's lock; a higher ``version`` means news.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import suppress

from distconsole.config.paths import runs_dir
from distconsole.errors import ConsoleError
from distconsole.grammar.secrets import mask_secrets
from distconsole.model import requests as ask
from distconsole.model import run_events
from distconsole.model.check_outcome import exit_code_of_check
from distconsole.model.events import (
    CheckEnded,
    ConditionJudged,
    DemoEnded,
    DemoStep,
    Event,
    LaunchKept,
    RunListed,
    RunsCompared,
)
from distconsole.model.run_summary import RunSummary
from distconsole.model.verbs import Interrupt, RunRole, verb_of
from distconsole.operations import Control, SessionSource, interrupt, perform
from distconsole.operations.last_resort import LeftBehind
from distconsole.operations.notifying import Notifier
from distconsole.runs.detectors.conclusions import STRAGGLER
from distconsole.runs.logs.buffer import LogBuffer
from distconsole.runs.pace import FRESH_SECONDS
from distconsole.runs.present import done_text
from distconsole.runs.rank_history import RankHistory
from distconsole.runs.timeline import RunTimeline
from distconsole.text.check import summary_text
from distconsole.text.compare import comparison_lines
from distconsole.text.run import NOTED, note_text
from distconsole.text.show import Printer, demo_lines, show_for
from distconsole.tui.terminal.input_priority import InputPriority
from distconsole.tui.transcript import Transcript, Voice
from distconsole.tui.view_models.check import CheckModel
from distconsole.tui.view_models.hosts import Clocks, LoadModel

Perform = Callable[[ask.Request, SessionSource, Control], Iterator[Event]]
"""Performs a request: ``operations.perform``."""


FIGURES = (run_events.Window, run_events.GpuSample, run_events.NodeSample)
"""Events with figures alone, as most have: drawn, without a line of text."""


class RequestTask:
    """One request in a thread; ``quiet`` if the screen asked, not the operator: then it reports only errors."""

    version = 0
    error: ConsoleError | None = None
    exit_code = 0
    done = False
    compared: RunsCompared | None = None
    notifier: Notifier | None = None
    end_told = False
    """True once the end of its run has been folded, or an ending without one reported."""
    followed = False
    """True once the screen has gone on from a demo's check to its run."""
    _told_to = 0.0
    """The newest time in reports of ranks and hosts, UNIX seconds."""
    demo_step: DemoStep | None = None
    demo_end: DemoEnded | None = None
    jumps = 0
    """Number of jumps to other content: these are drawn at once."""
    _left = False

    def __init__(
        self,
        request: ask.Request,
        line: str,
        sessions: SessionSource,
        transcript: Transcript,
        *,
        quiet: bool = False,
        clocks: Clocks | None = None,
        perform: Perform = perform,
        check: CheckModel | None = None,
        number: int = 0,
        input_priority: InputPriority | None = None,
        keeps_load: Callable[[], bool] = lambda: True,
    ) -> None:
        self.request = request
        self._keeps_load = keeps_load
        self.input_priority = input_priority or InputPriority()
        self.number = number
        self.verb = verb_of(request)
        self._perform = perform
        self.line = line
        self.control = Control()
        self.lock = threading.Lock()
        self.run = RunTimeline()
        if self.is_run:
            self.control.timeline, self.control.retell = self.run, self._fold_again
        self.left_behind = LeftBehind()
        folder = runs_dir()
        self.log_buffer = LogBuffer(folder if folder.is_dir() else None)
        self.history = RankHistory()
        self._noted, self._folded = Counter[Hashable](), Counter[Hashable]()
        """Reports of an event in the transcript, and in the present fold of the run."""
        self.load = LoadModel()
        self.check = check or CheckModel()
        self.listed: list[RunSummary] = []
        self.launches: list[LaunchKept] = []
        self._clocks = clocks or Clocks()
        self._sessions = sessions
        self.began = self._clocks.monotonic()
        title = f"[{number}] {mask_secrets(line)}" if number else line
        self.voice: Voice = transcript if quiet else transcript.voice(title)
        self._quiet = quiet
        self._thread = threading.Thread(target=self._work, name=f"task:{line[:40]}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        """Stop waiting for it; a run goes on."""
        self._left = True
        self.control.leave()

    def join(self, timeout_seconds: float) -> bool:
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    @property
    def view(self) -> str:
        return self.verb.view

    @property
    def is_run(self) -> bool:
        return self.verb.role is not RunRole.NONE

    @property
    def is_past(self) -> bool:
        """True for a ``ReplayTask``."""
        return self.verb.role is RunRole.REPLAYS

    @property
    def travelling(self) -> bool:
        return False

    @property
    def goes_on(self) -> bool:
        """True while its run has not ended; False for a replay."""
        over = self.done or self.run.end is not None or self.is_past
        return self.is_run and not over

    @property
    def is_check(self) -> bool:
        return self.view == "check"

    @property
    def is_cancelled(self) -> bool:
        """True once its result is no longer awaited; a run has its own ways to stop."""
        reports = self.verb.interrupt is Interrupt.REPORT
        return self._left or (reports and self.control.asked is not None)

    def unix(self) -> float:
        """Return the reference time for the ages of a run's reports, UNIX seconds.

        While reports wait to be folded, it is the time of the newest one here: a host is not silent because
        its reports wait on this side.
        """
        return self._clocks.unix() - self._behind_seconds()

    @property
    def late_seconds(self) -> float:
        """The age in seconds of the shown state of the run; 0 up to ``FRESH_SECONDS``."""
        late = self._behind_seconds()
        return late if late > FRESH_SECONDS else 0.0

    @property
    def reads_past(self) -> bool:
        """True while the hosts' pasts are read unevenly: sums over them would be false."""
        return self.control.unordered and self.goes_on

    def _behind_seconds(self) -> float:
        if not (self.control.behind and self.goes_on and self._told_to):
            return 0.0
        return max(0.0, self._clocks.unix() - self._told_to)

    def load_clock(self) -> float:
        """Return the reference time for the ages of hosts' samples (``load.seen_at``)."""
        return self._clocks.monotonic()

    def fold(self, event: Event) -> None:
        with self.lock:
            self.version += 1
            if self.is_run and isinstance(event, run_events.RunEvent):
                self._fold_run(event)
                if isinstance(event, FIGURES):
                    return
            match event:
                case run_events.RunEnded() | ConditionJudged():
                    self.exit_code = event.exit_code
                case DemoStep():
                    self.demo_step = event
                case DemoEnded():
                    self.demo_end, self.exit_code = event, event.exit_code
                case CheckEnded() if not self.is_run:
                    self.exit_code = exit_code_of_check(event.report)
                case RunsCompared():
                    self.compared = event
                case RunListed():
                    self.listed.append(event.summary)
                case LaunchKept():
                    self.launches.append(event)
                case _:
                    pass
            self.load.fold(event, self._clocks.monotonic())
            self.check.fold(event)

    def _fold_run(self, event: run_events.RunEvents) -> None:
        self.run.apply(event)
        self.history.apply(event)
        if isinstance(event, FIGURES):
            if not isinstance(event, run_events.GpuSample):
                self._told_to = max(self._told_to, event.t)
            if not isinstance(event, run_events.Window) and self._keeps_load():
                self.load.fold(event, self._clocks.monotonic())
            return
        self.left_behind.see(event)
        if isinstance(event, run_events.LogLine) and not event.transient:
            self.log_buffer.add(event)

    def _fold_again(self, events: Iterator[run_events.RunEvents]) -> None:
        run, history = RunTimeline(), RankHistory()
        run.links = self.run.links
        self._folded.clear()
        for event in events:
            self.input_priority.yield_to_input()
            run.apply(event)
            history.apply(event)
            if isinstance(event, NOTED) and not self._quiet:
                self._note(event, run)
        with self.lock:
            self.run, self.history = run, history
            self.control.timeline = run
            self.version += 1

    def _work(self) -> None:
        try:
            self._follow()
        except ConsoleError as error:
            self._end_with(error)
        except Exception as error:  # noqa: BLE001 - a fault of one verb must not tear down, or print over, the screen
            broken = f"'{self.line}' broke: {type(error).__name__}: {error}"
            hint = "this is a fault of distconsole; the same verb outside the console may say more"
            self._end_with(ConsoleError(broken, hint))
        finally:
            with self.lock:
                self.done = True
                self.version += 1

    def _follow(self) -> None:
        show = None if self._quiet else show_for(self.request, self.voice, on_screen=True)
        events = self._perform(self.request, self._sessions, self.control)
        live = self.is_run and self.verb.live
        for event in events:
            self.input_priority.yield_to_input()
            if self.is_cancelled:
                self._conclude(events, show)
                break
            self.fold(event)
            if live and isinstance(event, FIGURES):
                continue  # no text is made of it
            if self.notifier is not None:
                self.notifier.see(event)
            if show is not None:
                self._tell(event, show)
        if show is not None:
            show.finish()
        if self._left:
            self.voice.say(f"cancelled: {mask_secrets(self.line)}")

    def _tell(self, event: Event, show: Printer) -> None:
        """Report an event, unless a view shows it: then in the transcript alone, or not at all."""
        if isinstance(event, DemoStep | DemoEnded):
            for line in demo_lines(event):
                self.voice.note(line)
        elif isinstance(event, RunsCompared):
            for line in comparison_lines(event.comparison):
                self.voice.note(line)
        elif isinstance(event, CheckEnded):
            self.voice.aside = True
            show.event(event)
            self.voice.aside = False
            self.voice.show(summary_text(self.voice.paint_out, event.report))
        elif not (self.verb.live and isinstance(event, run_events.RunEvent)):
            show.event(event)
        elif self.is_run and isinstance(event, NOTED):
            self._note(event, self.run)

    def _conclude(self, events: Iterator[Event], show: Printer | None) -> None:
        """Let an operation clean up; a check reports its findings so far."""
        if self.verb.interrupt is not Interrupt.REPORT:
            if isinstance(events, Generator):
                events.close()
            return
        with suppress(KeyboardInterrupt):  # it was over
            for event in interrupt(events):
                self.fold(event)
                if show is not None:
                    self._tell(event, show)

    def _note(self, event: run_events.RunEvents, run: RunTimeline) -> None:
        """Add the event's line to the transcript, once even if the event is folded again."""
        if self.verb.role is RunRole.REPLAYS:
            return
        with self.lock:
            done = done_text(run)
            told = isinstance(event, run_events.RunFinding) and run.is_told(event)
        line = "" if told else note_text(event, done)
        if line and not self._was_noted(event, line):
            self.voice.note(line)

    def _was_noted(self, event: run_events.RunEvents, line: str) -> bool:
        """True if an earlier fold reported the same event; a slow rank's start and excess may differ."""
        if isinstance(event, run_events.LinkChanged):
            return False  # of the console's own connections no journal tells
        about: Hashable = type(event)
        if isinstance(event, run_events.RunFinding):
            about = (event.rank, event.hosts) if event.check == STRAGGLER else line
        elif isinstance(event, run_events.RunRestarted):
            about = event.restart
        self._folded[about] += 1
        new = self._folded[about] > self._noted[about]
        self._noted[about] += new
        return not new

    def _end_with(self, error: ConsoleError) -> None:
        self.error = error
        self.exit_code = error.exit_code
        self.voice.close()
        self.voice.error(error)
