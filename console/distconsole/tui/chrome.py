"""The lines around the views: tabs and facts above, a past run's time, and the useful keys below."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, cast

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.content import Content
from textual.geometry import Size
from textual.style import Style

from distconsole.model.names import count_text
from distconsole.model.time_text import clock_text, duration_text
from distconsole.tui.later import RunLine
from distconsole.tui.prompt.keymap import Keymap
from distconsole.tui.prompt.keys import SEARCH_LINES, VIEWS, Key
from distconsole.tui.widgets.bars import spark_text
from distconsole.tui.widgets.lines import Words
from distconsole.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from distconsole.runs.replay.clock import Axis, ReplayClock
    from distconsole.runs.replay.recording import Mark, Recording
    from distconsole.tui.replaying import ReplayTask
    from distconsole.tui.tasks import RequestTask

SMALL = (60, 15)
"""Least columns and lines without a warning on the last line; the screens are made for 80 x 24 and more."""
PRESSES = "presses"
"""Key in the meta of clickable text."""


MAX_LABEL = 24


class Mode(StrEnum):
    """The receiver of pressed keys."""

    VIEW = "VIEW"
    PROMPT = "PROMPT"
    FORM = "FORM"
    ASK = "ASK"


WAYS = {
    Mode.VIEW: (),
    Mode.PROMPT: (("escape", "Esc", "view"), ("tab", "Tab", "complete")),
    Mode.FORM: (("escape", "Esc", "view"), ("tab", "Tab", "next"), ("space", "Space", "choose")),
    Mode.ASK: (("enter", "Enter", "yes"), ("escape", "Esc", "no")),
}
"""First entries of the line of keys, by mode: key that a click presses, name, label."""
FIRST = {
    line: place
    for place, line in enumerate((*SEARCH_LINES, "", "help", "back", "find ", "stop {run}"))
}
"""Lines whose keys come next: on with a search, help, and out."""
BEGINNING = ("check", "launch last")
"""Lines whose keys fill an empty view."""
OF_LIVING = ("stop ", "trace ")
"""Prefixes of key lines that need live ranks; ``why`` also works on an ended run."""
HEAT_KEYS = ("heat", "lines filter")
"""Prefixes of key lines about the heat map."""
EDGE = 1
"""Cells at each side."""
SIGNS = {"finding": "!", "restart": "↻", "begin": "╷", "end": "┤"}


@lru_cache(maxsize=64)
def title_content(
    keymap: Keymap,
    view: str,
    hosts: int,
    lost: int,
    going: int,
    width: int,
    *,
    digits: bool = False,
) -> Content:
    """Return tabs, hosts and running runs in ``width`` cells; the program's name, help and host words give way.

    With ``digits`` these act as the F-keys, many of which some terminals keep for themselves.
    """
    names = keymap.digits if digits else {}
    shown = [(tab, names.get(tab.key, tab.shown)) for tab in keymap.tabs]
    tabs = [_tab(tab, name, here=tab.line.endswith(f" {view}")) for tab, name in shown]
    helps = [key for key in keymap.keys if key.line == "help" and key.key in names][:1]
    first = [_tab(key, names[key.key], here=view == "help") for key in helps]
    facts: list[tuple[str, str]] = []
    if hosts:
        facts.append((f" {count_text(hosts, 'host')}", ""))
    if lost:
        facts.append((f" {lost} lost", "$text-warning"))
    if going:
        facts.append((f" ● {count_text(going, 'run')}", "$text-success"))
    line = _join_facts(tabs, facts)
    if line.cell_length > width and lost:
        line = _join_facts(tabs, [(f" {hosts - lost}/{hosts} hosts", "$text-warning"), *facts[2:]])
    name = Content.styled(" distconsole ", "bold")
    for more in ([name, *first], [name], first):
        whole = Content("").join([*more, line])
        if whole.cell_length <= width:
            return whole
    return line


def _join_facts(tabs: list[Content], facts: list[tuple[str, str]]) -> Content:
    return Content("").join([*tabs, *(Content.styled(words, style) for words, style in facts)])


def _tab(tab: Key, name: str, *, here: bool) -> Content:
    label = f"[bold reverse]{tab.label}[/]" if here else tab.label
    return _clickable(tab.key, f" [$text-accent]{name}[/] {label} ")


def _clickable(key: str, markup: str) -> Content:
    return Content.from_markup(markup).stylize(Style.from_meta({PRESSES: key}))


def small_content(size: Size) -> Content | None:
    """Return the warning on the last line of a too small terminal."""
    if size.width >= SMALL[0] and size.height >= SMALL[1]:
        return None
    words = f" {size.width} x {size.height}: too small, made for 80 x 24"
    return Content.styled(words, "$text-warning")


@lru_cache(maxsize=64)
def keys_content(
    keymap: Keymap,
    view: str,
    mode: Mode,
    *,
    width: int,
    replayed: bool = False,
    goes_on: bool = True,
    found: bool = False,
    heat: bool = False,
    offered: bool = False,
    empty: bool = False,
    outermost: bool = True,
    unable: Collection[str] = (),
) -> Content:
    """Return the mode, and the keys for it in ``view``; with ``heat`` those of the map come first.

    A job that was ``found`` cannot be stopped or traced from here and has no records. While hosts are
    ``offered``, or a view is ``empty``, keys without an object are left out, as are the ``unable`` lines.
    """
    able = _keys_of(keymap, view, goes_on=goes_on, found=found, heat=heat)
    shown = [key for key in able if key.line not in unable]
    first = keymap.first if offered else ()
    if offered or empty:
        begin = () if offered else BEGINNING
        shown = [key for key in shown if key.views in ((), VIEWS) or key.line in begin]
    now = (*first, *(keymap.moving if replayed else ()))
    letters = [*now, *(key for key in shown if key.inside)]
    others = [key for key in shown if not key.inside]
    keys = {Mode.VIEW: [*letters, *others], Mode.ASK: []}.get(mode, others)
    last = len(FIRST)
    keys.sort(key=lambda key: (key not in first, FIRST.get(key.line, last + (key.views == VIEWS))))
    once: dict[str, Key] = {}
    for key in keys:
        once.setdefault(key.line, key)
    if outermost and "back" in once:
        once["back"] = replace(once["back"], label="leave")
        once.pop("back all", None)  # does the same there
    entries = [_named(*way) for way in WAYS[mode]] + [_entry(key) for key in once.values()]
    if mode is Mode.PROMPT and letters:
        entries.append(Content.styled(" │ in the view:", "$text-muted"))
        entries += [Content.styled(f" {key.shown} {key.label} ", "$text-muted") for key in letters]
    content = Content.from_markup(f"[$text-accent][bold reverse] {mode} [/][/] ")
    for entry in entries:
        if content.cell_length + entry.cell_length > width:
            break
        content = Content.assemble(content, entry)
    return content


def _keys_of(keymap: Keymap, view: str, *, goes_on: bool, found: bool, heat: bool) -> list[Key]:
    tabs = {tab.line for tab in keymap.tabs}
    able = [key for key in keymap.keys if key.line not in tabs]
    shown = [key for key in able if not key.views or view in key.views]
    shown = [key for key in shown if goes_on or found or not key.line.startswith(OF_LIVING)]
    if found and view in ("run", "logs"):
        shown = [key for key in shown if "{run}" not in key.line or key.line == "why {run}"]
    return sorted(shown, key=lambda key: heat and not key.line.startswith(HEAT_KEYS))


def _entry(key: Key) -> Content:
    # The label may come from a user's configuration.
    label = key.label if len(key.label) <= MAX_LABEL else f"{key.label[: MAX_LABEL - 1]}…"
    return _named(key.key, key.shown, label)


def _named(key: str, name: str, label: str) -> Content:
    name, label = name.replace("[", r"\["), label.replace("[", r"\[")
    return _clickable(key, f" [$text-accent]{name}[/] {label} ")


SPAN_SECONDS = 2.0
"""Least time of a bar of the throughput, so that each has a value of its own."""


class TimeAxis(Words):
    """The time of a past run as a line that a click seeks in; above it, if there is room, the throughput."""

    def on_click(self, event: events.Click) -> None:
        place = event.get_content_offset(self)
        if place is not None and place.y == self.size.height - 1:
            share = min(1.0, place.x / max(1, self.size.width - 1))
            self.post_message(RunLine(f"at {100 * share:g}%"))


class TimeBar(Panel):
    """The shown moment of a past run; empty without one."""

    DEFAULT_CSS = "TimeBar { display: none; } TimeAxis { text-wrap: nowrap; text-overflow: clip; }"

    _pace: tuple[tuple[int, int], str] = ((0, 0), "")
    """The numbers of read entries and of cells, and the throughput drawn for them."""

    def compose(self) -> ComposeResult:
        yield TimeAxis()

    def show_past(self, shown: RequestTask | None) -> None:
        """Show the place of ``shown`` in a past run; nothing if it is another run."""
        past = shown is not None and shown.is_past
        task = cast("ReplayTask", shown) if past else None
        head = task.clock if task is not None else None
        recording = task.recording if task is not None else None
        self.display = head is not None
        if task is None or head is None or recording is None:
            return
        t, marks = task.moment_t or head.t, task.marks()
        read = 1.0 if recording.whole else recording.head.entries / max(1, recording.total)
        width = max(10, self.app.size.width - (4 if self.framed else 2) * EDGE)
        lines = [axis_text(head.axis, t, marks, width, read)]
        if self.framed:
            lines.insert(0, Text(self._pace_text(recording, head.axis, width), style="curve"))
        self.query_one(TimeAxis).show(Text("\n").join(lines))
        self.entitle(*_where(head, t, marks, read), keys=PAST_KEYS, legend="samples/s of the run")

    def _pace_text(self, recording: Recording, axis: Axis, width: int) -> str:
        seen = (recording.head.entries, width)
        if self._pace[0] != seen:
            pace, count = recording.head.timeline.throughput, int(axis.seconds / SPAN_SECONDS)
            count = max(1, min(width, count))
            means = pace.means(axis.start, axis.seconds / count, count)
            self._pace = seen, spark_text([means[x * count // width] for x in range(width)], width)
        return self._pace[1]


PAST_KEYS = "Space play · [ ] marks · @ a time"


def _where(head: ReplayClock, t: float, marks: Sequence[Mark], read: float) -> tuple[str, Content]:
    """Return the state of the clock with the time, and the last mark before it."""
    way = f"▶ play x{head.speed}" if head.playing else "‖ past "
    passed = f"{duration_text(t - head.axis.start)} of {duration_text(head.axis.seconds)}"
    said = Content("" if read >= 1 else f"… reading, {100 * read:.0f} %")
    last = next((mark for mark in reversed(marks) if mark.t <= t), None)
    if last is not None and read >= 1:
        ago = f" ({duration_text(t - last.t)} ago)" if t - last.t >= 1 else ""
        tone = "error" if last.bad else "warning" if last.kind == "finding" else "primary"
        said = Content.styled(f"{SIGNS[last.kind]} {last.text}{ago}", f"$text-{tone}")
    return f"{way} {clock_text(t)} {passed}", said


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
