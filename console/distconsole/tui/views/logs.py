"""What the ranks printed: colours kept, every other escape already gone, progress bars in place."""

from __future__ import annotations

from msgspec import UNSET
from textual.app import ComposeResult
from textual.containers import Vertical

from distconsole.model.events import LogLine
from distconsole.tui.feeds import Feed
from distconsole.tui.widgets.lines import Words
from distconsole.tui.widgets.log_tail import LogTail


class LogsView(Vertical):
    """All lines of the run, or those that a filter lets through."""

    DEFAULT_CSS = """
    LogsView > #logs-line { height: 1; color: $text-muted; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    LogsView > #log-lines { height: 1fr; }
    """

    def __init__(self, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._wanted = ""

    def compose(self) -> ComposeResult:
        """A heading and the lines."""
        yield Words("no run yet: type 'run SCRIPT', or 'demo'", id="logs-line")
        yield LogTail(id="log-lines")

    def filter(self, wanted: str) -> None:
        """Show only lines of a rank (a number), of a host, or with a word; empty shows all."""
        self._wanted = wanted.strip()

    def draw(self, feed: Feed) -> None:
        """Show the lines that ``feed`` holds."""
        with feed.reading():
            lines = list(feed.run.logs)
            progress = list(feed.run.progress.values())
            count = feed.run.log_count
            name = feed.run.name
        shown = [line for line in lines if self._lets_through(line)]
        tail = self.query_one(LogTail)
        tail.show(shown, [line for line in progress if self._lets_through(line)])
        parts = [f"{name}: {count:,} lines"]
        if count > len(lines):
            parts.append(f"the last {len(lines):,} are here, 'logs {name}' has all")
        if self._wanted:
            parts.append(
                f"filter {self._wanted!r} shows {len(shown):,} ('filter' alone shows all)"
            )
        if not tail.follows:
            parts.append("scrolled back: End follows again")
        self.query_one("#logs-line", Words).show(", ".join(parts))

    def _lets_through(self, line: LogLine) -> bool:
        wanted = self._wanted
        if not wanted:
            return True
        if wanted.isdigit():
            return line.rank is not UNSET and line.rank == int(wanted)
        return wanted == line.host or wanted.lower() in line.line.lower()
