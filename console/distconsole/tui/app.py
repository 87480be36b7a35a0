"""The application: views, prompt, keys and the beat at which pictures are drawn; no host is touched here."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import Screen
from textual.theme import Theme
from textual.widget import Widget
from textual.widgets import ContentSwitcher, RichLog

from distconsole.config.paths import state_dir
from distconsole.grammar import VERBS
from distconsole.grammar.complete import Completion
from distconsole.model import requests as ask
from distconsole.monitor.load_fields import LoadRow
from distconsole.operations import perform
from distconsole.tui.feeds import Feed, Perform
from distconsole.tui.keys import KEYS, SCREEN_VERBS
from distconsole.tui.offers import completions, offered_text
from distconsole.tui.palette import meanings
from distconsole.tui.pictures import Clocks
from distconsole.tui.prompt import History, Prompt
from distconsole.tui.sitting import Sitting
from distconsole.tui.title import PRESSES, keys_content, title_content
from distconsole.tui.verbs import Doer
from distconsole.tui.views.check import CheckView
from distconsole.tui.views.cluster import ClusterView, load_rows_of
from distconsole.tui.views.help import HelpView
from distconsole.tui.views.logs import LogsView
from distconsole.tui.views.run import RunView
from distconsole.tui.views.runs import RunsView
from distconsole.tui.watches import Watches
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Said, Words

BEATS_PER_SECOND = 10
AGE_SECONDS = 1.0
"""Ages and silences are drawn anew this often, even if nothing came."""
DRAWING_SHARE = 0.05
"""Drawing rests for so long after each picture that it takes at most this share of the time."""
SHORT_LINES = 30
"""A screen of fewer lines gives the transcript's tail less."""


