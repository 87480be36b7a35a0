"""The time axis of a past run: where on it one is, and what stands out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from rich.text import Text
from textual import events

from distconsole.model.time_text import clock_text, duration_text
from distconsole.runs.replay.clock import Axis, ReplayClock
from distconsole.runs.replay.recording import Mark
from distconsole.tui.later import RunLine
from distconsole.tui.replaying import ReplayTask
from distconsole.tui.widgets.lines import Words

EDGE = 1
"""Cells at each side."""
SIGNS = {"finding": "!", "restart": "↻", "begin": "╷", "end": "┤"}


class TimeBar(Words):
    """Two lines; nothing while no past run is shown."""

    DEFAULT_CSS = """
    TimeBar { height: 2; padding: 0 1; background: $panel; text-wrap: nowrap; text-overflow: clip; display: none; }
    """

    def show_past(self, task: ReplayTask | None) -> None:
        head = task.clock if task is not None else None
        recording = task.recording if task is not None else None
        self.display = head is not None
        if task is None or head is None or recording is None:
            return
        t, marks = task.moment_t or head.t, task.marks()
        read = 1.0 if recording.whole else recording.head.entries / max(1, recording.total)
        width = max(10, self.app.size.width - 2 * EDGE)
        first = _where(head, t, marks, width, read)
        self.show(Text("\n").join([first, axis_text(head.axis, t, marks, width, read)]))

    def on_click(self, event: events.Click) -> None:
        width = max(1, self.size.width - 1)
        place = event.get_content_offset(self)
        if place is not None and place.y == 1:
            self.post_message(RunLine(f"at {100 * min(1.0, place.x / width):g}%"))


def _where(head: ReplayClock, t: float, marks: Sequence[Mark], width: int, read: float) -> Text:
    """Whether it moves, the time, the last thing that stands out before it."""
    text = Text(no_wrap=True, overflow="ellipsis", end="")
    if head.playing:
        text.append(f"▶ play x{head.speed} ", style="good")
    else:
        text.append("‖ past  ", style="note")
    text.append(f"{clock_text(t)} ", style="strong")
    text.append(f"{duration_text(t - head.axis.start)} of {duration_text(head.axis.seconds)}  ")
    if read < 1:
        text.append(f"… reading, {100 * read:.0f} %  ", style="note")
    last = next((mark for mark in reversed(marks) if mark.t <= t), None)
    if last is not None:
        ago = f" ({duration_text(t - last.t)} ago)" if t - last.t >= 1 else ""
        said = f"{SIGNS[last.kind]} {last.text}{ago}"
        text.append(
            said, style="bad" if last.bad else "warn" if last.kind == "finding" else "note"
        )
    text.truncate(width, overflow="ellipsis")
    return text


def axis_text(axis: Axis, t: float, marks: Sequence[Mark], width: int, read: float = 1.0) -> Text:
    def cell(when: float) -> int:
        share = (when - axis.start) / axis.seconds
        return max(0, min(width - 1, round(share * (width - 1))))

    here, known = cell(t), round(read * width)
    signs = ["━" if at < here else "─" if at <= known else "·" for at in range(width)]
    styles = ["accent" if at < here else "faint" for at in range(width)]
    for mark in sorted(marks, key=lambda each: (each.kind == "finding", each.bad)):
        at = cell(mark.t)
        signs[at] = "✗" if mark.bad else SIGNS[mark.kind]
        styles[at] = "bad" if mark.bad else "warn" if mark.kind == "finding" else "note"
    signs[here], styles[here] = "●", "strong"
    text = Text(no_wrap=True, end="")
    for style, run in groupby(zip(signs, styles, strict=True), key=itemgetter(1)):
        text.append("".join(sign for sign, _ in run), style=style)
    return text
