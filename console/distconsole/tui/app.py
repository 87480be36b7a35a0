"""The application: views, prompt, keys and the beat at which pictures are drawn; no host is touched here."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from functools import partial
from pathlib import Path
from typing import ClassVar

from rich.console import RenderableType
from rich.terminal_theme import TerminalTheme
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import ContentSwitcher

from distconsole.config.paths import state_dir
from distconsole.config.schema import Config
from distconsole.config.shortcuts import startup_file
from distconsole.model import requests as ask
from distconsole.monitor.load_fields import LoadRow
from distconsole.operations import perform
from distconsole.tui.appearance import Appearance, asked_theme, no_color
from distconsole.tui.feeds import Perform, RequestTask
from distconsole.tui.history import History
from distconsole.tui.later import CallOnUiThread
from distconsole.tui.launching import LaunchingApp
from distconsole.tui.leaving import NO_KEY_PROTOCOL, Leaving, let_keys_signal
from distconsole.tui.offers import LineCompleter
from distconsole.tui.pictures import Clocks
from distconsole.tui.prompt import Prompt
from distconsole.tui.question import Question
from distconsole.tui.replaying import ReplayTask, then_shown, travelled
from distconsole.tui.shortcuts import Shortcuts, of_user
from distconsole.tui.sitting import ConsoleSession
from distconsole.tui.sparing import share_one_heap
from distconsole.tui.startup import wants_startup
from distconsole.tui.themes import LOOKS
from distconsole.tui.title import keys_content, small_content, title_content, too_small
from distconsole.tui.verbs import CommandDispatcher
from distconsole.tui.views.check import CheckView
from distconsole.tui.views.cluster import ClusterView, load_rows_of
from distconsole.tui.views.compare import CompareView
from distconsole.tui.views.help import HelpView
from distconsole.tui.views.jobs import JobsView
from distconsole.tui.views.launch import LaunchView
from distconsole.tui.views.logs import LogsView
from distconsole.tui.views.run import RunView
from distconsole.tui.views.runs import RunsView
from distconsole.tui.views.transcript import TranscriptView
from distconsole.tui.watches import Watches
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Said, Words
from distconsole.tui.widgets.offer_list import OfferList
from distconsole.tui.widgets.time_bar import TimeBar

BEATS_PER_SECOND = 10
AGE_SECONDS = 1.0
"""Ages and silences are drawn anew this often, even if nothing came."""
DRAWING_SHARE = 0.05
"""Drawing rests for so long after each picture that it takes at most this share of the time."""
SHORT_LINES = 30
"""A screen of fewer lines gives the transcript's tail less."""


