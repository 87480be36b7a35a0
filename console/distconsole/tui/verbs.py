"""Performs lines and keys that act on the screen; verbs about hosts go to the session."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from distconsole.config.spelling import nearest
from distconsole.errors import ConsoleError, UsageError
from distconsole.expression import ExpressionError
from distconsole.grammar.secrets import mask_secrets
from distconsole.grammar.verbs import VERBS, parse_args
from distconsole.model import requests as ask
from distconsole.model.findings import Finding
from distconsole.model.names import join_some
from distconsole.model.run_events import RunFinding
from distconsole.operations.control import Wish
from distconsole.runs.timeline import RunTimeline
from distconsole.tui.prompt.keys import PROMPT_VERBS, SCREEN_VERBS, TABS, VIEWS, Key
from distconsole.tui.prompt_verbs import PromptVerbs
from distconsole.tui.replaying import travel
from distconsole.tui.session import screen_words
from distconsole.tui.tasks import RequestTask
from distconsole.tui.view_models.hints import command_of
from distconsole.tui.view_switcher import NotLoadedError
from distconsole.tui.views.cluster.view import MOST_AT_ONCE
from distconsole.tui.views.row_order import OrderedView
from distconsole.tui.widgets.messages import SHOWN_SECONDS

if TYPE_CHECKING:
    from distconsole.tui.console import Console

RUN_LINES = ("run", "logs")
"""Views whose search goes through the run's lines instead of the screen."""


UNDER_CURSOR: dict[str, tuple[str, Callable[[Any], str]]] = {
    "job": ("jobs", lambda view: view.job_under_cursor()),
    "run": ("run", str),
    "check": ("check", lambda view: view.check_under_cursor()),
    "host": ("cluster", lambda view: view.host_under_cursor()),
    "rank": ("run", lambda view: view.rank_under_cursor()),
    "runs": ("runs", lambda view: view.to_compare()),
}
"""What the fields of a key's line stand for: a view, and what is under its cursor."""