class ConsoleApp(App[int]):
    """distconsole, full screen.

    Args:
        request: What to begin with.
        history: Where lines typed are kept; None keeps them for this sitting only.
        clocks: Where ages are counted from.
        perform: What does requests.
    """

    CSS_PATH = "app.tcss"
    TITLE = "distconsole"
    AUTO_FOCUS: ClassVar[str | None] = "#prompt"
    VERTICAL_BREAKPOINTS = [(0, "-short"), (SHORT_LINES, "-tall")]  # noqa: RUF012 - as App has it
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(key.key, f"key('{key.key}')", key.label, show=False, priority=True)
            for key in KEYS
            if not key.inside
        ),
        Binding("escape", "swap_focus", "Prompt/view", show=False),
        Binding("ctrl+c", "say_how_to_stop", "Stop", show=False, system=True),
    ]

    def __init__(
        self,
        request: ask.Request,
        history: Path | None = None,
        clocks: Clocks | None = None,
        perform: Perform = perform,
    ) -> None:
        super().__init__()
        self.request = request
        self.clocks = clocks or Clocks()
        self.sitting = Sitting(getattr(request, "where", ask.Where()), self.clocks, perform)
        self.doer = Doer(self)
        self.watches = Watches(self._load_rows, self.clocks.monotonic)
        self.load_feed: Feed | None = None
        self.first: Feed | None = None
        self._history = History(history)
        self._drawn: dict[str, tuple[int, int]] = {}
        self._drawn_at = 0.0
        self._rest_until = 0.0
        self._themed = False

    @classmethod
    def open(cls, request: ask.Request) -> int:
        """Run the application and return the exit code.

        Raises:
            ConsoleError: if the hosts given cannot be read.
        """
        app = cls(request, state_dir() / "history")
        if not isinstance(request, ask.Demo):
            app.sitting.begin()
        try:
            code = app.run() or 0
        finally:
            going = app.sitting.end()
        for run in going:
            print(f"{run} goes on without the console: distconsole attach {run}")  # noqa: T201
        if app.return_code:
            return app.return_code
        return app.first.exit_code if app.first is not None else code

    def compose(self) -> ComposeResult:
        """Title, views, the transcript's tail, completions, prompt, keys."""
        yield Words(id="title")
        with ContentSwitcher(initial="cluster", id="views"):
            yield ClusterView(id="cluster")
            yield CheckView(id="check")
            yield RunView(id="run")
            yield LogsView(id="logs")
            yield RunsView(id="runs")
            yield RichLog(id="transcript", max_lines=2000, wrap=True)
            yield HelpView(id="help")
        with Vertical(id="bottom"):
            yield Said(id="said")
            yield Words(id="offered")
            yield Prompt(self._history, self.completions, id="prompt")
            yield Words(id="keys")

    def on_mount(self) -> None:
        """Begin with what was asked for."""
        self._take_colours(self.current_theme)
        self.theme_changed_signal.subscribe(self, self._take_colours)
        self.query_one(Said).forget()
        self.query_one(ClusterView).me = self.sitting.my_names
        self._offer("")
        match self.request:
            case ask.Demo() | ask.Attach() | ask.Replay():
                self.first = self.sitting.start(self.request, type(self.request).__name__.lower())
                self.show_view("check" if isinstance(self.request, ask.Demo) else "run")
            case _:
                pass
        if not isinstance(self.request, ask.Demo | ask.Replay):
            top = ask.Top(where=self.sitting.where)
            self.load_feed = self.sitting.start(top, "top", quiet=True)
        self.query_one(Prompt).focus()
        self.set_interval(1 / BEATS_PER_SECOND, self.draw_now)

    def _take_colours(self, _theme: Theme) -> None:
        if self._themed:
            self.console.pop_theme()
        self.console.push_theme(meanings(self.theme_variables))
        self._themed = True
        self._drawn.clear()
        for widget in self.query(Widget):
            widget.notify_style_update()
            widget.refresh()

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
        inside = not isinstance(self.focused, Prompt) and self.focused is not None
        self.query_one("#views", ContentSwitcher).current = name
        self._drawn.clear()
        if name == "runs":
            self.sitting.start(ask.Runs(where=self.sitting.where), "runs", quiet=True)
        if inside:
            self.call_after_refresh(self._focus_view)
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

    def draw_now(self) -> None:
        """Draw what is on the screen, if there is anything new to it and drawing has rested enough."""
        if not self.query("#title"):
            return  # the screen is being taken down
        self._follow_demo()
        self._look()
        self._draw_around()
        view = self.view
        feed = self._feed_of(view)
        began = time.monotonic()
        if feed is None or began < self._rest_until:
            return
        version = (id(feed), feed.version)
        if self._drawn.get(view) == version and began - self._drawn_at < AGE_SECONDS:
            return
        self._drawn[view] = version
        self._drawn_at = began
        self._draw(view, feed)
        self._rest_until = began + (time.monotonic() - began) / DRAWING_SHARE

    def _look(self) -> None:
        """Say what has come of the conditions that are watched, and ring for it."""
        said = self.watches.look(self.sitting.shown_run(), self.load_feed)
        for line in said:
            self.sitting.transcript.say(line)
        if said:
            self.bell()

    def _load_rows(self, feed: Feed) -> list[LoadRow]:
        me = self.query_one(ClusterView).me
        return load_rows_of(feed.load, self.sitting.hosts, self.clocks.monotonic(), me)

    def _draw_around(self) -> None:
        lines = self.sitting.transcript.drain()
        if lines:
            log = self.query_one("#transcript", RichLog)
            for line in lines:
                log.write(Text.from_ansi(line))
        room = 2 if self.size.height < SHORT_LINES else 3
        self.query_one(Said).add(lines, self.sitting.transcript.now, room)
        load = self.load_feed.load if self.load_feed is not None else None
        hosts = self.sitting.hosts
        lost = sum(1 for host in hosts if load is not None and load.lost_because(host))
        title = title_content(
            self.view, len(hosts), lost, len(self.sitting.going), self.size.width
        )
        self.query_one("#title", Words).show(title)
        inside = not isinstance(self.focused, Prompt)
        keys = keys_content(self.view, inside=inside, width=self.size.width)
        self.query_one("#keys", Words).show(keys)

    def _draw(self, view: str, feed: Feed) -> None:
        match view:
            case "cluster":
                now = self.clocks.monotonic()
                plan = feed.run.plan
                planned = tuple(each.host for each in plan.hosts) if plan is not None else ()
                self.query_one(ClusterView).draw(feed, self.sitting.hosts or planned, now)
            case "check":
                self.query_one(CheckView).draw(feed)
            case "run":
                self.query_one(RunView).draw(feed, self.clocks.unix())
            case "logs":
                self.query_one(LogsView).draw(feed)
            case "runs":
                self.query_one(RunsView).draw(feed, self.sitting.live_runs)
            case _:
                pass

    def _feed_of(self, view: str) -> Feed | None:
        match view:
            case "cluster":
                return self.load_feed or self.sitting.shown_run()
            case "check":
                return self.sitting.latest_check()
            case "run" | "logs":
                return self.sitting.shown_run()
            case "runs":
                return self.sitting.listing()
            case _:
                return None

    def _follow_demo(self) -> None:
        """Go on from the demo's check to its run by itself, once."""
        feed = self.first
        if feed is None or not isinstance(feed.request, ask.Demo) or self.view != "check":
            return
        if feed.run.plan is not None and feed not in self.doer.followed:
            self.doer.followed.append(feed)
            self.show_view("run")

    @on(Prompt.Submitted)
    def do_line(self, event: Prompt.Submitted) -> None:
        """Do what was typed."""
        line = event.value.strip()
        if line:
            self.query_one(Prompt).keep(line)
            self._offer("")
            self.doer.perform(line)

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
    def action_say_how_to_stop(self) -> None:
        """Ctrl-C stops nothing here: say what does."""
        run = self.doer.shown_run_name()
        stop = f"F8 stops {run} on every host; " if run else ""
        leave = "Ctrl+Q leaves, and the run goes on" if run else "Ctrl+Q leaves"
        self.sitting.transcript.say(f"nothing was interrupted: {stop}{leave}")

    def action_key(self, pressed: str) -> None:
        """Type the line of a key."""
        key = next((key for key in KEYS if key.key == pressed and key.works_in(self.view)), None)
        if key is not None:
            self.doer.press(key)

    @on(events.Click, "#title, #keys")
    def press_clicked(self, event: events.Click) -> None:
        """Do what the key does that was clicked."""
        key = event.style.meta.get(PRESSES)
        if key == "escape":
            self.action_swap_focus()
        elif key:
            self.action_key(key)

    def on_key(self, event: events.Key) -> None:
        """Letters of the view on the screen, while the prompt has not the focus."""
        if isinstance(self.focused, Prompt):
            return
        for key in KEYS:
            if key.inside and key.key == event.key and key.works_in(self.view):
                event.stop()
                self.doer.press(key)
                return

    @on(LineTable.Chosen, "#runs-table")
    def open_run(self, event: LineTable.Chosen) -> None:
        """Show the run under the cursor again."""
        summary = event.table.row_under_cursor()
        if summary is not None:
            self.doer.open_run(summary.run, over=summary.state not in ("running", "unknown"))

    @on(LineTable.SortAsked, "#ranks")
    def sort_ranks(self, event: LineTable.SortAsked) -> None:
        """Order the ranks by the heading that was clicked."""
        self.doer.perform(f"sort {event.order}", quiet=True)

    @on(Prompt.Offered)
    def show_offered(self, event: Prompt.Offered) -> None:
        """Show how the line may go on."""
        self._offer(offered_text(event.completions))

    @on(Prompt.Changed)
    def forget_offered(self, event: Prompt.Changed) -> None:
        """What was offered is for the line as it was; what is searched is found as it is typed."""
        self._offer("")
        self.doer.typing(event.value)

    def _offer(self, words: str) -> None:
        offered = self.query_one("#offered", Words)
        offered.show(Text(words))
        offered.display = bool(words)

    def action_swap_focus(self) -> None:
        """Go from the prompt into the view and back."""
        prompt = self.query_one(Prompt)
        if self.focused is prompt:
            self._focus_view()
        else:
            prompt.focus()

    def _focus_view(self) -> None:
        view = self.shown_view
        inside = (node for node in view.walk_children(Widget, with_self=True))
        usable = [node for node in inside if node.focusable and node.display]
        full = [node for node in usable if not isinstance(node, LineTable) or node.rows]
        self.set_focus(next(iter(full or usable), self.query_one(Prompt)))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Everything that can be done, by name, from the tables of keys and verbs."""
        for key in KEYS:
            if key.works_in(self.view):
                yield SystemCommand(
                    f"{key.label} ({key.shown})", key.line, lambda key=key: self.doer.press(key)
                )
        for verb, words in (*VERBS.items(), *SCREEN_VERBS.items()):
            yield SystemCommand(
                verb, words, lambda verb=verb: self.query_one(Prompt).offer(f"{verb} ")
            )

    def completions(self, line: str) -> list[Completion]:
        """Return how ``line`` may go on, verbs of the screen included."""
        return completions(line, self.sitting, self.available_themes)
