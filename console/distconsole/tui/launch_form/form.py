"""The launch form at work: form and prompt are two views of one line, planned as it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from pathlib import Path

import msgspec
from textual import on

from distconsole.config.load import load_config
from distconsole.errors import ConsoleError
from distconsole.grammar.drafts import draft_of
from distconsole.model import requests as ask
from distconsole.model.cluster import Cluster, Host
from distconsole.model.events import Event, LaunchKept
from distconsole.operations import Control
from distconsole.operations.sessions import lasting
from distconsole.tui.launch_form.model import LaunchFormModel, PlanPreview
from distconsole.tui.prompt.input import Prompt
from distconsole.tui.session import ConsoleSession
from distconsole.tui.tasks import RequestTask
from distconsole.tui.views.launch import HostTable, LaunchView, Pressed
from distconsole.tui.views.launch_fields import FieldRow
from distconsole.tui.widgets.line_table import LineTable


class LaunchForm(LaunchView):
    """The view of a launch, with its model."""

    _launches: RequestTask | None = None
    _mirrored = ""
    _command: tuple[ask.Run | None, str] = (None, "")
    """The shell command of the last valid request."""

    def __init__(
        self,
        session: ConsoleSession,
        prompt: Prompt,
        bring: Callable[[], None],
        run: Callable[[str], None],
        id: str | None = None,  # noqa: A002
    ) -> None:
        super().__init__(id=id)
        self._session = session
        self._prompt = prompt
        self._bring = bring
        self._run_line = run
        self._hosts: tuple[object, tuple[Host, ...]] = (None, ())
        """The session on the console's hosts, and the hosts derived from it."""
        self.model = LaunchFormModel(self._look, self.known_hosts, self._lost)

    def enter(self) -> None:
        """Begin with the prompt's line: the view comes onto the screen, and its fields get the next key."""
        if self._prompt.value.strip():
            self.model.take(self._prompt.value)
            self._mirrored = self._prompt.value
        else:
            self._mirror_model()
        if not self.lists_last:
            self.screen.set_focus(self.rows[0].editor)
        self.draw()

    def leave(self) -> None:
        """Take the line back out of the prompt, and start nothing unseen: the view leaves the screen."""
        self.model.wanted = False
        self._launches = None
        if self._prompt.value == self._mirrored:
            self._mirror("")

    def tick(self) -> None:
        if self.display and self.model.tick():
            self._decide()
        self.draw()

    def draw(self) -> None:
        if not self.display:
            return
        if self._launches is None and self.has_room_for_last:
            self._launches = self._session.start(ask.Launches(), "launches", quiet=True)
        task, loads = self._launches, self._session.load_task
        load = loads.load if loads is not None else None
        going = {each.run.run for each in self._session.going}
        launches = [_mark_going(each, going) for each in task.launches] if task is not None else []
        now = self._session.clocks.monotonic()
        self.show(self.model, self.known_hosts(), load, launches, now)

    def run_verb(self, words: list[str]) -> bool:
        match words:
            case []:
                self._bring()
            case ["start"] if not self.display:
                self._bring()
                self._session.transcript.say("this is what would be started: ^S starts it")
            case ["start"]:
                self.model.want_start()
                self.tick()
            case ["last"]:
                self._list_last()
            case ["copy"]:
                self._copy()
            case _:
                return False
        return True

    def follow_prompt(self) -> None:
        value = self._prompt.value
        if not self.display or value == self._mirrored or not value.strip():
            return
        if self.model.take(value):
            self._mirrored = value
            self.draw()

    def _lost(self, host: str) -> str | None:
        task = self._session.load_task
        return task.load.lost_because(host) if task is not None else None

    def _mirror(self, line: str) -> None:
        if self._prompt.value != line:
            self._prompt.value = line
            self._prompt.cursor_position = len(line)
        self._mirrored = self._prompt.value

    def _mirror_model(self) -> None:
        """Copy the form's line into the prompt, unless the prompt holds another text."""
        if self._prompt.value in ("", self._mirrored):
            self._mirror("" if self.model.blank else self.model.line)

    @on(FieldRow.Edited)
    def edit(self, event: FieldRow.Edited) -> None:
        event.row.heard()
        self.model.edit(event.row.field.name, event.text)
        self._mirror_model()
        self.draw()

    @on(HostTable.Picked)
    def pick(self, event: HostTable.Picked) -> None:
        self.model.choose_hosts(event.names)
        self._mirror_model()
        self.draw()

    @on(Pressed)
    def press_button(self, event: Pressed) -> None:
        """Run a button's verb, unless the form has been left meanwhile."""
        if self.display:
            self.run_verb([event.what])

    @on(LineTable.Chosen, "#launch-last")
    def fill(self) -> None:
        """Fill the form in with the chosen earlier launch."""
        kept = self.last.row_under_cursor()
        if kept is None:
            return
        try:
            line = self._line_of(self._shorten(kept.request))
        except ConsoleError as error:
            self._session.transcript.error(error)
            return
        self.list_last(shown=False)
        self.model.take(line)
        self._mirror(self.model.line)
        self.draw()

    def _decide(self) -> None:
        model = self.model
        model.wanted = False
        trouble = model.trouble
        if trouble is not None:
            about = f"{trouble.field.replace('_', '-')}: " if trouble.field else ""
            self._session.transcript.error(ConsoleError(f"not started: {about}{trouble.words}"))
            self.app.bell()
            return
        self._mirrored = ""
        if self._prompt.value in ("", model.line):
            self._prompt.begin()
            self._prompt.keep(model.line)
            self._prompt.action_empty()
        self._run_line(model.line)

    def _list_last(self) -> None:
        if self.display and self.lists_last:
            self.list_last(shown=False)
            return
        self._launches = self._session.start(ask.Launches(), "launches", quiet=True)
        self._bring()
        self.list_last(shown=True)

    def command(self) -> str:
        latest = self.model.latest
        if latest is None or latest.line != self.model.line or latest.request is None:
            return ""
        if self._command[0] is not latest.request:
            try:
                line = f"distconsole {self._line_of(latest.request, outside=True)}"
            except ConsoleError as error:
                line = ""
                self._session.transcript.error(error)
            self._command = latest.request, line
        return self._command[1]

    def _copy(self) -> None:
        command, say = self.command(), self._session.transcript.say
        if not command:
            say("nothing to copy yet: the launch is not understood")
            return
        self.app.copy_to_clipboard(command)
        say(f"copied: {command}")

    def _look(self, line: str, launchers: bool) -> PlanPreview:
        """Return a preview of the launch in ``line``, to be started; it ends with the session."""
        session = self._session

        def foresee(request: ask.Foresee, control: Control) -> Iterator[Event]:
            run = replace(request.run, where=request.run.where.over(session.where))
            return session.perform(replace(request, run=run), session, control)

        began = session.clocks.monotonic()
        look = PlanPreview(line, session.request, foresee, launchers=launchers, began=began)
        session.looks = [each for each in session.looks if each.goes_on] + [look]
        return look

    def cluster(self) -> Cluster | None:
        return None if self._session.own is None else self._session.own.cluster

    def known_hosts(self) -> tuple[Host, ...]:
        """The console's own hosts, without ports that the configuration gives them anyway."""
        own = self._session.own
        if own is None:
            return ()
        if self._hosts[0] is not own:
            settings = own.config.settings
            hosts = (
                replace(host, port=None) if host.port == settings(host.name).port else host
                for host in own.cluster.hosts
            )
            self._hosts = own, tuple(hosts)
        return self._hosts[1]

    def _shorten(self, request: ask.Run) -> ask.Run:
        """Return the kept ``request`` without the hosts and folder that the console takes anyway."""
        own = self._session.own
        if own is not None:
            ours = lasting(self._session.where, own.cluster)
            request = replace(request, where=request.where.beyond(ours))
        if request.workdir == str(Path.cwd()):
            request = replace(request, workdir=None)
        return replace(request, json=False, dry_run=False)

    def _line_of(self, request: ask.Run, *, outside: bool = False) -> str:
        if outside:
            request = replace(request, where=request.where.over(self._session.where))
        return draft_of(request, load_config().verbs).line()


def _mark_going(kept: LaunchKept, going: Set[str]) -> LaunchKept:
    """Return an earlier launch, marked as running if this session follows it."""
    if kept.summary.run not in going:
        return kept
    summary = msgspec.structs.replace(kept.summary, state="running")
    return msgspec.structs.replace(kept, summary=summary)
