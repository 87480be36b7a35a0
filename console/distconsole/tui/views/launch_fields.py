"""One field of a launch: its name, its editor, and a line for its error."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Checkbox, Input, Label, Select

from distconsole.grammar.drafts import ARGUMENTS, NO, SCRIPT, YES, FieldKind, LaunchField
from distconsole.tui.terminal.sanitize import one_line
from distconsole.tui.widgets.lines import Words

NAMES = {"nproc": "ranks/host", SCRIPT: "script", ARGUMENTS: "arguments", "env": "env K=V"}
"""Labels in place of an option's own name that is too short."""

EXAMPLES = {
    ARGUMENTS: "--epochs 3 --lr 0.1",
    "env": "SEED=7 NCCL_DEBUG=INFO",
    "env_file": ".env",
    "hostfile": "hosts.txt",
    "name": "baseline",
    "output": "job.sbatch",
    "container": "docker:a",
    "setup": ". env.sh",
    "slurm": "--nodes 2 --time 1:00:00",
}
"""Examples for fields that are empty by default."""


class Line(Input):
    """One line under the prompt's limits; its cursor does not blink, which would cost two drawings a second."""

    def on_mount(self) -> None:
        self.cursor_blink = False

    def validate_value(self, value: str) -> str:
        return one_line(value)


class Tick(Checkbox):
    """A box with or without a cross, visible without colours."""

    BUTTON_LEFT, BUTTON_INNER, BUTTON_RIGHT = "", "[ ]", ""

    def watch_value(self) -> None:
        self.BUTTON_INNER = "[x]" if self.value else "[ ]"
        super().watch_value()
        self.refresh()


class FieldRow(Vertical):
    DEFAULT_CSS = """
    FieldRow { height: auto; }
    FieldRow > Horizontal { height: 1; }
    FieldRow Label { width: 14; color: $text-muted; padding: 0 1; }
    FieldRow.-wrong Label { color: $text-error; text-style: bold; }
    FieldRow Input { width: 1fr; background: $boost; padding: 0 1; }
    FieldRow Input:focus { background: $primary 25%; }
    FieldRow Select { width: 1fr; }
    FieldRow SelectCurrent { background: $boost; padding: 0 1; height: 1; }
    FieldRow Select > SelectCurrent { border: none; }
    FieldRow Select:focus > SelectCurrent { border: none; background: $primary 25%; }
    FieldRow Input > .input--placeholder { color: $text-muted; }
    FieldRow SelectCurrent Static#label { color: $text-muted; height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    FieldRow SelectCurrent .arrow { color: $text-muted; }
    FieldRow SelectCurrent.-has-value Static#label { color: $foreground; }
    FieldRow Select > SelectOverlay { width: 64; max-width: 90vw; constrain: inside inside; }
    FieldRow Checkbox { width: 6; background: $background; padding: 0 1; }
    FieldRow Checkbox > .toggle--button { color: $text-muted; background: $background; }
    FieldRow Checkbox.-on > .toggle--button { color: $text-success; background: $background; }
    FieldRow Checkbox:focus > .toggle--button { background: $primary 25%; }
    FieldRow > .field--note { display: none; height: 1; padding: 0 1 0 14; color: $text-error; text-wrap: nowrap; text-overflow: ellipsis; }
    FieldRow.-wrong > .field--note { display: block; }
    """

    @dataclass
    class Edited(Message):
        row: FieldRow
        text: str

    text = ""
    _unheard = 0
    _wrong = ""

    def __init__(self, field: LaunchField) -> None:
        super().__init__(id=f"field-{field.name.replace('_', '-')}")
        self.field = field
        self._reasons: dict[str, str] = {}
        self._unsaid = self.field.unsaid
        self.editor = self._editor()
        self._note = Words().add_class("field--note", update=False)

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Label(NAMES.get(self.field.name, self.field.label), markup=False)
            yield self.editor
        yield self._note

    def on_mount(self) -> None:
        look = f" ({self.field.metavar})" if self.field.metavar else ""
        self.tooltip = Text(f"{self.field.flag}{look}: {self.field.help}".removeprefix(": "))

    def show(self, text: str) -> None:
        """Take ``text`` from elsewhere; an equivalent value stays as typed."""
        if text == self.text or self._unheard:
            return  # what is being typed here is news to who shows
        before, self.text = self.text, text
        editor = self.editor
        if isinstance(editor, Input):
            if self.field.kind is not FieldKind.WORDS or not _same_words(editor.value, text):
                editor.value = text
                if before == "" or not editor.has_focus:
                    editor.cursor_position = len(text)
        elif isinstance(editor, Checkbox):
            with editor.prevent(Checkbox.Changed):
                editor.value = text == YES
        elif isinstance(editor, Select):
            with editor.prevent(Select.Changed):
                known = text in [value for _, value in self._options()]
                editor.value = text if known else Select.NULL
            self._wrong = "" if known else one_line(text)
            self._prompt(editor)

    def heard(self) -> None:
        self._unheard -= 1

    def tell(self, words: str) -> None:
        self.set_class(bool(words), "-wrong")
        self._note.show(words)

    def unsaid(self, value: str) -> None:
        """Show ``value``, the default of an empty field."""
        if value == self._unsaid:
            return
        self._unsaid = value
        editor = self.editor
        if isinstance(editor, Input):
            editor.placeholder = value
        elif isinstance(editor, Select):
            self._prompt(editor)

    def reasons(self, refused: Mapping[str, str]) -> None:
        editor = self.editor
        if dict(refused) == self._reasons or not isinstance(editor, Select) or editor.expanded:
            return
        self._reasons = dict(refused)
        with editor.prevent(Select.Changed):
            value = editor.value
            editor.set_options(self._options())
            editor.value = value

    def _prompt(self, editor: Select[str]) -> None:
        editor.prompt = self._wrong or self._unsaid or "none"

    def _editor(self) -> Widget:
        field = self.field
        match field.kind:
            case FieldKind.CHOICE | FieldKind.SWITCH:
                prompt = field.unsaid or "none"
                return Select(self._options(), prompt=prompt, compact=True, allow_blank=True)
            case FieldKind.FLAG:
                return Tick(compact=True)
            case _:
                return Line(placeholder=field.unsaid, select_on_focus=False, compact=True)

    def _options(self) -> list[tuple[Text, str]]:
        field = self.field
        if field.kind is FieldKind.SWITCH:
            return [(Text(field.flag), YES), (Text(field.off), NO)]
        found = []
        for choice in field.choices:
            text = Text(choice)
            if choice in self._reasons:
                text.append(f"  ✗ {one_line(self._reasons[choice])}", style="dim")
            found.append((text, choice))
        return found

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._edit(event.input.value)

    @on(Select.Changed)
    def _chosen(self, event: Select.Changed) -> None:
        event.stop()
        value = event.select.value
        self._edit("" if value is Select.NULL else str(value))

    @on(Checkbox.Changed)
    def _ticked(self, event: Checkbox.Changed) -> None:
        event.stop()
        self._edit(YES if event.checkbox.value else "")

    def _edit(self, text: str) -> None:
        words = self.field.kind is FieldKind.WORDS
        if text == one_line(self.text) or (words and _same_words(text, self.text)):
            return
        self.text = text
        self._unheard += 1
        self.post_message(self.Edited(self, text))


def _same_words(one: str, other: str) -> bool:
    try:
        return shlex.split(one) == shlex.split(other)
    except ValueError:
        return one == other
