"""The part of the application that launches: form and prompt as two views of one line."""

from __future__ import annotations

from collections.abc import Set

import msgspec
from textual import on
from textual.widgets import ContentSwitcher

from distconsole.errors import ConsoleError
from distconsole.model import requests as ask
from distconsole.model.events import LaunchKept
from distconsole.tui.feeds import RequestTask
from distconsole.tui.keyed import KeyedApp
from distconsole.tui.launch_desk import LaunchFormModel
from distconsole.tui.launch_lines import LaunchLines
from distconsole.tui.prompt import Prompt
from distconsole.tui.sitting import ConsoleSession
from distconsole.tui.verbs import CommandDispatcher
from distconsole.tui.views.launch import HostTable, LaunchView
from distconsole.tui.views.launch_fields import FieldRow

VIEW = "launch"


class LaunchingApp(KeyedApp):
    """What the application does about launches; the rest of it is its heir's."""

    session: ConsoleSession
    dispatcher: CommandDispatcher
    load_task: RequestTask | None

    def set_model(self) -> None:
        """Make the model; the session is there."""
        self.lines = lines = LaunchLines(self.session)
        self.model = LaunchFormModel(
            lines.look, lambda: lines.hosts, self._lost, lines.beside_hosts
        )
        self._launches: RequestTask | None = None
        self._mirrored = ""

    def turned_to(self, view: str, before: str) -> None:
        """Come to the form with the line that stands in the prompt, or leave it."""
        prompt = self.query_one(Prompt)
        if view == VIEW:
            self.query_one(LaunchView).call_later(self._open_form)
        elif before == VIEW and prompt.value == self._mirrored:
            self._mirror("")  # other verbs are typed elsewhere

    async def _open_form(self) -> None:
        await self.query_one(LaunchView).furnish()
        prompt = self.query_one(Prompt)
        if prompt.value.strip():
            self.model.take(prompt.value)
            self._mirrored = prompt.value
        else:
            self._mirror_model()
        self.draw_launch()

    def launch_beat(self) -> None:
        """Plan what changed, start what was to be started, and draw the form."""
        if self._switcher.current == VIEW and self.model.beat():
            self._decide()
        self.draw_launch()

    def draw_launch(self) -> None:
        """Draw the form, if it is on the screen."""
        if self._switcher.current != VIEW:
            return
        view = self.query_one(LaunchView)
        if not view.furnished:
            return
        task = self._launches
        load = self.load_task.load if self.load_task is not None else None
        going = {each.run.run for each in self.session.going}
        launches = [_as_known(each, going) for each in task.launches] if task is not None else []
        now = self.session.clocks.monotonic()
        view.show(self.model, self.lines.hosts, load, launches, now)

    def do_launch_verb(self, words: list[str]) -> bool:
        """Do ``launch``, ``launch start`` and the like; return whether it means anything."""
        match words:
            case []:
                self.dispatcher.run_command("view launch", quiet=True)
            case ["start"]:
                self._start()
            case ["last"]:
                self._list_last()
            case ["copy"]:
                self._copy()
            case _:
                return False
        return True

    @property
    def _switcher(self) -> ContentSwitcher:
        return self.query_one("#views", ContentSwitcher)

    def _lost(self, host: str) -> str | None:
        return self.load_task.load.lost_because(host) if self.load_task is not None else None

    def _mirror(self, line: str) -> None:
        prompt = self.query_one(Prompt)
        if prompt.value != line:
            prompt.value = line
            prompt.cursor_position = len(line)
        self._mirrored = prompt.value

    def _mirror_model(self) -> None:
        """Have the prompt say what the form says, unless something else is being typed there."""
        prompt = self.query_one(Prompt)
        if prompt.value in ("", self._mirrored):
            self._mirror("" if self.model.blank else self.model.line)

    @on(Prompt.Changed, "#prompt")
    def follow_prompt(self) -> None:
        """Have the form say what the prompt says."""
        value = self.query_one(Prompt).value
        if self._switcher.current != VIEW or value == self._mirrored or not value.strip():
            return
        if self.model.take(value):
            self._mirrored = value
            self.draw_launch()

    @on(FieldRow.Edited)
    def edit(self, event: FieldRow.Edited) -> None:
        """Put into the line what was put into a field."""
        event.row.heard()
        self.model.edit(event.row.field.name, event.text)
        self._mirror_model()
        self.draw_launch()

    @on(HostTable.Picked)
    def pick(self, event: HostTable.Picked) -> None:
        """Put the hosts chosen into the line."""
        self.model.choose_hosts(event.names)
        self._mirror_model()
        self.draw_launch()

    @on(LaunchView.Pressed)
    def press_button(self, event: LaunchView.Pressed) -> None:
        """Do what a button says; what comes after the form was left is too late."""
        if self._switcher.current == VIEW:
            self.do_launch_verb([event.what])

    @on(LaunchView.Filled)
    def fill(self, event: LaunchView.Filled) -> None:
        """Fill the form in with a launch of before."""
        try:
            line = self.lines.line_of(self.lines.shortened(event.request))
        except ConsoleError as error:
            self.session.transcript.error(error)
            return
        self.query_one(LaunchView).list_last(shown=False)
        self.model.take(line)
        self._mirror(self.model.line)
        self.draw_launch()

    def _start(self) -> None:
        self.model.want_start()
        self.launch_beat()

    def _decide(self) -> None:
        """Start what the line says, or say why not."""
        model = self.model
        model.wanted = False
        trouble = model.trouble
        if trouble is not None:
            about = f"{trouble.field.replace('_', '-')}: " if trouble.field else ""
            self.session.transcript.error(ConsoleError(f"not started: {about}{trouble.words}"))
            self.bell()
            return
        self._mirrored = ""
        prompt = self.query_one(Prompt)
        if prompt.value in ("", model.line):
            prompt.keep(model.line)
            prompt.action_empty()
        self.dispatcher.run_command(model.line)

    def _list_last(self) -> None:
        view = self.query_one(LaunchView)
        if self._switcher.current == VIEW and view.furnished and view.lists_last:
            view.list_last(shown=False)
            return
        self._launches = self.session.start(ask.Launches(), "launches", quiet=True)
        self.dispatcher.run_command("view launch", quiet=True)
        view.call_later(self._show_last)

    async def _show_last(self) -> None:
        view = self.query_one(LaunchView)
        await view.furnish()
        view.list_last(shown=True)

    def _copy(self) -> None:
        """Put the shell's command for the same launch into the clipboard, and say it."""
        latest = self.model.latest
        say = self.session.transcript.say
        if latest is None or latest.line != self.model.line or latest.request is None:
            say("nothing to copy yet: the launch is not understood")
            return
        try:
            command = f"distconsole {self.lines.line_of(latest.request, outside=True)}"
        except ConsoleError as error:
            self.session.transcript.error(error)
            return
        self.copy_to_clipboard(command)
        say(f"copied: {command}")


def _as_known(kept: LaunchKept, going: Set[str]) -> LaunchKept:
    """Return a launch of before; of one that this session follows it knows that it goes on."""
    if kept.summary.run not in going:
        return kept
    summary = msgspec.structs.replace(kept.summary, state="running")
    return msgspec.structs.replace(kept, summary=summary)
