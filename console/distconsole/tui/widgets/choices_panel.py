"""The panel of choices on the screen: hosts by engines, those at which somebody does not reach the host first and marked."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll

from distconsole.model.reports import ChoiceReport
from distconsole.text.choices import MAX_KINDS, RED, UNKNOWN, panel_of, reasons_of, unknown_of
from distconsole.tui.widgets.lines import Words

GAP = 2
NOT_YET = "the interfaces that each engine takes: not known yet"


class ChoicesPanel(VerticalScroll, can_focus=True):
    """Which interface each engine takes on each host."""

    DEFAULT_CSS = "ChoicesPanel { padding: 0 1; scrollbar-size-vertical: 1; }"

    def compose(self) -> ComposeResult:
        yield Words(NOT_YET)

    def show(self, choices: Sequence[ChoiceReport], *, done: bool) -> None:
        """Show ``choices`` from now on; ``done`` tells that no more will come."""
        words = self.query_one(Words)
        if choices:
            words.show(_panel(choices, max(1, self.content_size.width)))
        else:
            words.show("no engine that takes an interface was looked at" if done else NOT_YET)


def _panel(choices: Sequence[ChoiceReport], width: int) -> Text:
    most = MAX_KINDS
    lines = panel_of(choices, most)
    while most > 1 and sum(_widths(lines)) > width:
        most -= 1
        lines = panel_of(choices, most)
    text = Text("interfaces taken", style="strong")
    text.append("  as run starts it · by hand\n", style="faint")
    for number, line in enumerate(lines):
        for column, (cell, room) in enumerate(zip(line, _widths(lines), strict=True)):
            style = "bad" if RED in cell else "" if number and column else "faint"
            text.append(cell, style=style).append(" " * (room - len(cell)))
        text.rstrip()
        text.append("\n")
    for reason in reasons_of(choices):
        text.append(f"{RED} ", style="bad").append(f"{reason}\n")
    for unknown in unknown_of(choices):
        text.append(f"{UNKNOWN} {unknown}\n", style="faint")
    text.rstrip()
    return text


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) + GAP for column in zip(*lines, strict=True)]