class ConsoleApp(LaunchingApp):
    """distconsole, full screen.

    Args:
        request: What to begin with.
        history: Where lines typed are kept; None keeps them for this session only.
        clocks: Where ages are counted from.
        perform: What does requests.
        theme: The theme to begin with; None leaves it to what was chosen before, and to the terminal.
        theme_kept: Where the theme that is chosen is kept; None keeps it for this session only.
        shortcuts: The operator's keys and aliases.
        startup: The start-up file, which is done when the screen stands; None for none.
    """

    CSS_PATH = "app.tcss"
    TITLE = "distconsole"
    AUTO_FOCUS: ClassVar[str | None] = "#prompt"
    VERTICAL_BREAKPOINTS = [(0, "-short"), (SHORT_LINES, "-tall")]  # noqa: RUF012 - as App has it

    def __init__(
        self,
        request: ask.Request,
        history: Path | None = None,
        clocks: Clocks | None = None,
        perform: Perform = perform,
        theme: str | None = None,
        theme_kept: Path | None = None,
        shortcuts: Shortcuts | None = None,
        startup: Path | None = None,
    ) -> None:
        # Without colours the filter that takes them away must be the one for the terminal's own.
        super().__init__(ansi_color=True if no_color() else None)
        self.request = request
        self.clocks = clocks or Clocks()
        self.session = ConsoleSession(getattr(request, "where", ask.Where()), self.clocks, perform)
        self.input_priority = self.session.input_priority
        self.shortcuts = shortcuts or Shortcuts(Config())
        self.keymap = self.shortcuts.keymap
        self._startup = startup
        self.dispatcher = CommandDispatcher(self)
        self.set_model()
        self.watches = Watches(self._load_rows, self.clocks.monotonic)
        self._screen_loop: asyncio.AbstractEventLoop | None = None
        self.load_task: RequestTask | None = None
        self.first: RequestTask | None = None
        self._history = History(history)
        self.offers = LineCompleter(
            self.session, self.shortcuts, lambda: self.available_themes, self._files_came
        )
        self._title = Words(id="title")
        self._around: tuple[object, ...] = ()
        self._drawn: dict[str, tuple[int, int]] = {}
        self._drawn_at = 0.0
        self._rest_until = 0.0
        self._jumps = 0
        self.appearance = Appearance(self, theme, theme_kept)

    @classmethod
    def open(cls, request: ask.Request, config: Config) -> int:
        """Run the application and return the exit code.

        Raises:
            ConsoleError: if the hosts given cannot be read.
        """
        share_one_heap()
        state = state_dir()
        app = cls(
            request,
            state / "history",
            theme=asked_theme(request, config),
            theme_kept=state / "theme",
            shortcuts=of_user(config),
            startup=startup_file() if wants_startup(request, config) else None,
        )
        for words in config.passed:
            app.session.transcript.say(words)
        if not isinstance(request, ask.Demo):
            app.session.begin(config)
        with app.leaving():
            try:
                code = app.run() or 0
            finally:
                going = app.session.end()
        with contextlib.suppress(OSError):  # the terminal is gone
            for run in going:
                print(f"{run} goes on without the console: distconsole attach {run}", flush=True)  # noqa: T201
        if app.return_code:
            return app.return_code
        return app.first.exit_code if app.first is not None else code

    def compose(self) -> ComposeResult:
        """Title, views, the transcript's tail, completions, prompt, keys."""
        yield self._title
        with ContentSwitcher(initial="cluster", id="views"):
            yield ClusterView(id="cluster")
            yield CheckView(id="check")
            yield LaunchView(id="launch")
            yield RunView(id="run")
            yield LogsView(id="logs")
            yield RunsView(id="runs")
            yield CompareView(id="compare")
            yield TranscriptView(id="transcript")
            yield JobsView(id="jobs")
            yield HelpView(self.shortcuts, id="help")
        yield TimeBar(id="time")
        with Vertical(id="bottom"):
            yield Said(id="said")
            offers = OfferList(id="offered")
            yield offers
            yield Question(self.rest, id="question")
            yield Prompt(self._history, self.offers, offers, id="prompt")
            yield Words(id="keys")

    def on_mount(self) -> None:
        """Begin with what was asked for."""
        self._screen_loop = asyncio.get_running_loop()
        self.appearance.begin()
        self.query_one(Said).forget()
        self.query_one(ClusterView).me = self.session.my_names
        match self.request:
            case ask.Demo() | ask.Attach() | ask.Replay():
                self.first = self.session.start(self.request, type(self.request).__name__.lower())
                self.show_view("check" if isinstance(self.request, ask.Demo) else "run")
            case _:
                pass
        if not isinstance(self.request, ask.Demo | ask.Replay):
            # What it needs is loaded while the first screen stands there already.
            self.call_after_refresh(self._look_at_hosts)
        self.query_one(Prompt).focus()
        self.set_interval(1 / BEATS_PER_SECOND, self.beat)
        self.call_after_refresh(self.dispatcher.prompt_verbs.begin, self._startup)

    def leaving(self) -> Leaving:
        """Leave when told to end, or when the terminal is closed, and restore it; asked again, at any price."""
        return Leaving(self._leave, lambda: self.return_code is not None, self.session.left_behind)

    def _leave(self, code: int) -> None:
        if self._screen_loop is None:
            sys.exit(code)
        self._screen_loop.call_soon_threadsafe(partial(self.exit, return_code=code))

    def exit(
        self,
        result: int | None = None,
        return_code: int = 0,
        message: RenderableType | None = None,
    ) -> None:
        """Leave; what is stuck then needs no key to be read to hear a Ctrl-C."""
        super().exit(result, return_code, message)
        if self._driver is not None and not self.is_headless:
            let_keys_signal()
            self._driver.write(NO_KEY_PROTOCOL)

    def give_back(self) -> None:
        """Hold the agent's file as small as it travels, too, now that the nodes were asked for theirs."""
        packing = sys.modules.get("distconsole.remote.pack")
        if packing is not None:
            packing.agent_pack().compressed()
        super().give_back()

    def _look_at_hosts(self) -> None:
        top = ask.Top(where=self.session.where)
        self.load_task = self.session.start(top, "top", quiet=True)

    @property
    def ansi_theme(self) -> TerminalTheme:
        """What the sixteen colours of printed text are in the theme that is on."""
        look = LOOKS.get(self.theme)
        return look.ansi if look is not None and look.ansi is not None else super().ansi_theme

    @property
    def is_replayed(self) -> bool:
        """Whether the view shows a past run, so that keys move through it."""
        return isinstance(self._task_of(self.view), ReplayTask)

    def _files_came(self) -> None:
        self.query_one(Prompt).post_message(Prompt.FilesCame())

    @property
    def view(self) -> str:
        """The name of the view on the screen."""
        return self.query_one("#views", ContentSwitcher).current or "cluster"

    @property
    def shown_view(self) -> Widget:
        """The view on the screen."""
        return self.query_one(f"#{self.view}")

    def show_view(self, name: str) -> None:
        """Put the view called ``name`` on the screen."""
        inside, before = self.is_inside, self.view
        if name == "help" and before != "help":
            self.query_one(HelpView).about = before
        self.query_one("#views", ContentSwitcher).current = name
        self.turned_to(name, before)
        self._drawn.clear()
        if name == "runs":
            listing = ask.Runs(where=self.session.where, as_found=True)
            self.session.start(listing, "runs", quiet=True)
        if inside:
            self.call_after_refresh(self.focus_view)
        # A view has no size before it was laid out, and what fits depends on it.
        self.call_after_refresh(self.redraw)

    def redraw(self) -> None:
        """Draw at once, whatever was drawn before."""
        self._drawn.clear()
        self._rest_until = 0.0
        self.watches.hurry()
        self.draw_now()

    def on_resize(self) -> None:
        """Draw anew: what fits depends on the size."""
        self.call_after_refresh(self.redraw)

    def beat(self) -> None:
        """Draw, unless a key waits for its answer: then the next beat does."""
        if not self.input_priority.awaited:
            self.draw_now()

    def draw_now(self) -> None:
        """Draw what is on the screen, if there is anything new to it and drawing has rested enough."""
        if not self._title.is_attached:
            return  # the screen is being taken down
        self._follow_demo()
        self._look()
        self.dispatcher.prompt_verbs.look()
        self._draw_around()
        self.launch_beat()
        view = self.view
        task = self._task_of(view)
        began, working = time.monotonic(), time.thread_time()
        if task is None or (began < self._rest_until and task.jumps == self._jumps):
            return
        self._jumps = task.jumps
        version = (id(task), task.version)
        if self._drawn.get(view) == version and began - self._drawn_at < AGE_SECONDS:
            return
        self._drawn[view] = version
        self._drawn_at = began
        self._draw(view, task)
        # By what it took of a processor: waiting for one on a busy machine is no reason to wait longer.
        self._rest_until = began + (time.thread_time() - working) / DRAWING_SHARE

    def _look(self) -> None:
        """Say what has come of the conditions that are watched, and ring for it."""
        said = self.watches.look(self.session.shown_run(), self.load_task)
        for line in said:
            self.session.transcript.say(line)
        if said:
            self.bell()
        self.to_terminal(self.session.rings.drain())

    def _load_rows(self, task: RequestTask) -> list[LoadRow]:
        me = self.query_one(ClusterView).me
        return load_rows_of(task.load, self.session.hosts, self.clocks.monotonic(), me)

    def _draw_around(self) -> None:
        lines = self.session.transcript.drain()
        if lines:
            self.query_one(TranscriptView).add(lines)
        room = 2 if self.size.height < SHORT_LINES else 3
        now = self.dispatcher.prompt_verbs.now_text(self.size.width - 2)
        self.query_one(Said).add(self.session.transcript.newest(), now, room)
        task, hosts, going = self.load_task, self.session.hosts, len(self.session.going)
        view, inside = self.view, self.is_inside
        past = travelled(self._task_of(view))
        self.query_one(TimeBar).show_past(past)
        width, told = self.size.width, task.version if task else -1
        stoppable = bool(self.dispatcher.shown_run_name())
        heat = view == "run" and self.query_one(RunView).shows_heat
        seen = (view, inside, self.size, going, len(hosts), told, bool(past), stoppable, heat)
        if seen == self._around:
            return
        self._around = seen
        lost = sum(1 for host in hosts if task is not None and task.load.lost_because(host))
        self._title.show(title_content(self.keymap, view, len(hosts), lost, going, width))
        keys = keys_content(
            self.keymap,
            view,
            inside=inside,
            width=width,
            replayed=bool(past),
            goes_on=stoppable,
            heat=heat,
        )
        if too_small(self.size):
            keys = small_content(self.size)
        self.query_one("#keys", Words).show(keys)

    def _draw(self, view: str, task: RequestTask) -> None:
        match view:
            case "cluster":
                plan = task.run.plan
                planned = tuple(each.host for each in plan.hosts) if plan is not None else ()
                own = () if isinstance(task, ReplayTask) else self.session.hosts
                self.query_one(ClusterView).draw(task, own or planned, task.load_clock())
            case "check":
                self.query_one(CheckView).draw(task)
            case "run":
                self.query_one(RunView).draw(task, task.unix())
            case "logs":
                self.query_one(LogsView).draw(task)
            case "compare":
                self.query_one(CompareView).draw(task)
            case "runs":
                self.query_one(RunsView).draw(task, self.session.live_runs)
            case _:
                pass

    def _task_of(self, view: str) -> RequestTask | None:
        match view:
            case "cluster":
                return then_shown(self.session.shown_run(), self.load_task)
            case "check":
                return self.session.latest_check()
            case "run" | "logs":
                return self.session.shown_run()
            case "runs":
                return self.session.listing()
            case "compare":
                return self.session.comparison()
            case _:
                return None

    def _follow_demo(self) -> None:
        """Go on from the demo's check to its run by itself, once."""
        task = self.first
        if task is None or not isinstance(task.request, ask.Demo) or self.view != "check":
            return
        if task.run.plan is not None and task not in self.dispatcher.followed:
            self.dispatcher.followed.append(task)
            self.show_view("run")

    @on(Prompt.Entered)
    def do_line(self, event: Prompt.Entered) -> None:
        """Do what was typed."""
        if event.value.strip():
            self.query_one(Prompt).keep(event.value)
            self.dispatcher.run_command(event.value.strip())

    @on(OfferList.Chosen)
    def take_offer(self, event: OfferList.Chosen) -> None:
        """Take what was clicked."""
        self.query_one(Prompt).choose(event.index)

    @on(Prompt.Paged)
    def page_view(self, event: Prompt.Paged) -> None:
        """Scroll the view while the prompt keeps the focus."""
        inside = (node for node in self.shown_view.walk_children(Widget, with_self=True))
        scrolling = [node for node in inside if node.display and node.max_scroll_y > 0]
        main = max(scrolling, key=lambda node: node.virtual_size.height, default=None)
        if main is None:
            return
        if hasattr(main, "action_page"):
            main.action_page(event.direction)
        elif event.direction < 0:
            main.scroll_page_up(animate=False)
        else:
            main.scroll_page_down(animate=False)

    @on(Prompt.Interrupted)
    def action_interrupt(self) -> None:
        """Ctrl-C ends the foremost verb, never a run: say what was ended, or what ends a run."""
        if self.dispatcher.prompt_verbs.interrupt():
            return
        run = self.dispatcher.shown_run_name()
        key = next((key for key in self.keymap.keys if key.line == "stop {run}"), None)
        stop = f"{key.shown if key else 'stop RUN'} stops {run} on every host; " if run else ""
        leave = "Ctrl+Q leaves, and the run goes on" if run else "Ctrl+Q leaves"
        self.session.transcript.say(f"nothing was interrupted: {stop}{leave}")

    def on_call_on_ui_thread(self, message: CallOnUiThread) -> None:
        """Do what a thread wants done here."""
        message.do()

    @on(Question.Over)
    def back_to_prompt(self) -> None:
        """Where nothing has the focus, the prompt has."""
        if self.focused is None:
            self.query_one(Prompt).focus()

    @on(LineTable.Chosen, "#jobs-table")
    def open_job(self, event: LineTable.Chosen) -> None:
        """Go where the verb under the cursor is seen."""
        self.dispatcher.prompt_verbs.chosen(event.table)

    @on(TimeBar.Sought)
    def go_to_moment(self, event: TimeBar.Sought) -> None:
        """Show the moment that was clicked."""
        self.dispatcher.run_command(f"at {event.percent:g}%", quiet=True)

    @on(LineTable.Chosen, "#runs-table")
    def open_run(self, event: LineTable.Chosen) -> None:
        """Show the run under the cursor again."""
        row = event.table.row_under_cursor()
        if row is not None and not row.head:
            over = row.run.state not in ("running", "unknown")
            self.dispatcher.open_run(row.run.run, over=over)

    @on(LineTable.SortAsked, "#ranks, #hosts, #gpus, #runs-table")
    def sort_rows(self, event: LineTable.SortAsked) -> None:
        """Order the rows by the heading that was clicked."""
        self.dispatcher.run_command(f"sort {event.order}", quiet=True)

    @on(Prompt.Changed)
    def search_as_typed(self, event: Prompt.Changed) -> None:
        """Find what is searched while it is typed."""
        self.dispatcher.typing(event.value)
