"""The console's screen: views, prompt, keys, and the tick that draws them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual import on
from textual.app import ComposeResult, SuspendNotSupported
from textual.containers import Horizontal, Vertical
from textual.geometry import Size

from distconsole.config.load import load_config
from distconsole.config.paths import PROJECT_FILE, expand_home, state_dir
from distconsole.errors import ConsoleError
from distconsole.grammar.words import line_words
from distconsole.model import requests as ask
from distconsole.model.verbs import verb_of
from distconsole.tui.chrome import Mode, TimeBar, keys_content, small_content, title_content
from distconsole.tui.keyboard import KeyScreen
from distconsole.tui.later import CallOnUiThread, RunLine
from distconsole.tui.prompt.history import History
from distconsole.tui.prompt.input import Prompt
from distconsole.tui.prompt.keys import SEARCH_LINES
from distconsole.tui.prompt.question import Question
from distconsole.tui.prompt.shortcuts import Shortcuts
from distconsole.tui.session import ConsoleSession
from distconsole.tui.theme.appearance import Appearance
from distconsole.tui.view_switcher import Finder, ViewSwitcher
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Line, Words
from distconsole.tui.widgets.messages import Messages
from distconsole.tui.widgets.offer_list import OfferList
from distconsole.tui.widgets.panel import RULED_TO

if TYPE_CHECKING:
    from distconsole.runs.conditions.load_fields import LoadRow
    from distconsole.tui.launch_form.form import LaunchForm
    from distconsole.tui.prompt.completer import LineCompleter
    from distconsole.tui.tasks import RequestTask
    from distconsole.tui.verbs import CommandDispatcher
    from distconsole.tui.views.runs import RunsView
    from distconsole.tui.watches import Watches

TICKS_PER_SECOND = 10
SHORT_LINES = 30
"""Below this many lines the transcript's tail gets fewer."""
SIGN = "\u276f"
"""The prompt's sign."""
UNVISITED = ("help", "launch")
"""Views that the trail back leaves out."""
DEMO_OVER = "the demo is over and its nodes are gone; look around: F4 run  F5 logs  h heat map  W why  q leaves"


