"""The launch form: fields, hosts, the plan as it changes, and the launches of before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import Button

from distconsole.grammar.drafts import ARGUMENTS, NO, SCRIPT, FieldKind, launch_fields, text_of
from distconsole.model import requests as ask
from distconsole.model.cluster import Host
from distconsole.model.events import LaunchKept
from distconsole.tui.jobs import spinner
from distconsole.tui.launch_form.model import LaunchFormModel
from distconsole.tui.terminal.sanitize import one_line
from distconsole.tui.view_models.hosts import LoadModel
from distconsole.tui.views.launch_fields import FieldRow
from distconsole.tui.views.launch_words import (
    HOST_COLUMNS,
    LAUNCH_COLUMNS,
    HostChoice,
    host_choices,
    plan_text,
)
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Line, Words

IN_SIGHT = (SCRIPT, ARGUMENTS, "launcher", "nproc", "env", "name", "sync", "workdir")
"""Fields that are always shown, in this order; all others are below."""

WIDE = (SCRIPT, ARGUMENTS)
"""Fields that take a whole line."""

WIDE_COLUMNS = 130
"""From so many cells on the plan stands beside the form."""

TALL_LINES = 40
"""A screen of so many lines shows all fields at first."""


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
        """Take all hosts; those that are not connected stay out; all being in, none."""
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
        self.screen.query_one("#launch-form").toggle_class("-unfolded")

    def on_click(self) -> None:
        self.action_fold()


class LastLaunches(LineTable[LaunchKept]):
    """What was launched before; Enter fills the form in."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "Back", show=False)]

    def action_close(self) -> None:
        self.post_message(Pressed("last"))


class LaunchView(Container):
    DEFAULT_CSS = """
    LaunchView { layout: vertical; height: 1fr; }
    LaunchView.-wide { layout: horizontal; }
    LaunchView > #launch-left { height: auto; max-height: 75%; }
    LaunchView.-wide > #launch-left { width: 1fr; height: 1fr; max-height: 100%; }
    LaunchView > #launch-right { height: 1fr; min-height: 5; border-top: solid $panel; }
    LaunchView.-wide > #launch-right { width: 1fr; height: 1fr; border-top: none; border-left: solid $panel; }
    #launch-form { height: auto; }
    LaunchView.-wide #launch-form { max-height: 100%; }
    #launch-form .launch--grid { layout: grid; grid-size: 2; grid-rows: auto; grid-gutter: 0 1; height: auto; }
    #launch-form .launch--line { column-span: 2; }
    #launch-form #launch-others { display: none; }
    #launch-form.-unfolded #launch-others { display: block; layout: grid; }
    #launch-hosts { max-height: 12; }
    #launch-buttons { height: 1; }
    #launch-buttons Button { margin: 0 1 0 0; }
    #launch-buttons Button:disabled { color: $text-muted; background: $boost !important; border: none !important; opacity: 100%; text-opacity: 100%; text-style: none; }
    #launch-plan { height: 1fr; padding: 0 1; }
    #launch-plan Words { height: auto; }
    #launch-last { display: none; height: 1fr; }
    #launch-right.-last > #launch-last { display: block; }
    #launch-right.-last > #launch-plan { display: none; }
    """

    furnished = False
    """Whether there is anything to draw on."""
    _first: Sequence[FieldRow] = ()
    _others: Sequence[FieldRow] = ()

    async def furnish(self) -> None:
        """Make the form, once it is wanted: it is many widgets, and the first screen is another."""
        if self.furnished:
            return
        await self.mount_all(self._parts())
        self.furnished = True
        self._widen()
        self.query_one("#launch-form").set_class(self.size.height >= TALL_LINES, "-unfolded")

    def _parts(self) -> list[Container | Vertical]:
        fields = {each.name: each for each in launch_fields()}
        self._first = [FieldRow(fields.pop(name)) for name in IN_SIGHT if name in fields]
        self._others = [FieldRow(each) for each in fields.values()]
        for row in self._first:
            row.set_class(row.field.name in WIDE, "launch--line")
        form = VerticalScroll(
            Container(*self._first, classes="launch--grid"),
            HostTable(
                HOST_COLUMNS, same=lambda row: row.name, empty="no hosts", id="launch-hosts"
            ),
            More(id="launch-more"),
            Container(*self._others, classes="launch--grid", id="launch-others"),
            id="launch-form",
        )
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
        return [
            Vertical(form, buttons, id="launch-left"),
            Vertical(VerticalScroll(Words(), id="launch-plan"), last, id="launch-right"),
        ]

    @property
    def last(self) -> LastLaunches:
        return self.query_one(LastLaunches)

    @property
    def lists_last(self) -> bool:
        return self.query_one("#launch-right").has_class("-last")

    def list_last(self, *, shown: bool) -> None:
        self.query_one("#launch-right").set_class(shown, "-last")
        if shown:
            self.last.focus()
        elif self.last.has_focus:
            self.rows()[0].editor.focus()

    def rows(self) -> list[FieldRow]:
        return [*self._first, *self._others]

    def show(
        self,
        model: LaunchFormModel,
        hosts: Sequence[Host],
        load: LoadModel | None,
        launches: Sequence[LaunchKept],
        now: float,
    ) -> None:
        """Show the model as it is at ``now`` (monotonic seconds)."""
        if not self.furnished:
            return
        trouble, latest, shown = model.trouble, model.latest, model.shown
        request = latest.request if latest is not None else None
        for row in self.rows():
            row.show(model.draft.text(row.field.name))
            # An empty form is no mistake yet.
            wrong = trouble is not None and trouble.field == row.field.name and not model.blank
            row.tell(one_line(trouble.short) if trouble is not None and wrong else "")
            row.unsaid(_unsaid(row, request))
            if row.field.name == "launcher":
                row.reasons(model.refused)
        plan = latest.plan if latest is not None and latest.line == model.line else None
        self.query_one(HostTable).show(host_choices(hosts, model.chosen_hosts, load, plan))
        self._show_more(model)
        words = plan_text(shown, latest, None if model.blank else trouble, self._state(model, now))
        self.query_one("#launch-plan", VerticalScroll).query_one(Words).show(words)
        self.query_one("#launch-start", Button).disabled = trouble is not None
        self.last.show(launches)

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
        others = self._others
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
        self._widen()

    def _widen(self) -> None:
        self.set_class(self.size.width >= WIDE_COLUMNS, "-wide")

    @on(Button.Pressed)
    def say_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        names = {"launch-start": "start", "launch-list": "last", "launch-copy": "copy"}
        self.post_message(Pressed(names[str(event.button.id)]))


def _unsaid(row: FieldRow, request: ask.Run | None) -> str:
    """Return what holds where a field says nothing, the configuration included."""
    if request is None or row.field.name in (SCRIPT, ARGUMENTS):
        return row.field.default
    text = text_of(request, row.field)
    return "" if text == NO and row.field.kind is FieldKind.FLAG else text
