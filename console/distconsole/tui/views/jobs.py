"""The verbs that go on: how long, what each is at, and how it can be ended."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical

from distconsole.model.time_text import duration_text
from distconsole.text.tables import Column
from distconsole.tui.jobs import Ending, Job, spinner
from distconsole.tui.later import RunLine
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.panel import Panel


class JobsView(Vertical):
    DEFAULT_CSS = """
    JobsView > Panel, JobsView #jobs-table { height: 1fr; }
    """

    _turn = ""

    def compose(self) -> ComposeResult:
        columns: list[Column[Job]] = [
            Column("no.", 3, lambda job: str(job.number), right=True),
            Column("", 1, lambda _: Text(self._turn, style="note")),
            Column("time", 7, lambda job: duration_text(job.seconds), right=True),
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
