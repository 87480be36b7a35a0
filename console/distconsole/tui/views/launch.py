"""The launch form: fields, hosts, the plan as it changes, and earlier launches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import Button

from distconsole.config.load import load_config
from distconsole.config.notify import notify_settings
from distconsole.errors import ConsoleError
from distconsole.grammar.drafts import (
    ARGUMENTS,
    SCRIPT,
    FieldKind,
    LaunchField,
    launch_fields,
    text_of,
)
from distconsole.model import requests as ask
from distconsole.model.cluster import Cluster, Host
from distconsole.model.events import LaunchKept
from distconsole.model.options import Heading, heading_of
from distconsole.operations.notifying import usual_ways
from distconsole.tui.jobs import spinner
from distconsole.tui.launch_form.model import LaunchFormModel, Trouble
from distconsole.tui.terminal.sanitize import one_line
from distconsole.tui.view_models.hosts import LoadModel
from distconsole.tui.views.launch_fields import EXAMPLES, FieldRow
from distconsole.tui.views.launch_words import (
    HOST_COLUMNS,
    LAUNCH_COLUMNS,
    HostChoice,
    host_choices,
    launch_verdict,
    plan_text,
    plan_title,
    taken_values,
)
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Line, Verdict, Words
from distconsole.tui.widgets.panel import Panel

IN_SIGHT = (SCRIPT, ARGUMENTS, "launcher", "nproc", "env", "workdir", "sync", "name")
"""Fields that are always shown; all others are below them, under the headings of the help."""

WHOLE_LINE = (SCRIPT, ARGUMENTS, "env", "name")

WIDE_COLUMNS = 130
"""Least cells with the plan beside the form."""

TALL_LINES = 40
"""Least lines of a screen with the last launches below the plan."""
LEAST_PLAN_LINES = 4
"""Lines that the form leaves to the plan below it."""
EDGE_CELLS = 4
"""Cells of the verdict's line besides its words."""
PLAN_TITLE = "What will be done"


@dataclass
class Pressed(Message):
    """A button, or the key that does the same: ``start``, ``last`` or ``copy``."""

    what: str


class HostTable(LineTable[HostChoice]):
    """The hosts; Space or a click chooses one, A all or none."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,enter", "choose_host", "Choose", show=False),
        Binding("a", "toggle_all", "All or none", show=False),
    ]

    @dataclass
    class Picked(Message):
        names: list[str]

    def action_choose_host(self) -> None:
        row = self.row_under_cursor()
        if row is not None:
            names = [each.name for each in self.rows if each.chosen != (each is row)]
            self.post_message(self.Picked(names))

    def action_toggle_all(self) -> None:
        """Take all connected hosts; if all are in, none."""
        able = [each.name for each in self.rows if each.away is None]
        chosen = [each.name for each in self.rows if each.chosen]
        self.post_message(self.Picked([] if chosen and set(able) <= set(chosen) else able))

    def on_click(self, event: events.Click) -> None:
        super().on_click(event)
        if event.chain == 1 and 0 < event.y <= len(self.rows) - self.scroll_offset.y:
            self.action_choose_host()


class More(Line, can_focus=True):
    DEFAULT_CSS = """
    More { color: $text-accent; }
    More:focus { background: $primary 25%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("space,enter", "fold", "More", show=False)]

    def action_fold(self) -> None:
        self.screen.query_one(LaunchView).fold()

    def on_click(self) -> None:
        self.action_fold()


