"""The views: the current one, their contents, the pace of drawing, and the search on the screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from textual.app import ComposeResult
from textual.geometry import Region
from textual.widget import Widget
from textual.widgets import ContentSwitcher

from distconsole.errors import ConsoleError
from distconsole.tui.prompt.keys import VIEWS
from distconsole.tui.prompt.shortcuts import Shortcuts
from distconsole.tui.session import ConsoleSession
from distconsole.tui.terminal.input_priority import KeyWaitsError
from distconsole.tui.views.cluster.view import ClusterView
from distconsole.tui.views.row_order import OrderedView
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Words

if TYPE_CHECKING:
    from distconsole.tui.jobs import JobsView
    from distconsole.tui.launch_form.form import LaunchForm
    from distconsole.tui.tasks import RequestTask
    from distconsole.tui.views.check import CheckView
    from distconsole.tui.views.compare import CompareView
    from distconsole.tui.views.help import HelpView
    from distconsole.tui.views.logs import LogsView
    from distconsole.tui.views.run import RunView
    from distconsole.tui.views.runs import RunsView
    from distconsole.tui.views.transcript import TranscriptView

AGE_SECONDS = 1.0
"""Seconds after which ages and silences are drawn again without news."""
DRAWING_SHARE = 0.05
"""Largest share of the time spent drawing: each drawing is followed by a rest."""


MADE_LATE = {
    "check": ("distconsole.tui.views.check", "CheckView"),
    "run": ("distconsole.tui.views.run", "RunView"),
    "logs": ("distconsole.tui.views.logs", "LogsView"),
    "runs": ("distconsole.tui.views.runs", "RunsView"),
    "compare": ("distconsole.tui.views.compare", "CompareView"),
    "transcript": ("distconsole.tui.views.transcript", "TranscriptView"),
    "jobs": ("distconsole.tui.jobs", "JobsView"),
    "help": ("distconsole.tui.views.help", "HelpView"),
}
"""View -> its module and class, which are imported when it is first wanted."""


class NotLoadedError(Exception):
    """A view was wanted that is not made yet: ``ViewSwitcher.load`` makes it."""

    def __init__(self, view: str) -> None:
        super().__init__(view)
        self.view = view


class ViewSwitcher(ContentSwitcher):
    """The views: the first picture is of the cluster, each other one is loaded and made when it is first wanted.

    Until then its attribute raises ``NotLoadedError``.
    """

    launch: LaunchForm
    check: CheckView
    run: RunView
    logs: LogsView
    runs: RunsView
    compare: CompareView
    transcript: TranscriptView
    help: HelpView
    jobs: JobsView
    _drawn_at = 0.0
    _rest_until = 0.0
    _jumps = 0

    def __init__(
        self,
        session: ConsoleSession,
        shortcuts: Shortcuts,
        make_form: Callable[[], LaunchForm],
        id: str,  # noqa: A002
    ) -> None:
        super().__init__(initial="cluster", id=id)
        self._session = session
        self._shortcuts = shortcuts
        self._make_form = make_form
        self._drawn: dict[str, tuple[int, int]] = {}
        self.cluster = ClusterView(shortcuts.keymap, id="cluster")

    def compose(self) -> ComposeResult:
        yield self.cluster

    def __getattr__(self, name: str) -> Any:
        if name in VIEWS:
            raise NotLoadedError(name)
        raise AttributeError(name)

    def loaded(self, name: str) -> Any:
        """Return the view called ``name``; None if it is not made yet."""
        return vars(self).get(name)

    async def load(self, name: str) -> None:
        if self.loaded(name) is None:
            view = self._make(name)
            view.display = False
            await self.mount(view)
            setattr(self, name, view)

    def _make(self, name: str) -> Widget:
        if name == "launch":
            return self._make_form()
        module, kind = MADE_LATE[name]
        takes = {
            "run": (self._shortcuts.keymap,),
            "transcript": (self._session.transcript,),
            "help": (self._shortcuts,),
        }
        view: Widget = getattr(import_module(module), kind)(*takes.get(name, ()), id=name)
        return view

    @property
    def view(self) -> str:
        return self.current or "cluster"

    @property
    def shown(self) -> Widget:
        return self.query_one(f"#{self.view}")

    @property
    def is_filtered(self) -> bool:
        match self.view:
            case "logs":
                return self.logs.is_filtered
            case "run":
                return self.run.condition is not None
            case _:
                return isinstance(self.shown, OrderedView) and bool(self.shown.order.condition)

    @property
    def is_replayed(self) -> bool:
        shown = self.shown_task
        return shown is not None and shown.is_past

    def take_hosts(self) -> None:
        """Show the console's hosts, now chosen, in place of the choice."""
        self.cluster.me = self._session.my_names
        self.cluster.offer(())

    def turn_to(self, name: str) -> None:
        before = self.view
        if name == "help" and before != "help":
            self.help.about = before
        self.current = name
        if name == "launch":
            self.launch.enter()
        elif before == "launch":
            self.launch.leave()

    def first_focusable(self) -> Widget | None:
        """Return the view's widget for keys: preferably a table with rows; of the logs the lines."""
        if self.view == "logs":
            return self.logs.tail
        inside = self.shown.walk_children(Widget, with_self=True)
        usable = [node for node in inside if node.focusable and node.display]
        tables = [node for node in usable if isinstance(node, LineTable)]
        return next(iter([table for table in tables if table.rows] or tables or usable), None)

    @property
    def panel(self) -> Widget | None:
        focused = self.screen.focused
        inside = focused is not None and self.shown in focused.ancestors_with_self
        return focused if inside else self.first_focusable()

    def page(self, direction: int, share: float = 1.0) -> None:
        """Scroll the focused panel, else the longest, by a page or a share of it, back (-1) or on (1)."""
        from distconsole.tui.widgets.log_tail import LogTail

        inside = self.shown.walk_children(Widget, with_self=True)
        scrolling = [node for node in inside if node.display and node.max_scroll_y > 0]
        longest = max(scrolling, key=lambda node: node.virtual_size.height, default=None)
        panel = self.panel if self.panel in scrolling else longest or self.panel
        if panel is None:
            return
        rows = direction * max(1, int((panel.size.height - 2) * share))
        if isinstance(panel, LineTable):
            panel.action_move(rows)
        elif isinstance(panel, LogTail):
            panel.action_line(rows)
        else:
            panel.scroll_relative(y=rows, animate=False)

    def forget_drawn(self) -> None:
        self._drawn.clear()
        self._rest_until = 0.0

    def draw(self) -> None:
        """Draw the view, if there is news and the pause since the last drawing is over."""
        view, task = self.view, self.shown_task
        began, working = time.monotonic(), time.thread_time()
        if task is None or (began < self._rest_until and task.jumps == self._jumps):
            return
        self._jumps = task.jumps
        version = (id(task), task.version)
        if self._drawn.get(view) == version and began - self._drawn_at < AGE_SECONDS:
            return
        # A drawing gives way to keys, until its figures get old.
        can_wait = self._drawn.get(view) is not None and began - self._drawn_at < 2 * AGE_SECONDS
        try:
            with task.input_priority.drawing(can_wait=can_wait):
                self._draw(view, task)
        except KeyWaitsError:
            return  # the next tick draws it
        self._drawn[view] = version
        self._drawn_at = began
        # In processor time: waiting for a busy machine is no reason to rest longer.
        self._rest_until = began + (time.thread_time() - working) / DRAWING_SHARE

    def _draw(self, view: str, task: RequestTask) -> None:
        match view:
            case "cluster" if self.cluster.offers_hosts:
                pass  # a demo, and a run that is followed, choose no hosts
            case "cluster":
                plan = task.run.plan
                planned = tuple(each.host for each in plan.hosts) if plan is not None else ()
                own = () if task.is_past else self._session.hosts
                runs, check = self._session.live_runs, self._session.newest("check")
                self.cluster.draw(task, own or planned, task.load_clock(), runs, check)
            case "check":
                self.check.draw(task)
            case "run":
                self.run.draw(task, task.unix())
            case "logs":
                self.logs.draw(task)
            case "compare":
                self.compare.draw(task)
            case "runs":
                self.runs.draw(task, self._session.live_runs)
            case _:
                pass

    @property
    def shown_task(self) -> RequestTask | None:
        """The task that the view shows; None if it shows none, or has none yet."""
        session = self._session
        match self.view:
            case "cluster":
                run, load = session.shown_run(), session.load_task
                past = run is not None and run.is_past and (run.travelling or load is None)
                return run if past else load or run
            case "run" | "logs":
                return session.shown_run()
            case "check" | "compare" | "runs":
                return session.newest(self.view)
            case _:
                return None


