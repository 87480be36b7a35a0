"""Past and present runs; Enter shows one again."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical

from distconsole.model.events import RunSummary
from distconsole.monitor.summary import seen_in
from distconsole.text.tables import duration_text, number_text
from distconsole.tui.feeds import Feed
from distconsole.tui.widgets.line_table import Column, LineTable
from distconsole.tui.widgets.lines import Words

SHOWN_METRICS = 4

STATE_STYLES = {
    "running": ("● running", "good"),
    "succeeded": ("✓ succeeded", "faint"),
    "failed": ("✗ failed", "bad"),
    "stopped": ("■ stopped", "warn"),
    "unknown": ("? unknown", "note"),
}


def _state(run: RunSummary) -> Text:
    words, style = STATE_STYLES.get(run.state, (run.state, ""))
    return Text(words, style=style)


def _outcome(run: RunSummary) -> Text:
    """What there is to say in the end: the error, or the last metrics, accuracy and loss first."""
    if run.first_failure is not None:
        first = run.first_failure
        return Text(f"rank {first.rank} on {first.host}: {first.error}", style="bad")
    first_names = [name for name in run.metrics if "acc" in name] + ["loss"]
    names = [name for name in dict.fromkeys((*first_names, *run.metrics)) if name in run.metrics]
    return Text(", ".join(f"{name} {run.metrics[name]:.4g}" for name in names[:SHOWN_METRICS]))


def _as_seen(run: RunSummary, feed: Feed) -> RunSummary:
    """Return ``run`` as the feed that follows it shows it."""
    with feed.reading():
        run = seen_in(run, feed.run)
    return msgspec.structs.replace(run, state="running") if feed.goes_on else run


RUN_COLUMNS: list[Column[RunSummary]] = [
    Column("run", 22, lambda run: run.run),
    Column("name", 14, lambda run: run.name, need=5),
    Column("state", 11, _state),
    Column(
        "started",
        16,
        lambda run: time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)),
        need=2,
    ),
    Column("time", 7, lambda run: duration_text(run.seconds), right=True),
    Column("ranks", 5, lambda run: str(run.world_size), 4, True),
    Column("hosts", 5, lambda run: str(len(run.hosts)), 4, True),
    Column("steps", 8, lambda run: "" if run.steps is None else str(run.steps), 3, True),
    Column("samples/s", 9, lambda run: number_text(run.samples_s), 1, True),
    Column("script", 16, lambda run: run.script.rpartition("/")[2], need=3),
    Column("outcome", 24, _outcome, need=1),
]


class RunsView(Vertical):
    """The list of runs."""

    DEFAULT_CSS = """
    RunsView > #runs-line { height: 1; color: $text-muted; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    RunsView > #runs-table { height: 1fr; }
    """

    def compose(self) -> ComposeResult:
        """A heading and the table."""
        yield Words("looking…", id="runs-line")
        yield LineTable(
            RUN_COLUMNS,
            same=lambda run: run.run,
            empty="no runs yet: type 'run SCRIPT', or 'demo'",
            id="runs-table",
        )

    def draw(self, feed: Feed, seen: Iterable[Feed]) -> None:
        """Show the runs that ``feed`` listed; of those in ``seen`` this sitting knows how they are."""
        with feed.reading():
            listed = list(feed.listed)
            done = feed.done
        if not done and not listed:
            return
        shown = {each.run.run: each for each in seen}
        runs = [_as_seen(run, shown[run.run]) if run.run in shown else run for run in listed]
        self.query_one("#runs-table", LineTable).show(runs)
        failed = sum(1 for run in runs if run.state == "failed")
        words = f"{len(runs)} runs, {failed} failed" if runs else "no runs"
        self.query_one("#runs-line", Words).show(
            f"{words}; Escape and Enter, or a double click, show one again"
        )
