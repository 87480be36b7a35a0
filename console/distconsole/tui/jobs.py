"""Running verbs: how to end each, the choice of one to end, and the view of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical

from distconsole.grammar.secrets import mask_secrets
from distconsole.model import requests as ask
from distconsole.model.names import count_text
from distconsole.model.time_text import duration_text
from distconsole.model.verbs import Interrupt, RunRole
from distconsole.operations import StopReason
from distconsole.text.tables import Column
from distconsole.tui.later import RunLine
from distconsole.tui.tasks import RequestTask
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.panel import Panel

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
TURNS_PER_SECOND = 4
SHORT_SECONDS = 0.5
"""A shorter job gets no line."""


class Ending(Enum):
    LEAVE = "ends it; it changes nothing"
    STOP = "stops it before its ranks start"
    ASK = "asks first: it ends what was started on the hosts"
    NOT = "goes on: stop RUN ends it"


@dataclass(frozen=True, slots=True)
class Job:
    task: RequestTask
    seconds: float

    @property
    def number(self) -> int:
        return self.task.number

    @property
    def line(self) -> str:
        return mask_secrets(self.task.line)

    @property
    def ending(self) -> Ending:
        task = self.task
        match task.verb.interrupt:
            case Interrupt.STOP_WORK | Interrupt.END_WORK:
                return Ending.ASK
            case Interrupt.STOP_RUN if task.run.plan is None:
                return Ending.STOP
            case Interrupt.STOP_RUN:
                return Ending.NOT
            case Interrupt.LEAVE_RUN if task.goes_on and task.run.started is not None:
                return Ending.NOT
            case _:
                return Ending.LEAVE

    @property
    def is_stopping(self) -> bool:
        """True from a request to stop its processes until they have ended."""
        asked = self.task.control.asked is not None and not self.task.is_cancelled
        return asked and self.ending in (Ending.STOP, Ending.ASK)

    @property
    def way_out(self) -> str:
        """What Ctrl-C does, for the line above the prompt."""
        if self.task.is_cancelled or self.ending is Ending.NOT:
            return ""
        if self.is_stopping:
            return "^C kills it"
        return "^C waits no longer" if isinstance(self.task.request, ask.Stop) else "^C cancels"

    @property
    def now(self) -> str:
        task = self.task
        if task.is_cancelled or self.is_stopping:
            return "ending"
        if not task.is_run or task.run.started is None:
            return task.voice.now
        with task.lock:
            ranks, steps = len(task.run.ranks), task.run.steps
        return f"{task.run.run}: {count_text(ranks, 'rank')}" + (
            f", step {steps}" if steps else ""
        )

    def end(self) -> None:
        """End it as far as its verb allows; a second request kills."""
        if self.ending is Ending.LEAVE:
            self.task.leave()
        elif self.is_stopping:
            self.task.control.kill(StopReason.INTERRUPT)
        elif self.ending is not Ending.NOT:
            self.task.control.stop(StopReason.INTERRUPT)


def jobs_of(tasks: list[RequestTask], now: float) -> list[Job]:
    """Return the running jobs that a person started, the newest first."""
    return [
        Job(task, max(0.0, now - task.began))
        for task in reversed(tasks)
        if task.number and not task.done and task.view != "cluster"
        if task.verb.role is not RunRole.REPLAYS or task.run.plan is None
    ]


def foremost(jobs: list[Job], view: str) -> Job | None:
    """Return the job for Ctrl-C: the view's, else the newest that may be ended; or None."""
    able = [job for job in jobs if job.ending is not Ending.NOT and not job.task.is_cancelled]
    if view == "check":
        able.sort(key=lambda job: not job.task.is_check)
    return next(iter(able), None)


def spinner(now: float) -> str:
    return SPINNER[int(now * TURNS_PER_SECOND) % len(SPINNER)]


class JobsView(Vertical):
    """The duration, progress and way to end of each job."""

    DEFAULT_CSS = """
    JobsView > Panel, JobsView #jobs-table { height: 1fr; }
    """

    _turn = ""

    def compose(self) -> ComposeResult:
        columns: list[Column[Job]] = [
            Column("no.", 3, lambda job: str(job.number), right=True),
            Column("", 1, lambda _: Text(self._turn, style="note")),
            Column("time", 11, lambda job: duration_text(job.seconds), right=True),
            Column("verb", 28, lambda job: job.line),
            Column("at", 24, lambda job: job.now, fill=lambda job, _: job.now),
            Column("cancel", 22, lambda job: Text(job.ending.value, style="faint"), need=2),
        ]
        with Panel("Nothing goes on", id="jobs-panel"):
            yield LineTable(
                columns,
                same=lambda job: job.number,
                empty="a verb that takes its time would stand here",
                id="jobs-table",
            )

    def job_under_cursor(self) -> str:
        job: Job | None = self.query_one("#jobs-table", LineTable).row_under_cursor()
        return "" if job is None else str(job.number)

    @on(LineTable.Chosen)
    def open_job(self, event: LineTable.Chosen) -> None:
        job: Job | None = event.table.row_under_cursor()
        if job is None:
            return
        task = job.task
        where = task.run.run if task.is_run else "check" if task.is_check else ""
        self.post_message(RunLine(f"view {where or 'transcript'}"))

    def draw(self, jobs: Sequence[Job], now: float) -> None:
        """Show ``jobs``; ``now`` (monotonic seconds) turns the spinner."""
        self._turn = spinner(now)
        self.query_one("#jobs-table", LineTable).show(list(jobs))
        free = sum(1 for job in jobs if job.ending is not Ending.NOT)
        title = f"{len(jobs)} running" if jobs else "Nothing runs"
        keys = "Enter shows it · x or 'cancel NUMBER' ends it" if free else "Enter shows it"
        self.query_one(Panel).entitle(title, keys=keys if jobs else "")