class Finder:
    """The searched words, and the place of the last match."""

    def __init__(self) -> None:
        self.words = ""
        self._panel: Widget | None = None
        self._place = -1
        self._began: int | None = None
        """The reader's place at the beginning of typing."""

    def leave(self) -> None:
        """End the typing of a search."""
        self._began = None

    def find(self, panel: Widget, words: str, step: int = 1, *, typing: bool = False) -> str:
        """Go to the next line of ``panel`` with ``words``, the last ones if empty; with ``step`` -1 to the previous one.

        While they are typed, each change searches from the same place. Returns a message; raises
        ConsoleError without a match.
        """
        self.words = words or self.words
        if not self.words:
            raise ConsoleError("nothing is searched", "/ finds")
        if panel is not self._panel:
            self._panel, self._place = panel, -1
            self.leave()
        at = panel.cursor if isinstance(panel, LineTable) else self._place
        if self._began is not None and words:
            at = self._began
        self._began = at if typing else None
        at -= bool(words)  # it may stand there already
        # Capital letters match only themselves.
        fold = str.lower if self.words == self.words.lower() else str
        found = [place for place, line in enumerate(_lines(panel)) if self.words in fold(line)]
        if not found:
            raise ConsoleError(f"nothing here has {self.words!r}", "")
        onward = [place for place in found if (place - at) * step > 0]
        self._place = (onward or found)[0 if step > 0 else -1]
        if isinstance(panel, LineTable):
            panel.action_move(self._place - panel.cursor)
        else:
            for part in panel.query(Words):
                part.mark(self.words, case=self.words != self.words.lower())
            panel.scroll_to(y=self._place, animate=False)
        return f"{self.words!r}: {found.index(self._place) + 1} of {len(found)}"


def _lines(panel: Widget) -> list[str]:
    if isinstance(panel, LineTable):
        return [panel.words_of(row) for row in panel.rows]
    from textual.widgets import RichLog  # with attrs and rich.pretty, 1.2 MB

    if isinstance(panel, RichLog):
        return [line.text for line in panel.lines]
    return [
        line.text
        for words in panel.query(Words)
        for line in words.render_lines(Region(0, 0, *words.size))
    ]
