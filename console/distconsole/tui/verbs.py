"""What a line or a key does to the screen; verbs about hosts go to the session. It draws nothing."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from distconsole.config.spelling import nearest
from distconsole.errors import ConsoleError
from distconsole.expression import ExpressionError
from distconsole.grammar import VERBS
from distconsole.grammar.secrets import masked
from distconsole.model import requests as ask
from distconsole.tui.feeds import RequestTask
from distconsole.tui.keys import SCREEN_VERBS, SORTS, TABS, VIEWS, Key
from distconsole.tui.prompt import Prompt
from distconsole.tui.prompt_verbs import PromptVerbs
from distconsole.tui.replaying import travel
from distconsole.tui.sitting import screen_words
from distconsole.tui.views.check import CheckView, Page
from distconsole.tui.views.cluster import ClusterView
from distconsole.tui.views.compare import CompareView
from distconsole.tui.views.logs import LogsView
from distconsole.tui.views.run import RunView
from distconsole.tui.views.runs import RunsView
from distconsole.tui.widgets.line_table import LineTable

if TYPE_CHECKING:
    from distconsole.tui.app import ConsoleApp


class CommandDispatcher:
    """Does lines and keys on the screen of ``app``."""

    def __init__(self, app: ConsoleApp) -> None:
        self._app = app
        self.prompt_verbs = PromptVerbs(app)
        self.followed: list[RequestTask] = []
        """Demos whose run the screen has gone to by itself."""

    def run_command(self, line: str, *, quiet: bool = False) -> None:
        """Do ``line`` as if it was typed at the prompt; ``quiet`` leaves it out of the transcript."""
        app = self._app
        transcript = app.session.transcript
        if not quiet:
            transcript.say(f"\x1b[1m> {masked(line)}\x1b[0m")
        try:
            line = app.shortcuts.expanded(line)
        except ConsoleError as error:
            self.prompt_verbs.fail(line, error)
            return
        words = screen_words(line)
        if self.prompt_verbs.do_line(line) or self._do_condition(line):
            return
        if words:
            self._do_screen_verb(words)
            return
        if line.strip() in ("help", "?"):
            app.show_view("help")
            return
        match line.split():
            case ["help" | "?", topic] if topic in SCREEN_VERBS:
                transcript.say(f"{topic}: {SCREEN_VERBS[topic]}")
                return
            case _:
                pass
        try:
            self.prompt_verbs.start(line, self._show_where_it_belongs)
        except ConsoleError as error:
            self.prompt_verbs.fail(line, self._with_all_verbs(line, error))

    def _with_all_verbs(self, line: str, error: ConsoleError) -> ConsoleError:
        """Return ``error``; for a wrong verb that is most like one of the screen's, one that says so."""
        word = line.split()[0]
        if word in VERBS or "no verb" not in error.message:
            return error
        near = nearest(word, (*VERBS, *SCREEN_VERBS, *self._app.shortcuts.aliases))
        if near is None or near in VERBS:
            return error
        return ConsoleError(f"There is no verb {word!r}. Did you mean {near!r}?", "see 'help'")

    def press(self, key: Key) -> None:
        """Type the line of ``key``."""
        app = self._app
        line = self._filled(key.line)
        if line is None:
            app.session.transcript.say(f"{key.shown} ({key.label}): nothing here to do that to")
        elif key.asks:
            app.query_one(Prompt).offer(line)
        else:
            line = self._once_more(line)
            quiet = (
                key.line in {tab.line for tab in TABS}
                or key.inside
                or line.startswith("launch")
                or line in ("help", "quit")
            )
            self.run_command(line, quiet=quiet)
            if quiet:
                app.query_one(Prompt).tell(f"{key.shown}: {line}")

    def open_run(self, run: str, *, over: bool) -> None:
        """Show ``run``: as this session has it, else from the store or from its hosts."""
        app = self._app
        if app.session.choose_run(run) is not None:
            app.show_view("run")
        else:
            self.run_command(f"{'replay' if over else 'attach'} {run}")

    def shown_run_name(self) -> str:
        """Return the run on the screen if it goes on, else nothing."""
        task = self._app.session.shown_run()
        return task.run.run if task is not None and task.goes_on else ""

    def _show_where_it_belongs(self, task: RequestTask) -> None:
        app = self._app
        match task.request:
            case ask.Run() | ask.Rerun() if not task.is_run or task.request.detach:
                app.show_view("transcript")
            case ask.Demo():
                app.first = app.first or task
                app.show_view("check")
            case ask.Run() | ask.Rerun() | ask.Attach() | ask.Replay():
                app.show_view("run")
            case ask.Check():
                app.show_view("check")
            case ask.Top(once=True):
                app.show_view("transcript")
            case ask.Top():
                if app.load_task is not None:
                    app.load_task.control.leave()
                app.load_task = task
                app.show_view("cluster")
            case ask.Runs() | ask.Compare():
                self._show_runs(task.request)
            case ask.Stop():
                pass  # what it does is seen where one is
            case _:
                app.show_view("transcript")

    def _show_runs(self, request: ask.Runs | ask.Compare) -> None:
        """Show runs; those that a condition leaves out are left out on the screen, too."""
        if isinstance(request, ask.Runs) and request.only is not None:
            with contextlib.suppress(ConsoleError):  # the verb itself says what is wrong with it
                self._app.query_one(RunsView).filter(request.only)
        self._app.show_view(type(request).__name__.lower())

    def _do_screen_verb(self, words: list[str]) -> None:  # noqa: C901  (one case a verb, nothing nested)
        app = self._app
        say = app.session.transcript.say
        if self.prompt_verbs.do(words):
            return
        match words:
            case ["quit"]:
                app.exit()
            case ["view", name] if name in VIEWS:
                app.show_view(name)
            case ["view", name] if app.session.choose_run(name) is not None:
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
            case ["open"] | ["pairs"] | ["interfaces"] | ["repeat", _]:
                self._do_check_verb(words)
            case ["launch", *rest] if app.do_launch_verb(rest):
                pass
            case ["theme", *names] if len(names) < 2:
                self._theme("".join(names))
            case ["mark", _] | ["axis", *_]:
                self._do_comparing(words)
            case ["at" | "play" | "pause", *_]:
                self._travel(words)
            case ["filter" | "find" | "lines", *_]:
                self._do_lines(words[0], words[1:])
            case [verb, *_]:
                line = " ".join(words)
                near = nearest(words[1], app.offers.words(verb) or ()) if words[1:] else None
                meant = f"did you mean {near}? " if near else ""
                error = ConsoleError(
                    f"'{line}' means nothing", f"{meant}{verb}: {SCREEN_VERBS[verb]}"
                )
                self.prompt_verbs.fail(line, error)
            case _:
                pass

    def _do_comparing(self, words: list[str]) -> None:
        """Mark a run, or turn the axis of those that are compared."""
        app = self._app
        try:
            if words[0] == "mark":
                app.query_one(RunsView).mark(words[1])
                app.redraw()
            else:
                app.session.transcript.say(app.query_one(CompareView).turn(" ".join(words[1:])))
        except ConsoleError as error:
            app.session.transcript.error(error)

    def _travel(self, words: list[str]) -> None:
        """Move through the past run that is shown."""
        try:
            travel(self._app.session.shown_run(), words)
        except ConsoleError as error:
            self._app.session.transcript.error(error)

    def _theme(self, name: str) -> None:
        app = self._app
        try:
            app.session.transcript.say(app.appearance.choose(name))
        except ConsoleError as error:
            self.prompt_verbs.fail(f"theme {name}", error)

    def _plots(self, names: list[str]) -> None:
        """Swap curves and error, or choose which curves are shown."""
        view = self._app.query_one(RunView)
        if self._app.view == "compare":
            self._app.query_one(CompareView).choose(names or ["next"])
        elif names:
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
        by_view = verb in ("filter", "sort") and app.view in ("cluster", "run", "runs", "check")
        if verb == "sort" and app.view in ("run", "check"):
            by_view = False
        if not by_view and verb not in ("watch", "unwatch", "group"):
            return False
        try:
            self._ask_condition(verb, rest)
        except ExpressionError as error:
            self.prompt_verbs.fail(line, ConsoleError(error.message, error.short))
        except ConsoleError as error:
            self.prompt_verbs.fail(line, error)
        app.redraw()
        return True

    def _ask_condition(self, verb: str, rest: str) -> None:
        app = self._app
        say, cluster = app.session.transcript.say, app.query_one(ClusterView)
        ordered = app.query_one(RunsView) if app.view == "runs" else cluster
        match verb, rest.split():
            case "watch", []:
                say(app.watches.listed())
            case "watch", _:
                say(app.watches.add(rest, hosts_first=app.view == "cluster"))
            case "unwatch", _:
                say(app.watches.remove(rest))
            case "filter", _ if app.view == "run":
                app.query_one(RunView).filter(rest)
            case "filter", _ if app.view == "check":
                app.query_one(CheckView).filter(rest)
            case "filter", _:
                ordered.filter(rest)
            case "group", _:
                ordered.group(rest)
                if ordered is cluster:
                    app.show_view("cluster")
            case _, [name, ("up" | "down") as way]:
                ordered.sort(name, downwards=way == "down")
            case _:
                ordered.sort(rest)

    def _heat(self, what: str) -> None:
        """Turn to the heat map, or change what it shows."""
        app = self._app
        view, task = app.query_one(RunView), app.session.shown_run()
        known = task.history.known if task is not None else []
        app.show_view("run")
        app.session.transcript.say(view.turn_heat(what, known))
        app.redraw()

    def _do_check_verb(self, words: list[str]) -> None:
        view = self._app.query_one(CheckView)
        match words:
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
        task = app.session.repeat(check)
        if task is None:
            app.session.transcript.say("a check goes on, or there was none: cancel ends it")
            return
        app.session.transcript.say(f"\x1b[1m> {task.line}\x1b[0m")
        app.show_view("check")

    def _do_lines(self, verb: str, words: list[str]) -> None:
        """Filter, search or walk through the lines of the run."""
        app, logs = self._app, self._app.query_one(LogsView)
        if verb == "lines" and words[:1] == ["filter"]:
            verb, words = "filter", words[1:]
        task = app.session.shown_run()
        if task is not None:
            logs.draw(task)
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
            self.prompt_verbs.fail(" ".join((verb, *words)), error)

    def typing(self, line: str) -> None:
        """Search while the words are typed; leave off where the line is given up."""
        verb, space, words = line.partition(" ")
        if self._app.view == "logs" and verb == "find" and space:
            self._app.query_one(LogsView).find(words, done=False)

    def _filled(self, line: str) -> str | None:
        """Put what is on the screen into the places of ``line``; None if it is not there."""
        app = self._app
        values = {
            "job": self._under_cursor("#jobs-table", "number"),
            "run": self._run_for(line),
            "check": self._app.query_one(CheckView).check_under_cursor(),
            "host": self._under_cursor("#hosts", "name"),
            "rank": app.query_one(RunView).rank_under_cursor(),
            "runs": app.query_one(RunsView).to_compare(),
        }
        for name, value in values.items():
            if f"{{{name}}}" in line:
                if not value:
                    return None
                line = line.replace(f"{{{name}}}", value)
        return line

    def _once_more(self, line: str) -> str:
        """Return ``line``; of a run that is being stopped already it kills what is left."""
        words = line.split()
        if words[:1] != ["stop"] or len(words) != 2:
            return line
        tasks = (task for task in self._app.session.tasks if not task.done)
        stopping = (task.request.run for task in tasks if isinstance(task.request, ask.Stop))
        return f"{line} --grace 0" if words[1] in stopping else line

    def _run_for(self, line: str) -> str:
        """The run that a key is about: only one that goes on can be stopped."""
        if line.startswith("stop"):
            return self.shown_run_name()
        if self._app.view == "runs":
            return self._under_cursor("#runs-table", "run.run")
        task = self._app.session.shown_run()
        return task.run.run if task is not None else ""

    def _under_cursor(self, table: str, attribute: str) -> str:
        found: object = self._app.query_one(table, LineTable).row_under_cursor()
        for name in attribute.split("."):
            found = getattr(found, name, None)
        return "" if found is None else str(found)