class ConsoleScreen(KeyScreen):
    """The console's screen: the first picture comes before the modules of keys and lines are loaded."""

    def __init__(
        self,
        session: ConsoleSession,
        shortcuts: Shortcuts,
        appearance: Appearance,
        history: Path | None,
        startup: Path | None,
        request: ask.Request,
    ) -> None:
        super().__init__(id="_default")
        self.session = session
        self.shortcuts = shortcuts
        self._appearance = appearance
        self.choose_theme = appearance.choose
        self._startup = startup
        self.request = request
        self._offers = OfferList(id="offered", markup=False)
        self.prompt = Prompt(History(history), lambda: self.completer, self._offers, id="prompt")
        self.question = Question(id="question")
        self.views = ViewSwitcher(session, shortcuts, self._make_form, id="views")
        self._title_line = Words(id="title")
        # Looked up by name ten times a second they would cost more than the rest between two pictures.
        self._demo, self._time = Line(id="demo"), TimeBar(id="time")
        self.messages = Messages(id="said")
        self._finder = Finder()
        self._around: tuple[object, ...] = ()
        self._drawn_for = Size(0, 0)
        self._early = []
        self._wanted: deque[tuple[str, Callable[[], object]]] = deque()
        """Views to be made, and what to do then; all other lines wait behind."""
        self._nested: list[tuple[str, Callable[[], object]]] | None = None
        """The same of what is done now; None while nothing of it is."""
        self._trail: list[str] = []
        """Earlier views to go back to, the last one first."""

    def compose(self) -> ComposeResult:
        yield self._title_line
        yield from (self._demo, self.views, self._time)
        with Vertical(id="bottom"):
            yield from (self.messages, self._offers, self.question)
            yield Horizontal(Words(SIGN, id="prompt-sign"), self.prompt, id="prompt-line")
            yield Words(id="keys")

    @cached_property
    def dispatcher(self) -> CommandDispatcher:
        from distconsole.tui.verbs import CommandDispatcher

        return CommandDispatcher(self)

    @cached_property
    def completer(self) -> LineCompleter:
        from distconsole.tui.prompt.completer import LineCompleter

        came, names = Prompt.FilesCame, self._appearance.names
        post = self.prompt.post_message
        return LineCompleter(
            self.session, self.shortcuts, names, lambda: post(came()), lambda: self.view
        )

    @cached_property
    def watches(self) -> Watches:
        from distconsole.tui.watches import Watches

        return Watches(self._load_rows, self.session.clocks.monotonic)

    def _make_form(self) -> LaunchForm:
        from distconsole.tui.launch_form.form import LaunchForm

        bring = partial(self.show_view, "launch")
        return LaunchForm(self.session, self.prompt, bring, self.run_command, id="launch")

    async def on_mount(self) -> None:
        self._fit(self.app.size, update=False)  # all styles are still to be applied
        self._appearance.follow(self.redraw)
        self.views.cluster.me = self.session.my_names
        request, verb = self.request, verb_of(self.request)
        if verb.live and not isinstance(request, ask.Top):
            self._stand()
            await self.views.load(verb.view)
            self.session.first = self.session.start(request, verb.name)
            self.show_view(verb.view)
            self._trail.clear()
        self.set_interval(1 / TICKS_PER_SECOND, self.tick)
        self.call_after_refresh(self._begin)

    def _stand(self) -> None:
        """Load the parts for keys and lines."""
        self.stands = bool(self.dispatcher and self.watches)

    def _begin(self) -> None:
        """Start the work after the first picture."""
        if not self.stands:
            self._stand()
        self.views.cluster.offer(self.session.offers)
        if not (self.session.offers or isinstance(self.request, ask.Demo | ask.Replay)):
            self.session.look_at_hosts()
        self.back_to_view()
        self.dispatcher.prompt_verbs.begin(self._startup, self.dispatcher.run_at)
        if not self._wanted:
            self.let_keys_in()
        self.app.spare_collector()

    @property
    def view(self) -> str:
        return self.views.view

    def want(self, view: str, then: Callable[[], object]) -> None:
        """Call ``then`` once the view called ``view`` is made; later keys and lines wait for that."""
        if self._nested is not None:
            self._nested.append((view, then))
            return
        self._wanted.append((view, then))
        if len(self._wanted) == 1:
            self._early = self._early or []
            self.call_later(self._make_wanted)

    async def _make_wanted(self) -> None:
        while self._wanted and self.is_attached:
            view, then = self._wanted[0]
            await self.views.load(view)
            self._nested = []
            try:
                then()
            finally:
                self._wanted.popleft()
                self._wanted.extendleft(reversed(self._nested))
                self._nested = None
        self.let_keys_in()

    def show_view(self, name: str) -> None:
        if self.views.loaded(name) is None:
            if self.view == "launch":
                self.views.launch.display = False  # a second press of Start is none any more
            self.want(name, partial(self.show_view, name))
            return
        before = self.view
        if name != before:
            again = (name, before, *UNVISITED)
            self._trail = [each for each in self._trail if each not in again]
            self._trail += [] if before in UNVISITED else [before]
        self._turn_to(name)

    def step_back(self) -> bool:
        """Go to the page or view before this one; return False without one."""
        if self._close_page():
            return True
        if self._trail:
            self._turn_to(self._trail.pop())
            return True
        return False

    def _close_page(self) -> bool:
        if self.view == "check" and self.views.check.step_back():
            return True
        if self.view == "cluster" and self.views.cluster.step_back():
            self.redraw()
            return True
        if self.view == "run" and self.views.run.shows_heat:
            self.run_command("heat", quiet=True)
            return True
        return False

    def _turn_to(self, name: str) -> None:
        inside = self.mode in (Mode.VIEW, Mode.FORM)
        self.views.turn_to(name)
        self.views.forget_drawn()
        if name == "runs":
            listing = ask.Runs(where=self.session.where, as_found=True)
            self.session.start(listing, "runs", quiet=True)
        if inside:
            self.call_after_refresh(self.back_to_view)
        self.settle()

    def settle(self) -> None:
        """Draw twice after a layout: the first drawing decides the room that the second one fills."""
        self.call_after_refresh(self.redraw)
        self.call_after_refresh(self.call_after_refresh, self.redraw)

    def on_resize(self) -> None:
        """Draw again for a new size, without a frame between; Textual reports a size at each layout, even the same."""
        size = self.app.size  # an event's may be another one, and the next layout's this again
        if size != self._drawn_for:
            self._drawn_for = size
            self._fit(size)
            held = ExitStack()
            held.enter_context(self.app.batch_update())
            self.call_later(self.redraw)  # which the first picture waits for
            self.call_later(held.close)
            self.settle()

    def _fit(self, size: Size, *, update: bool = True) -> None:
        """Set the classes of a size, which Textual's breakpoints do only after a layout without them."""
        classes = {"-ruled": size.width <= RULED_TO, "-short": size.height < SHORT_LINES}
        self.update_classes(classes, update=update, animate=False)

    def redraw(self) -> None:
        self.views.forget_drawn()
        if self.stands:
            self.watches.hurry()
        self.draw_now()

    def tick(self) -> None:
        """Draw, unless a key waits for its answer: then the next tick does."""
        if not self.session.input_priority.awaited:
            self.draw_now()

    def draw_now(self) -> None:
        """Draw the screen if there is news and the pause since the last drawing is over."""
        if not self._title_line.is_attached:
            return  # the screen is being taken down
        if self.stands and not self._wanted:  # else the view of what came is on its way
            self._follow_demo()
            self._look()
            self.dispatcher.prompt_verbs.look()
            self._tell()
            if self.view == "launch":
                self.views.launch.tick()
            if self.view == "run" and self.prompt.value.startswith("find "):
                self.dispatcher.typing(self.prompt.value)  # and so the count goes on
        self._draw_around()
        self.views.draw()

    def run_command(self, line: str, *, quiet: bool = False) -> None:
        if self._wanted and self._nested is None:
            place = self.session.transcript.place
            self.want(self.view, partial(self.dispatcher.run_at, place, line, quiet=quiet))
        else:
            self.dispatcher.run_command(line, quiet=quiet)

    def save_screenshot(self, path: str | None) -> str:
        """Write a picture of the screen, by default into this folder, else into that of the console's state."""
        name = time.strftime(f"distconsole-{self.view}-%Y%m%d-%H%M%S.svg")
        folder = Path.cwd() if os.access(".", os.W_OK) else state_dir()
        file = folder / name if path is None else expand_home(path)
        try:
            if path is None:
                folder.mkdir(parents=True, exist_ok=True)
            picture = self.app.picture(f"distconsole {self.view}")
            file.write_text(picture, encoding="utf-8", errors="replace")
        except OSError as error:
            raise ConsoleError(
                f"the picture cannot be written: {error.strerror}: {file}", "screenshot FILE"
            ) from None
        return f"saved {file.name} in {file.parent.resolve()}"

    def find(self, words: str, step: int = 1, *, typing: bool = False) -> None:
        panel = self.views.panel
        if typing and not words:
            self._finder.leave()
        elif panel is not None:
            say = self.prompt.note if typing else self.prompt.tell
            say(self._finder.find(panel, words, step, typing=typing))

    def candidates(self, verb: str) -> Iterable[str]:
        return self.completer.candidates(verb) or ()

    def set_up(self, line: str) -> bool:
        before = _written()
        self.session.lends_terminal = True
        try:
            with self.app.suspend(), suppress(EOFError):
                program = [sys.executable, "-P", "-m", "distconsole", *line_words(line)]
                subprocess.run(program, check=False)
                input("Enter goes back to the console")
        except SuspendNotSupported:
            return False
        finally:
            self.session.lends_terminal = False
        self.app.action_draw_anew()
        # Its exit code is that of its check, which may fail on hosts that are set up.
        if _written() != before and (cluster := load_config().cluster) is not None:
            self.run_command(f"hosts --cluster {shlex.quote(cluster)}")
        return True

    def leave(self) -> None:
        self.app.exit()

    def action_step_back(self) -> None:
        """Leave the prompt, else the field, else the page, else the filter, else the view; never the console."""
        if self.mode is Mode.PROMPT:
            if self.view != "launch":
                self.prompt.give_up()
            self.focus_view()
        elif self.mode is Mode.FORM:
            self.views.launch.focus_hosts()
        elif self._close_page():
            return
        elif self.views.is_filtered:
            self.run_command("filter", quiet=True)
        elif not self.step_back():
            self.prompt.tell("nothing to go back to: q leaves distconsole")

    @on(OfferList.Chosen)
    def take_offer(self, event: OfferList.Chosen) -> None:
        self.prompt.choose(event.index)

    @on(Prompt.Submitted, "#prompt")
    def run_typed(self, event: Prompt.Submitted) -> None:
        line = event.value.strip().lstrip(":").lstrip()
        if not (self.prompt.value or self.prompt.keys_to_come):
            self.focus_view()
        if line:
            self.prompt.begin()
            self.run_command(line)
            if self.prompt.refused:  # Tab has it, for another try
                self.prompt.mean(self.prompt.meant or line)
            else:
                self.prompt.keep(line)
            if self.prompt.meant:
                self.prompt.open()

    @on(Prompt.Changed, "#prompt")
    def follow_prompt(self, event: Prompt.Changed) -> None:
        """Update the form from the prompt; search while words are typed."""
        if self.view == "launch":
            self.views.launch.follow_prompt()
        self.dispatcher.typing(event.value)

    @on(Prompt.Interrupted)
    def action_interrupt(self) -> None:
        self.dispatcher.interrupt()

    @on(LineTable.Chosen)
    def open_row(self) -> None:
        """Open the row by the view's own key."""
        if self.view == "run":
            self.press("l")
        elif self.view == "cluster":
            self.press("enter")

    def on_runs_view_opened(self, event: RunsView.Opened) -> None:
        self.dispatcher.open_run(event.run, over=event.over)

    def on_run_line(self, message: RunLine) -> None:
        self.run_command(message.line, quiet=True)

    def on_call_on_ui_thread(self, message: CallOnUiThread) -> None:
        message.do()

    def _follow_demo(self) -> None:
        """Point out in the demo what to watch; go on from its check to its run, once."""
        task, line = self.session.first, self._demo
        line.display = task is not None and task.demo_step is not None
        if task is None or task.demo_step is None:
            return
        from distconsole.text.show import demo_lines

        line.show(DEMO_OVER if task.demo_end else demo_lines(task.demo_step)[0])
        if self.view == "check" and task.run.plan is not None and not task.followed:
            task.followed = True
            self.want("run", partial(self._turn_to, "run"))

    def _look(self) -> None:
        said = self.watches.look(self.session.shown_run(), self.session.load_task)
        for line in said:
            self.session.transcript.say(line)
        if said:
            self.app.bell()
        while self.session.rings:
            self.app.to_terminal(self.session.rings.popleft())

    def _load_rows(self, task: RequestTask) -> list[LoadRow]:
        from distconsole.tui.views.cluster.rows import host_rows, load_rows

        now, me = self.session.clocks.monotonic(), self.views.cluster.me
        return load_rows(host_rows(task.load, self.session.hosts, now), me)

    def _tell(self) -> None:
        session, size = self.session, self.app.size
        if self.view == "transcript":
            self.views.transcript.draw()
        room = 2 if size.height < SHORT_LINES else 3
        now = self.dispatcher.prompt_verbs.now_text(size.width - 2)
        said = session.transcript.newest() if self.view != "transcript" else []
        self.messages.add(said, now, room, session.clocks.monotonic())

    def _draw_around(self) -> None:
        session, size, view = self.session, self.app.size, self.view
        shown, past = self.views.shown_task, self.views.is_replayed
        self._time.show_past(shown)
        task, hosts, going = session.load_task, session.hosts, len(session.going)
        mode, told = self.mode, task.version if task else -1
        stoppable, found = bool(session.shown_run_name()), session.found_job() is not None
        heat = view == "run" and self.views.run.shows_heat
        page = view == "cluster" and bool(self.views.cluster.about)
        about: dict[str, Any] = {"replayed": past, "goes_on": stoppable}
        about |= {"found": found, "heat": heat}
        about["offered"] = view == "cluster" and self.views.cluster.offers_hosts
        about["empty"] = shown is None and view in ("run", "logs", "check", "compare")
        about["outermost"] = not (self._trail or page)
        about["unable"] = self._unable(view, over=shown is None or shown.done)
        seen = (view, mode, size, going, len(hosts), told, *about.values())
        if seen == self._around:
            return
        self._around = seen
        lost = sum(1 for host in hosts if task is not None and task.load.lost_because(host))
        keymap = self.shortcuts.keymap
        title = title_content(
            keymap, view, len(hosts), lost, going, size.width, digits=mode is Mode.VIEW
        )
        self._title_line.show(title)
        keys = keys_content(keymap, view, mode, width=size.width, **about)
        self.query_one("#keys", Words).show(small_content(size) or keys)

    def _unable(self, view: str, *, over: bool) -> tuple[str, ...]:
        """Return the lines of keys that have no effect now; ``over``: the shown task has ended."""
        searched = self.views.logs.searched if view == "logs" else self._finder.words
        lines = () if searched else SEARCH_LINES
        if view == "check" and over:
            lines = (*lines, "cancel")
        copies = view not in ("check", "run") or self.dispatcher.command()
        return lines if copies else (*lines, "copy")


def _written() -> tuple[int, int] | None:
    """Return an identity of ``init``'s file in this folder that changes with each writing."""
    with suppress(OSError):
        stat = Path(PROJECT_FILE).stat()
        return stat.st_ino, stat.st_mtime_ns
    return None