class CommandDispatcher:
    _interrupted = float("-inf")
    """Time of the last Ctrl-C without a job to interrupt."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.prompt_verbs = PromptVerbs(console)

    def run_command(self, line: str, *, quiet: bool = False) -> None:
        if not quiet:
            self._console.session.transcript.note(f"\x1b[1m> {mask_secrets(line)}\x1b[0m")
        try:
            expanded = self._console.shortcuts.expand(line)
            if not self._run_on_screen(expanded):
                self.prompt_verbs.start(expanded, self._show_where_it_belongs)
        except NotLoadedError as missing:
            place = self._console.session.transcript.place
            self._console.want(missing.view, partial(self.run_at, place, line, quiet=True))
        except ExpressionError as error:
            self._console.prompt.refused = True
            self.prompt_verbs.fail(line, ConsoleError(error.message, error.short))
        except ConsoleError as error:
            self._console.prompt.refused = isinstance(error, UsageError)
            self.prompt_verbs.fail(line, self._with_all_verbs(line, error))

    def run_at(self, place: str, line: str, *, quiet: bool = False) -> None:
        """Run ``line``, which stands at ``place`` of a file if given: errors name it."""
        transcript = self._console.session.transcript
        transcript.place = place
        self.run_command(line, quiet=quiet)
        transcript.place = ""

    def _run_on_screen(self, line: str) -> bool:
        """Perform ``line`` if it is about the screen alone; return False if not."""
        verb, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if verb == "watch" and rest.startswith("-"):
            return False  # the verb of both: a job on hosts
        # The rest of these is no shell words.
        if verb == "alias":
            self._say(self._console.shortcuts.define(rest))
        elif verb == "unalias":
            self._say(self._console.shortcuts.forget(rest))
        elif self._is_condition(verb):
            self._ask_condition(verb, rest)
            self._console.redraw()
        elif verb in ("help", "?") and not rest:
            self._console.show_view("help")
        elif verb in ("help", "?") and rest in SCREEN_VERBS:
            self._say(f"{rest}: {SCREEN_VERBS[rest]}")
        elif words := screen_words(line):
            if not (self.prompt_verbs.do(words) or self._do(words)):
                raise self._meaningless(words)
        else:
            return False
        return True

    def _meaningless(self, words: list[str]) -> ConsoleError:
        verb = words[0]
        near = nearest(words[1], self._console.candidates(verb)) if words[1:] else None
        meant = f"did you mean {near}? " if near and near != words[1] else ""
        return UsageError(
            f"'{' '.join(words)}' is not understood", f"{meant}{verb}: {SCREEN_VERBS[verb]}"
        )

    def _with_all_verbs(self, line: str, error: ConsoleError) -> ConsoleError:
        """Return ``error``; with the screen's verb in it if that is most like the wrong one."""
        from distconsole.grammar.mistakes import OTHER_WORDS  # noqa: PLC0415 - reads other launchers' commands

        word = line.split()[0] if "no verb" in error.message else ""
        near = nearest(word, (*PROMPT_VERBS, *self._console.shortcuts.aliases))
        if near in (None, word) or near in VERBS or word in OTHER_WORDS:
            return error
        return ConsoleError(f"There is no verb {word!r}. Did you mean {near!r}?", "see 'help'")

    def _say(self, words: str) -> None:
        self._console.session.transcript.say(words)

    def press(self, key: Key) -> None:
        console = self._console
        line = self._filled(key.line)
        if line is None:
            self._say(f"{key.shown} ({key.label}): nothing here to do that to")
        elif not line:
            console.prompt.open()
        elif key.asks:
            console.prompt.offer(line)
        else:
            line = self._once_more(line)
            shows = line in ("help", "quit", *(tab.line for tab in TABS))
            quiet = key.inside or shows or line.startswith("launch")
            if quiet:  # unless the line itself has more to tell
                console.prompt.tell(f"{key.shown}: {line}")
            self.run_command(line, quiet=quiet)

    def open_run(self, run: str, *, over: bool) -> None:
        """Show ``run`` from this session, else from the store or from its hosts."""
        console = self._console
        if console.session.choose_run(run) is not None:
            console.show_view("run")
        else:
            self.run_command(f"{'replay' if over else 'attach'} {run}")

    def interrupt(self) -> None:
        if self.prompt_verbs.interrupt():
            return
        console = self._console
        before, self._interrupted = self._interrupted, console.session.clocks.monotonic()
        if self._interrupted - before < SHOWN_SECONDS:
            console.leave()
            return
        run, keys = console.session.shown_run_name(), console.shortcuts.keymap.keys
        key = next((key for key in keys if key.line == "stop {run}"), None)
        stop = f"{key.shown if key else 'stop RUN'} stops {run} on every host; " if run else ""
        task = console.session.shown_run()
        lives = "goes on" if task is None or task.verb.outlives else "is stopped"
        leave = f"Ctrl+C once more leaves{f', and the run {lives}' if run else ''}"
        self._say(f"nothing was interrupted: {stop}{leave}")

    def _show_where_it_belongs(self, task: RequestTask) -> None:
        """Turn to the view of ``task``; a condition on runs filters the screen, too."""
        console, request = self._console, task.request
        if isinstance(request, ask.Demo):
            console.session.first = console.session.first or task
        if isinstance(request, ask.Runs) and request.only is not None:
            console.want("runs", partial(self._filter_runs, request.only))
        if task.view:
            console.show_view(task.view)

    def _filter_runs(self, condition: str) -> None:
        with contextlib.suppress(ConsoleError):  # the verb itself says what is wrong with it
            self._console.views.runs.filter(condition)

    def _do(self, words: list[str]) -> bool:  # noqa: C901  (one case a verb, nothing nested)
        console = self._console
        match words:
            case ["quit"] | ["back"] | ["back", "all"]:
                self._go_back(words)
            case ["view", name] if name in VIEWS:
                console.show_view(name)
            case ["view", name] if console.session.choose_run(name) is not None:
                console.show_view("run")
            case ["sort"]:
                console.prompt.tell(f"ranks by {console.views.run.sort('next')}")
            case ["sort", *rest]:
                if not console.views.run.sort(" ".join(rest)):
                    return False
            case ["heat", *names]:
                self._heat(" ".join(names))
            case ["plots", *names]:
                self._plots(names)
            case ["hosts", *named]:
                self._choose_hosts(named)
            case ["open"] | ["pairs"] | ["interfaces"]:
                self._open(words[0])
            case ["copy"]:
                self._copy()
            case ["repeat", check]:
                self._repeat(check)
            case ["launch", *rest]:
                return console.views.launch.run_verb(rest)
            case ["theme", *names] if len(names) < 2:
                self._say(console.choose_theme("".join(names)))
            case ["mine"]:
                console.views.runs.turn_mine()
                console.show_view("runs")
            case ["mark", run]:
                console.views.runs.mark(run)
            case ["axis", *names]:
                console.prompt.tell(console.views.compare.turn(" ".join(names)))
            case ["at" | "play" | "pause", *_]:
                travel(console.session.shown_run(), words)
            case ["filter" | "find" | "lines" as verb, *rest]:
                self._do_lines(verb, rest)
            case _:
                return False
        console.redraw()
        return True

    def _go_back(self, words: list[str]) -> None:
        if words == ["quit"]:
            self._console.leave()
        elif words == ["back", "all"] or not self._console.step_back():
            self.prompt_verbs.ask_to_leave()

    def _plots(self, names: list[str]) -> None:
        """Swap curves and error, or choose the curves."""
        console = self._console
        compared = console.view == "compare"
        views = console.views
        if compared:
            told = views.compare.choose(names or ["next"])
        else:
            told = views.run.choose_plots(names)
        if told:
            self._say(told)
        if names and not compared:
            console.show_view("run")

    def _is_condition(self, verb: str) -> bool:
        """True if a condition or a field of the current view follows ``verb``."""
        by_view = {
            "filter": ("cluster", "run", "runs", "check"),
            "sort": ("cluster", "runs", "check"),
        }
        return verb in ("watch", "unwatch", "group") or self._console.view in by_view.get(verb, ())

    def _ask_condition(self, verb: str, rest: str) -> None:
        console, views = self._console, self._console.views
        ordered = views.shown if isinstance(views.shown, OrderedView) else views.cluster
        match verb, rest.split():
            case "watch", []:
                self._say(console.watches.listed())
            case "watch", _:
                self._say(console.watches.add(rest, hosts_first=console.view == "cluster"))
            case "unwatch", _:
                self._say(console.watches.remove(rest))
            case "filter", _ if console.view == "run":
                console.views.run.filter(rest)
            case "filter", _:
                ordered.filter(rest)
            case "group", _ if console.view == "runs":
                ordered.group(rest)
            case "group", _:
                views.cluster.group(rest)
                console.show_view("cluster")
            case _, [name, ("up" | "down") as way]:
                ordered.sort(name, downwards=way == "down")
            case _:
                ordered.sort(rest)

    def _heat(self, what: str) -> None:
        console = self._console
        view, task = console.views.run, console.session.shown_run()
        known = task.history.known if task is not None else []
        console.show_view("run")
        if wrong := view.turn_heat(what, known):
            self._say(wrong)

    def _open(self, what: str) -> None:
        if what == "open" and self._console.view == "cluster":
            cluster = self._console.views.cluster
            if cluster.offers_hosts:
                self._take_offer()
            else:
                cluster.open()
            return
        view = self._console.views.check
        if what == "open":
            view.open()
        else:
            view.turn_beside(what)
        self._console.show_view("check")

    def _take_offer(self) -> None:
        """Choose the hosts under the cursor; if one file just lists many of them, ask which."""
        offer = self._console.views.cluster.offer_under_cursor()
        if offer is not None and (offer.is_job or len(offer.names) <= MOST_AT_ONCE):
            self.run_command(f"hosts {offer.line}")
        else:
            self._console.prompt.offer("hosts ")

    def _choose_hosts(self, words: list[str]) -> None:
        """Choose the hosts of ``words``, as ``top`` would; without any, name the chosen ones."""
        console, session = self._console, self._console.session
        if words:
            named = words if words[0].startswith("-") else ["--hosts", ",".join(words)]
            asked = session.request(shlex.join(["top", *named]))
            assert isinstance(asked, ask.Top)
            if parse_args(["top", *named]) != ask.Top(where=asked.where):
                wrong = "hosts takes only options that say which hosts, and how to reach them"
                raise UsageError(wrong, "hosts a,b, or hosts --hostfile FILE")
            session.choose_hosts(asked.where)
            session.look_at_hosts()
            console.views.take_hosts()
            console.show_view("cluster")
        self._say(f"hosts: {join_some(session.hosts) or 'none are chosen yet'}")

    def _copy(self) -> None:
        """Copy a finding's command by OSC 52; raises UsageError without one."""
        command = self.command()
        if not command:
            wrong = "no finding is here" if command is None else "this finding names no command"
            raise UsageError(f"nothing to copy: {wrong}", "")
        self._console.views.app.copy_to_clipboard(command)
        self._say(f"copied: {command}")

    def command(self) -> str | None:
        """Return the command of the finding under the cursor, or of the run's newest one; None without one."""
        views, task = self._console.views, self._console.session.shown_run()
        found: Finding | RunFinding | None = None
        if self._console.view == "check":
            found = views.check.finding_under_cursor()
        elif task is not None:
            with task.lock:
                run = views.loaded("run")
                found = finding_of(task.run, "" if run is None else run.rank_under_cursor())
        return None if found is None else command_of(found)

    def _repeat(self, check: str) -> None:
        task = self._console.session.repeat(check)
        if task is None:
            self._say("a check goes on, or there was none: cancel ends it")
            return
        self._console.session.transcript.note(f"\x1b[1m> {task.line}\x1b[0m")
        self._console.show_view("check")

    def _do_lines(self, verb: str, words: list[str]) -> None:
        console = self._console
        if console.view not in RUN_LINES and verb == "find":
            console.find(" ".join(words))
            return
        if console.view not in RUN_LINES and words in (["next"], ["previous"]):
            console.find("", 1 if words == ["next"] else -1)
            return
        if verb == "lines" and words[:1] == ["filter"]:
            verb, words = "filter", words[1:]
        task, logs = console.session.shown_run(), console.views.logs
        if task is not None:
            logs.draw(task)
        console.show_view("logs")
        if verb == "filter":
            logs.filter(" ".join(words))
        elif verb == "find":
            logs.find(" ".join(words), done=True)
            if words:
                logs.tail.focus()
        else:
            logs.do(words[0] if words else "", " ".join(words[1:]))
            if words == ["copy"]:
                self._say(f"copied: {logs.app.clipboard}")

    def typing(self, line: str) -> None:
        """Search while the words are typed; stop once the line is given up."""
        if self._console.view == "run" and self._console.views.loaded("logs") is None:
            if line.startswith("find "):
                self._console.want("logs", partial(self.typing, line))
            return
        console, (verb, space, words) = self._console, line.partition(" ")
        if console.view not in RUN_LINES:
            with contextlib.suppress(ConsoleError):  # it is said when the line is entered
                console.find(words.strip() if verb == "find" else "", typing=True)
        elif verb == "find" and space:
            self._find_typed(words)
        elif console.view == "run":
            console.views.run.mark_lines(None)

    def _find_typed(self, words: str) -> None:
        """Search the run's lines; in the view of ranks mark matches in the tail and count them."""
        console, logs = self._console, self._console.views.logs
        task = console.session.shown_run()
        if console.view == "run" and task is not None:
            logs.draw(task)
        logs.find(words, done=False)
        if console.view == "run":
            console.views.run.mark_lines(logs.tail.found)
            console.prompt.note(logs.found_words)

    def _filled(self, line: str) -> str | None:
        """Fill the fields of ``line`` from the screen; None if one has no value."""
        console = self._console
        if line == "why {run}" and console.session.found_job() is not None:
            return "why"
        for name, (view, value) in UNDER_CURSOR.items():
            if f"{{{name}}}" in line:
                shown = console.views.loaded(view)
                found = self._run_for(line) if name == "run" else shown and value(shown)
                if not found:
                    return None
                line = line.replace(f"{{{name}}}", found)
        return line

    def _once_more(self, line: str) -> str:
        """Return ``line``, with ``--grace 0`` for a run that is already being stopped."""
        session = self._console.session
        requests = (task.request for task in session.tasks if not task.done)
        stopping = {request.run for request in requests if isinstance(request, ask.Stop)}
        asked = ((task.run.run, task.control.asked) for task in session.going)
        stopping |= {run for run, end in asked if end is not None and end.wish is Wish.STOP}
        return f"{line} --grace 0" if line in {f"stop {run}" for run in stopping} else line

    def _run_for(self, line: str) -> str:
        if line.startswith("stop"):
            return self._console.session.shown_run_name()
        if self._console.view == "runs":
            return self._console.views.runs.run_under_cursor()
        task = self._console.session.shown_run()
        return task.run.run if task is not None and not task.run.is_found else ""


def finding_of(timeline: RunTimeline, rank: str) -> RunFinding | None:
    told = [finding for finding in timeline.findings if finding.hint]
    of_rank = [finding for finding in told if str(finding.rank) == rank]
    return next(reversed(of_rank or told), None)