class LastLaunches(LineTable[LaunchKept]):
    """Earlier launches; Enter fills the form in."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "Back", show=False)]

    def action_close(self) -> None:
        self.post_message(Pressed("last"))


class Section(Panel):
    """The fields under one heading of the help, the usual ones first; the others are shown when the form is unfolded."""

    def __init__(
        self, heading: Heading, rows: Sequence[FieldRow], hosts: HostTable | None
    ) -> None:
        name = "script" if heading is Heading.OPTIONS else heading.value
        usual = [row for row in rows if row.field.name in IN_SIGHT]
        others = Vertical(
            *(row for row in rows if row not in usual), classes="launch--grid launch--others"
        )
        parts = [Vertical(*usual, classes="launch--grid")] if usual else []
        table = [] if hosts is None else [hosts]
        super().__init__(f"{name[0].upper()}{name[1:]}", *parts, *table, others)
        self.set_class(not usual and hosts is None, "launch--others")
        if hosts is not None:
            self.entitle(keys="Space choose · a all")


class LaunchView(Container):
    DEFAULT_CSS = """
    LaunchView { layout: vertical; height: 1fr; }
    LaunchView > #launch-panes { height: 1fr; layout: vertical; }
    LaunchView.-wide > #launch-panes { layout: horizontal; }
    LaunchView #launch-left { height: auto; }
    LaunchView.-wide #launch-left { width: 1fr; height: 1fr; }
    LaunchView #launch-right { height: 1fr; min-height: 3; width: 1fr; }
    #launch-form { height: auto; scrollbar-size-vertical: 1; }
    #launch-form .launch--grid { layout: grid; grid-size: 2; grid-rows: auto; grid-gutter: 0 1; height: auto; }
    #launch-form .launch--line { column-span: 2; }
    #launch-form .launch--others { display: none; }
    #launch-form.-unfolded .launch--others { display: block; }
    #launch-form.-unfolded .launch--others.launch--grid { layout: grid; }
    #launch-hosts { max-height: 12; }
    #launch-buttons { height: 1; padding: 0 1; }
    #launch-buttons Button { margin: 0 1 0 0; }
    #launch-buttons Button:disabled { color: $text-muted; background: $boost !important; border: none !important; opacity: 100%; text-opacity: 100%; text-style: none; }
    #launch-plan-panel, #launch-plan { height: 1fr; }
    #launch-plan { scrollbar-size-vertical: 1; }
    #launch-line-panel, #launch-last-panel { display: none; }
    LaunchView.-wide #launch-line-panel { display: block; }
    #launch-last { height: 1fr; }
    LaunchView.-wide.-tall #launch-last-panel { display: block; height: 9; }
    LaunchView #launch-right.-last > #launch-last-panel { display: block; height: 1fr; }
    #launch-right.-last > #launch-plan-panel, LaunchView #launch-right.-last > #launch-line-panel { display: none; }
    """

    rows: Sequence[FieldRow] = ()
    """The fields, the script first."""
    _notices = ""
    """The configured channels of notices, shown while the form has none."""

    def compose(self) -> ComposeResult:
        fields = sorted(launch_fields(), key=_place)
        with suppress(ConsoleError):
            settings = notify_settings(load_config().notify)
            self._notices = ",".join(sorted(usual_ways(settings, on_screen=True))) or "none"
        self.rows = [FieldRow(each) for each in fields]
        for row in self.rows:
            row.set_class(row.field.name in WHOLE_LINE, "launch--line")
        hosts = HostTable(
            HOST_COLUMNS, same=lambda row: row.name, empty="no hosts", id="launch-hosts"
        )
        sections = [
            Section(heading, list(rows), hosts if heading is Heading.HOSTS else None)
            for heading, rows in groupby(self.rows, lambda row: heading_of(row.field.name))
        ]
        form = VerticalScroll(*sections, More(id="launch-more"), id="launch-form")
        form.can_focus = False
        buttons = Horizontal(
            Button("Start ^S", id="launch-start", variant="success", compact=True),
            Button("Last launches ^O", id="launch-list", compact=True),
            Button("Copy command ^Y", id="launch-copy", compact=True),
            id="launch-buttons",
        )
        last = LastLaunches(
            LAUNCH_COLUMNS,
            same=lambda row: row.summary.run,
            empty="nothing was launched from here yet",
            id="launch-last",
        )
        plan = VerticalScroll(Words(), id="launch-plan")
        right = Vertical(
            Panel(PLAN_TITLE, plan, id="launch-plan-panel"),
            Panel("The same in a shell", Words(), keys="^Y copy", id="launch-line-panel"),
            Panel(
                "Last launches", last, keys="^O · Enter fills the form in", id="launch-last-panel"
            ),
            id="launch-right",
        )
        panes = Container(Vertical(form, buttons, id="launch-left"), right, id="launch-panes")
        yield from (Verdict(id="launch-verdict"), panes)

    @property
    def last(self) -> LastLaunches:
        return self.query_one(LastLaunches)

    @property
    def has_room_for_last(self) -> bool:
        """True if the last launches stand below the plan."""
        return self.has_class("-wide") and self.has_class("-tall")

    @property
    def lists_last(self) -> bool:
        return self.query_one("#launch-right").has_class("-last")

    def list_last(self, *, shown: bool) -> None:
        self.query_one("#launch-right").set_class(shown, "-last")
        if shown:
            self.screen.set_focus(self.last)
        elif self.last.has_focus:
            self.rows[0].editor.focus()

    @property
    def is_filled_in(self) -> bool:
        focused = self.screen.focused
        around = focused.ancestors if focused is not None else ()
        return any(isinstance(each, FieldRow) for each in around)

    def focus_hosts(self) -> None:
        self.query_one(HostTable).focus()

    def show(
        self,
        model: LaunchFormModel,
        hosts: Sequence[Host],
        load: LoadModel | None,
        launches: Sequence[LaunchKept],
        now: float,
    ) -> None:
        """Show the model as it is at ``now`` (monotonic seconds)."""
        trouble, latest = model.trouble, model.latest
        request = latest.request if latest is not None else None
        taken = taken_values(model, self.cluster()) | {"notify": self._notices}
        for row in self.rows:
            row.show(model.draft.text(row.field.name))
            # An empty form is no mistake yet.
            wrong = trouble is not None and trouble.field == row.field.name and not model.blank
            row.tell(one_line(trouble.short) if trouble is not None and wrong else "")
            row.unsaid(taken.get(row.field.name) or _unsaid(row, request))
            if row.field.name == "launcher":
                row.reasons(model.refused)
        plan = latest.plan if latest is not None and latest.line == model.line else None
        table = self.query_one(HostTable)
        table.show(host_choices(hosts, model.chosen_hosts, load, plan))
        given = any(row.host is not None and row.host.slots for row in table.rows)
        table.leave_out(() if given else ("slots",))
        chosen = sum(row.chosen for row in table.rows)
        section = table.parent
        if isinstance(section, Section):
            section.entitle(f"Hosts {chosen:,} of {len(table.rows):,}")
        self._show_more(model)
        self._show_plan(model, None if model.blank else trouble, now)
        self.query_one("#launch-start", Button).disabled = trouble is not None
        self.last.show(launches)

    def _show_plan(self, model: LaunchFormModel, trouble: Trouble | None, now: float) -> None:
        shown, latest = model.shown, model.latest
        tone, mark, words = launch_verdict(
            shown, trouble, self._state(model, now), self.query_one(HostTable).rows
        )
        self.query_one("#launch-verdict", Verdict).say(tone, mark, words)
        plan = plan_text(shown, latest, model.refused, good=trouble is None)
        cut = tone in ("bad", "note") and len(words) + EDGE_CELLS > self.size.width
        if cut or (tone == "bad" and not plan.plain.strip()):
            plan = Text(f"{words}\n", style=tone).append_text(plan)
        self.query_one("#launch-plan > Words", Words).show(plan)
        title = plan_title(shown.plan) if shown is not None and shown.plan is not None else ""
        self.query_one("#launch-plan-panel", Panel).entitle(state=title)
        self.query_one("#launch-line-panel > Words", Words).show(self.command())

    def cluster(self) -> Cluster | None:
        """Return the console's own hosts; None before they are known."""
        raise NotImplementedError

    def command(self) -> str:
        """Return the shell command that does the same; empty while unknown."""
        raise NotImplementedError

    def _state(self, model: LaunchFormModel, now: float) -> str:
        latest = model.latest
        if model.blank:
            return "type a script; ^O lists what was launched before"
        if model.settled or latest is None:
            return ""
        waited = now - latest.began
        words = f"{spinner(now)} planning"
        if waited >= 1 and latest.line == model.line:
            words += f" {waited:.0f} s"
        if model.wanted:
            words += "; it starts when the plan stands, and any change takes that back"
        return words

    def _show_more(self, model: LaunchFormModel) -> None:
        form = self.query_one("#launch-form")
        others = [row for row in self.rows if row.field.name not in IN_SIGHT]
        if any(row.has_class("-wrong") for row in others):
            form.add_class("-unfolded")
        texts = [(row.field.label, model.draft.text(row.field.name)) for row in others]
        given = [one_line(f"{label} {text}") for label, text in texts if text]
        unfolded = form.has_class("-unfolded")
        names = ", ".join(label for label, _ in texts)
        words = Text("▾ less" if unfolded else f"▸ {len(others)} more: ")
        if not unfolded:
            words.append("; ".join(given) or names, style="" if given else "faint")
        self.query_one(More).show(words)

    def on_resize(self) -> None:
        wide, tall = self.size.width >= WIDE_COLUMNS, self.size.height >= TALL_LINES
        self.update_classes({"-wide": wide, "-tall": tall})
        lines = self.size.height - 2 - LEAST_PLAN_LINES
        most = f"{max(3, lines)}" if not self.has_class("-wide") else "100%"
        self.query_one("#launch-form").styles.max_height = most

    def fold(self) -> None:
        """Show all fields, or only the usual ones."""
        self.query_one("#launch-form").toggle_class("-unfolded")

    @on(Button.Pressed)
    def say_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        names = {"launch-start": "start", "launch-list": "last", "launch-copy": "copy"}
        self.post_message(Pressed(names[str(event.button.id)]))


def _place(field: LaunchField) -> tuple[int, bool, int]:
    """Return a field's heading and place, the always shown ones first."""
    names, usual = [each.name for each in launch_fields()], field.name in IN_SIGHT
    place = IN_SIGHT.index(field.name) if usual else names.index(field.name)
    return list(Heading).index(heading_of(field.name)), not usual, place


def _unsaid(row: FieldRow, request: ask.Run | None) -> str:
    """Return the value that an empty field takes, with the configuration included."""
    field = row.field
    if field.name == SCRIPT or field.kind is FieldKind.FLAG:
        return ""
    text = "" if request is None or field.name == ARGUMENTS else text_of(request, field)
    example = f", such as {EXAMPLES[field.name]}" if field.name in EXAMPLES else ""
    return text or field.unsaid or f"none{example}"
