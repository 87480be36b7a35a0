"""What a line or a key does to the screen; verbs about hosts go to the sitting. It draws nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.widgets import RichLog

from distconsole.errors import ConsoleError
from distconsole.expression import ExpressionError
from distconsole.model import requests as ask
from distconsole.tui.feeds import Feed
from distconsole.tui.keys import SCREEN_VERBS, SORTS, TABS, VIEWS, Key
from distconsole.tui.prompt import Prompt
from distconsole.tui.sitting import screen_words
from distconsole.tui.views.check import CheckView, Page
from distconsole.tui.views.cluster import ClusterView
from distconsole.tui.views.logs import LogsView
from distconsole.tui.views.run import RunView
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Said

if TYPE_CHECKING:
    from distconsole.tui.app import ConsoleApp


class Doer:
    """Does lines and keys on the screen of ``app``."""

    def __init__(self, app: ConsoleApp) -> None:
        self._app = app
        self.followed: list[Feed] = []
        """Demos whose run the screen has gone to by itself."""

    def perform(self, line: str, *, quiet: bool = False) -> None:
        """Do ``line`` as if it was typed at the prompt; ``quiet`` leaves it out of the transcript."""
        app = self._app
        transcript = app.sitting.transcript
        if not quiet:
            transcript.say(f"\x1b[1m> {line}\x1b[0m")
        words = screen_words(line)
        if self._do_condition(line):
            return
        if words:
            self._do_screen_verb(words)
            return
        if line.strip() in ("help", "?"):
            app.show_view("help")
            return
        try:
            feed = app.sitting.submit(line)
        except ConsoleError as error:
            transcript.error(error)
            return
        self._show_where_it_belongs(feed)

    def press(self, key: Key) -> None:
        """Type the line of ``key``."""
        app = self._app
        line = self._filled(key.line)
        if line is None:
            app.sitting.transcript.say(f"{key.shown} ({key.label}): nothing here to do that to")
        elif key.asks:
            app.query_one(Prompt).offer(line)
        else:
            self.perform(line, quiet=key in TABS or key.inside or line in ("help", "quit"))

    def open_run(self, run: str, *, over: bool) -> None:
        """Show ``run``: as this sitting has it, else from the store or from its hosts."""
        app = self._app
        if app.sitting.choose_run(run) is not None:
            app.show_view("run")
        else:
            self.perform(f"{'replay' if over else 'attach'} {run}")

    def shown_run_name(self) -> str:
        """Return the run on the screen if it goes on, else nothing."""
        feed = self._app.sitting.shown_run()
        return feed.run.run if feed is not None and feed.goes_on else ""

    def _show_where_it_belongs(self, feed: Feed) -> None:
        app = self._app
        match feed.request:
            case ask.Run() | ask.Rerun() if not feed.is_run or feed.request.detach:
                app.show_view("transcript")
            case ask.Demo():
                app.first = app.first or feed
                app.show_view("check")
            case ask.Run() | ask.Rerun() | ask.Attach() | ask.Replay():
                app.show_view("run")
            case ask.Check():
                app.show_view("check")
            case ask.Top(once=True):
                app.show_view("transcript")
            case ask.Top():
                if app.load_feed is not None:
                    app.load_feed.control.leave()
                app.load_feed = feed
                app.show_view("cluster")
            case ask.Runs():
                app.show_view("runs")
            case ask.Stop():
                pass  # what it does is seen where one is
            case _:
                app.show_view("transcript")

    def _do_screen_verb(self, words: list[str]) -> None:  # noqa: C901  (one case a verb, nothing nested)
        app = self._app
        say = app.sitting.transcript.say
        match words:
            case ["quit"]:
                app.exit()
            case ["clear"]:
                app.query_one(Said).forget()
                app.query_one("#transcript", RichLog).clear()
            case ["view", name] if name in VIEWS:
                app.show_view(name)
            case ["view", name] if app.sitting.choose_run(name) is not None:
                app.show_view("run")
            case ["sort"]:
                say(f"ranks by {app.query_one(RunView).sort('')}")
                app.redraw()
            case ["sort", order] if order in SORTS:
                app.query_one(RunView).sort(order)
                app.redraw()
            case ["heat", *names]:
                self._heat(" ".join(names))
            case ["plots", *names]:
                self._plots(names)
            case ["open"] | ["pairs"] | ["interfaces"] | ["cancel"] | ["repeat", _]:
                self._do_check_verb(words)
            case ["screenshot", *path]:
                say(f"saved {app.save_screenshot(*path[:1])}")
            case ["theme", name] if f"textual-{name}" in app.available_themes:
                app.theme = f"textual-{name}"
            case ["theme", name] if name in app.available_themes:
                app.theme = name
            case ["filter" | "find" | "lines", *_]:
                self._do_lines(words[0], words[1:])
            case [verb, *_]:
                app.sitting.transcript.error(
                    ConsoleError(
                        f"'{' '.join(words)}' means nothing", f"{verb}: {SCREEN_VERBS[verb]}"
                    )
                )
            case _:
                pass

    def _plots(self, names: list[str]) -> None:
        """Swap curves and error, or choose which curves are shown."""
        view = self._app.query_one(RunView)
        if names:
            view.choose_plots(names)
            self._app.show_view("run")
        else:
            view.swap_plots()
        self._app.redraw()

    def _do_condition(self, line: str) -> bool:
        """Do what is about a condition, which is no words as a shell has them; return whether it was."""
        app = self._app
        verb, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        by_view = verb in ("filter", "sort") and app.view in ("cluster", "run")
        if verb == "sort" and app.view == "run":
            by_view = False
        if not by_view and verb not in ("watch", "unwatch", "group"):
            return False
        try:
            self._ask_condition(verb, rest)
        except ExpressionError as error:
            app.sitting.transcript.error(ConsoleError(error.message, error.short))
        except ConsoleError as error:
            app.sitting.transcript.error(error)
        app.redraw()
        return True

    def _ask_condition(self, verb: str, rest: str) -> None:
        app = self._app
        say, cluster = app.sitting.transcript.say, app.query_one(ClusterView)
        match verb, rest.split():
            case "watch", []:
                say(app.watches.listed())
            case "watch", _:
                say(app.watches.add(rest, hosts_first=app.view == "cluster"))
            case "unwatch", _:
                say(app.watches.remove(rest))
            case "filter", _ if app.view == "run":
                app.query_one(RunView).filter(rest)
            case "filter", _:
                cluster.filter(rest)
            case "group", words:
                cluster.group(words[0] if words else "")
                app.show_view("cluster")
            case _, [name, ("up" | "down") as way]:
                cluster.sort(name, downwards=way == "down")
            case _:
                cluster.sort(rest)

    def _heat(self, what: str) -> None:
        """Turn to the heat map, or change what it shows."""
        app = self._app
        view, feed = app.query_one(RunView), app.sitting.shown_run()
        known = feed.history.known if feed is not None else []
        app.show_view("run")
        app.sitting.transcript.say(view.turn_heat(what, known))
        app.redraw()

    def _do_check_verb(self, words: list[str]) -> None:
        view = self._app.query_one(CheckView)
        match words:
            case ["cancel"]:
                self._cancel()
                return
            case ["repeat", check]:
                self._repeat(check)
                return
            case ["pairs"]:
                view.turn_to(Page.PAIRS)
            case ["interfaces"]:
                view.turn_to(Page.CHOICES)
            case _:
                view.open()
        self._app.show_view("check")

    def _repeat(self, check: str) -> None:
        """Make one check again, and say it as it reads in the grammar."""
        app = self._app
        feed = app.sitting.repeat(check)
        if feed is None:
            app.sitting.transcript.say("a check goes on, or there was none: cancel ends it")
            return
        app.sitting.transcript.say(f"\x1b[1m> {feed.line}\x1b[0m")
        app.show_view("check")

    def _cancel(self) -> None:
        app = self._app
        feed = app.sitting.latest_check()
        if feed is None or feed.done or not isinstance(feed.request, ask.Check):
            app.sitting.transcript.say("no check goes on")
            return
        feed.control.leave()
        app.redraw()

    def _do_lines(self, verb: str, words: list[str]) -> None:
        """Filter, search or walk through the lines of the run."""
        app, logs = self._app, self._app.query_one(LogsView)
        if verb == "lines" and words[:1] == ["filter"]:
            verb, words = "filter", words[1:]
        feed = app.sitting.shown_run()
        if feed is not None:
            logs.draw(feed)
        app.show_view("logs")
        try:
            if verb == "filter":
                logs.filter(" ".join(words))
            elif verb == "find":
                logs.find(" ".join(words), done=True)
                if words:
                    logs.tail.focus()
            else:
                logs.do(words[0] if words else "", " ".join(words[1:]))
        except ConsoleError as error:
            app.sitting.transcript.error(error)

    def typing(self, line: str) -> None:
        """Search while the words are typed; leave off where the line is given up."""
        verb, space, words = line.partition(" ")
        if self._app.view == "logs" and verb == "find" and space:
            self._app.query_one(LogsView).find(words, done=False)

    def _filled(self, line: str) -> str | None:
        """Put what is on the screen into the places of ``line``; None if it is not there."""
        app = self._app
        values = {
            "run": self._run_for(line),
            "check": self._app.query_one(CheckView).check_under_cursor(),
            "host": self._under_cursor("#hosts", "name"),
            "rank": app.query_one(RunView).rank_under_cursor(),
        }
        for name, value in values.items():
            if f"{{{name}}}" in line:
                if not value:
                    return None
                line = line.replace(f"{{{name}}}", value)
        return line

    def _run_for(self, line: str) -> str:
        """The run that a key is about: only one that goes on can be stopped."""
        if line.startswith("stop"):
            return self.shown_run_name()
        if self._app.view == "runs":
            return self._under_cursor("#runs-table", "run")
        feed = self._app.sitting.shown_run()
        return feed.run.run if feed is not None else ""

    def _under_cursor(self, table: str, attribute: str) -> str:
        found: object = self._app.query_one(table, LineTable).row_under_cursor()
        for name in attribute.split("."):
            found = getattr(found, name, None)
        return "" if found is None else str(found)
