"""One session at the console: its hosts, connections, and running tasks."""

from __future__ import annotations

import os
import shlex
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from distconsole.config.hostfile import host_text, read_list
from distconsole.config.hosts import HostOffer, offered_hosts, resolve_cluster
from distconsole.config.load import load_config
from distconsole.config.ranges import RangeError
from distconsole.config.schema import HOST_KEYS, Config
from distconsole.errors import ConsoleError, UntrustedError, UsageError
from distconsole.grammar.values import Vocabulary
from distconsole.grammar.verbs import parse_line, parse_untrusted
from distconsole.grammar.words import line_words
from distconsole.model import requests as ask
from distconsole.model.cluster import Cluster
from distconsole.model.verbs import RunRole, verb_of
from distconsole.operations import StopReason, perform
from distconsole.operations.judging import my_names
from distconsole.session import Session, open_session
from distconsole.tui.prompt.keys import ALIASES, SCREEN_VERBS
from distconsole.tui.terminal.input_priority import InputPriority
from distconsole.tui.transcript import Transcript
from distconsole.tui.view_models.hosts import Clocks

if TYPE_CHECKING:
    from distconsole.tui.launch_form.model import PlanPreview
    from distconsole.tui.prompt.completion_index import CompletionIndex
    from distconsole.tui.tasks import Perform, RequestTask
    from distconsole.tui.view_models.check import CheckModel

LEAVING_SECONDS = 5.0
"""Longest wait of quitting for the tasks to end."""

OF_CHECKS = ("check", "repeat")
"""Verbs that name checks."""
MAX_RINGS = 32
MAX_KEPT_RUNS = 20
"""Ended runs that the session still shows without reading the store."""

LOADS_S = 256
"""Most samples of hosts a second that the screen takes: a table of a thousand lines is not read at once."""


NEEDS_HOSTS = (
    ask.Check,
    ask.Run,
    ask.Top,
    ask.Watch,
    ask.Prepare,
    ask.Bench,
    ask.BenchCollectives,
)
"""Requests that take the console's hosts by default; others take those of their run."""


def needs_hosts(request: ask.Request) -> bool:
    """True if ``request`` takes the console's hosts: it names none, no run and no Slurm job has any."""
    if isinstance(request, ask.Why):
        return request.looks_for_jobs and not request.where.names_hosts
    if not isinstance(request, NEEDS_HOSTS) or getattr(request, "slurm", None):
        return False
    return not request.where.names_hosts


class ConsoleSession:
    """State that lives as long as the screen; for operations a ``SessionSource``.

    Modules for tasks are loaded with the first task, after the first picture.
    """

    own: Session | None = None
    """On the console's hosts; None while none are chosen, or a demo has its own."""
    offers: tuple[HostOffer, ...] = ()
    """Host lists to choose from while no hosts are chosen."""
    first: RequestTask | None = None
    """The task that the console was opened for; its exit code is the program's."""
    load_task: RequestTask | None = None
    """The task that watches the hosts."""
    confirm: Callable[[RequestTask, str], bool] | None = None
    """Asks the person a question for a task, and blocks its thread."""
    lends_terminal = False
    """True while another program has the terminal, and so its Ctrl-C."""
    _chosen: RequestTask | None = None
    _chosen_before: RequestTask | None = None
    _known: CompletionIndex | None = None

    def __init__(
        self, where: ask.Where, clocks: Clocks | None = None, perform: Perform = perform
    ) -> None:
        self.where = where
        self.perform = perform
        self.clocks = clocks or Clocks()
        self.transcript = Transcript()
        self.input_priority = InputPriority()
        self._numbers = count(1)
        self.rings: deque[str] = deque(maxlen=MAX_RINGS)
        """Bells of the runs: tasks add them, the screen takes them."""
        self.tasks: list[RequestTask] = []
        self._open = ExitStack()
        self.looks: list[PlanPreview] = []
        """Previews of launches in the form; they end with the session."""

    def begin(self, config: Config | None = None, *, asks: bool = False) -> None:
        """Read the hosts and connect none: their first use does; raises ConsoleError if they cannot be read.

        Logins ask their questions now, before the screen takes the terminal. With ``asks`` the hosts are
        left to a choice if none are named but files know some.
        """
        if asks:
            config = load_config() if config is None else config
            self.offers = offered_hosts(self.where, config, os.environ)
        if not self.offers:
            self.own = self._open.enter_context(open_session(self.where, config))
            self.own.log_in()

    def choose_hosts(self, where: ask.Where) -> None:
        """Take the hosts of ``where`` for the console's; on an error keeps the old ones and raises ConsoleError.

        Links to the old hosts stay: a run may be followed by them.
        """
        meant = where.over(self.where)
        self.own = self._open.enter_context(open_session(meant))
        self.where, self.offers = meant, ()

    def end(self) -> list[str]:
        """End all tasks and return the runs that go on."""
        going = self.going
        for task in self.tasks:
            (task.control.leave if task.verb.outlives else task.control.stop)()
        for look in self.looks:
            look.leave()
        deadline = self.clocks.monotonic() + LEAVING_SECONDS
        notifiers = [task.notifier.close for task in self.tasks if task.notifier is not None]
        joins: list[Callable[[float], object]] = [task.join for task in self.tasks]
        joins += [look.join for look in self.looks]
        for wait in (*joins, *notifiers):
            wait(max(0.0, deadline - self.clocks.monotonic()))
        if self._known is not None:
            self._known.end()
        self._open.close()
        left = [task for task in going if task.verb.outlives]
        return list(dict.fromkeys(task.run.run for task in left if task.run.run))

    def left_behind(self) -> list[str]:
        """Return lines about runs and processes that outlast an abrupt end of the program."""
        return [line for task in self.going for line in task.left_behind.words()]

    @property
    def going(self) -> list[RequestTask]:
        return [task for task in self.tasks if task.goes_on]

    @property
    def live_runs(self) -> list[RequestTask]:
        """The tasks of runs followed live, with known plans."""
        runs = (task for task in self.tasks if task.is_run and task.run.run)
        return [task for task in runs if task.verb.role is not RunRole.REPLAYS]

    @property
    def hosts(self) -> tuple[str, ...]:
        return () if self.own is None else tuple(host.name for host in self.own.cluster.hosts)

    @property
    def my_names(self) -> tuple[str, ...]:
        return my_names(Cluster(()) if self.own is None else self.own.cluster)

    @property
    def at_hand(self) -> bool:
        """True if its hosts are connected anyway, so that unnamed hosts mean these."""
        return self.own is not None

    def __call__(self, where: ask.Where, /) -> AbstractContextManager[Session]:
        """Lend the console's own session, or the part with the named hosts; open one for others. Raises ConsoleError."""
        own, meant = self.own, where.over(self.where)
        if own is None:
            return open_session(meant)
        if meant == self.where:
            return nullcontext(own)
        cluster = resolve_cluster(meant, own.config, os.environ)
        cluster = cluster if where.hosts is None else reach_as_own(cluster, own.cluster)
        part = own.part(cluster)
        return Session(own.config, cluster) if part is None else nullcontext(part)

    def _lasting(self, where: ask.Where) -> ask.Where:
        """Return ``where`` over the console's, so that the same hosts are found from elsewhere, too."""
        meant = where.over(self.where)
        if self.own is None or where.hosts is None:
            return meant
        return replace(meant, hosts=list_as_reached(where.hosts, self.own.cluster))

    def request(self, line: str) -> ask.Request:
        """Return the request in ``line``, with the configured defaults; raises ConsoleError if it is invalid."""
        try:
            configured = load_config().verbs
        except UntrustedError as error:
            return parse_untrusted(line_words(line), error)
        request = parse_line(line, configured)
        request = self._about_shown(request)
        if self.offers and needs_hosts(request):
            raise UsageError(
                "no hosts are chosen yet", "hosts a,b chooses; hosts localhost is this machine"
            )
        return request

    def _about_shown(self, request: ask.Request) -> ask.Request:
        """Return ``request``, about the shown run, else the newest, if it names none; raises ConsoleError."""
        from distconsole.operations.stored.newest import name_run

        if getattr(request, "run", None) != "" or getattr(request, "looks_for_jobs", False):
            return request
        if isinstance(request, ask.Why) and (found := self.found_job()) is not None:
            return found
        shown, about = self.shown_run(), request
        if isinstance(request, ask.Rerun) or shown is None or not shown.run.is_kept:
            about, told = name_run(request)
            if told:
                self.transcript.say(told)
        elif isinstance(request, ask.OfRun | ask.Export):
            about = replace(request, run=shown.run.run)
        return about

    def repeat(self, check: str) -> RequestTask | None:
        """Repeat one check of the shown check; None without one, or while it runs."""
        shown = self.newest("check")
        if shown is None or not shown.done or not isinstance(shown.request, ask.Check):
            return None
        request, line = repeat_request(shown.request, check)
        picture = shown.check.repeat(check, strict=request.strict)
        return self.start(request, line, quiet=True, check=picture)

    def start(
        self,
        request: ask.Request,
        line: str,
        *,
        quiet: bool = False,
        check: CheckModel | None = None,
    ) -> RequestTask:
        from distconsole.text.ringing import notifier_for
        from distconsole.tui.replaying import ReplayTask
        from distconsole.tui.tasks import RequestTask

        if isinstance(request, ask.Run):  # kept with the run, for other sittings
            request = replace(request, where=self._lasting(request.where))
        kind = ReplayTask if verb_of(request).role is RunRole.REPLAYS else RequestTask
        task = kind(
            request,
            line,
            self,
            self.transcript,
            quiet=quiet,
            clocks=self.clocks,
            perform=self.perform,
            check=check,
            number=0 if quiet else next(self._numbers),
            input_priority=self.input_priority,
            # Else every host and GPU is kept twice.
            keeps_load=lambda: self.load_task is None,
        )
        task.control.confirm = partial(self.confirm, task) if self.confirm and not quiet else None
        try:
            task.notifier = notifier_for(
                request, self.rings.append, self.transcript.say, on_screen=True
            )
        except ConsoleError as error:
            self.transcript.error(error)
        if task.view == "cluster":
            if self.load_task is not None:
                self.load_task.control.leave()
            self.load_task = task
        self.add(task)
        task.start()
        return task

    def add(self, task: RequestTask) -> None:
        """Keep ``task``; drop ended ones that no view would show again."""
        if task.is_run:
            self._chosen, self._chosen_before = task, self.shown_run()
        shown = self.shown_run(), *map(self.newest, ("check", "compare", "runs"))
        done = [kept for kept in self.tasks if kept.done and kept not in shown]
        old = {kept for kept in done if not kept.is_run} | {*done[:-MAX_KEPT_RUNS]}
        for kept in old:
            kept.control.leave()
        self.tasks = [*(kept for kept in self.tasks if kept not in old), task]

    def vocabulary(self, line: str = "") -> Vocabulary:
        """Return the words that may complete ``line``."""
        from distconsole.runs.conditions.condition_fields import condition_fields
        from distconsole.tui.prompt.completion_index import CompletionIndex, groups_and_checks

        self._known = self._known or CompletionIndex(self.where.ssh_config)
        names = self._known.names(checks=line.startswith(OF_CHECKS))
        about = dict(names.about)
        runs: dict[str, None] = {}
        for task in reversed(self.tasks):
            for name in (task.run.run, task.run.name):
                if name and not any(run.startswith(name) for run in runs):
                    runs[name] = None
                    about[name] = "goes on" if task.goes_on else about.get(name, "of this session")
        listed = (summary.run for task in self.tasks for summary in task.listed)
        runs |= dict.fromkeys((*listed, *names.runs))
        ranks: dict[str, str] = {}
        shown = self.shown_run()
        if shown is not None:
            with shown.lock:
                views = sorted(shown.run.ranks.items())
                ranks = {str(rank): f"{view.host}  {view.state}" for rank, view in views}
        about |= dict.fromkeys(self.hosts, "of this console")
        return Vocabulary(
            hosts=tuple(dict.fromkeys((*self.hosts, *names.hosts))),
            runs=tuple(runs),
            ranks=tuple(ranks),
            clusters=names.clusters,
            checks=groups_and_checks,
            about=about | ranks,
            fields=condition_fields,
        )

    def shown_run(self) -> RequestTask | None:
        """Return the task of the run to show: the chosen one, or the one before if its run does not exist."""
        chosen = self._chosen
        if chosen is None or chosen.error is None or chosen.run.run:
            return chosen
        looked_for = chosen.verb.role in (RunRole.FOLLOWS, RunRole.REPLAYS)
        return self._chosen_before or chosen if looked_for else chosen

    def shown_run_name(self) -> str:
        task = self.shown_run()
        return task.run.run if task is not None and task.goes_on and not task.run.is_found else ""

    def found_job(self) -> ask.Why | None:
        """Return the request about the shown job, if distconsole did not start it; else None."""
        task = self.shown_run()
        if task is None or not task.run.is_found or not isinstance(task.request, ask.Watch):
            return None
        ranks = sorted(task.run.ranks.values(), key=lambda view: (not view.alive, view.rank))
        pid = next((view.pid for view in ranks), None)
        return ask.Why(run="", where=task.request.where, jobs=True, pid=pid)

    def stop_own(self, request: ask.Stop) -> bool:
        """Stop a run of this console by its own task, which has the connections; return False for another run."""
        for task in self.going:
            if task.verb.role is RunRole.RECORDS and task.run.run == request.run:
                if request.grace_seconds == 0:
                    task.control.kill(StopReason.STOP)
                else:
                    task.control.stop(StopReason.STOP, request.grace_seconds)
                return True
        return False

    def farewell(self) -> list[str]:
        """Return closing lines for the last demo and for the runs that ended here."""
        from distconsole.runs.present import done_text
        from distconsole.text.run import note_text
        from distconsole.text.show import demo_lines

        demos = [task.demo_end for task in self.tasks if task.demo_end is not None]
        lines = demo_lines(demos[-1]) if demos else []
        for task in self.live_runs:
            end = task.run.end
            if end is not None and task.demo_end is None:  # a demo has words of its own
                words = note_text(end, done_text(task.run))
                page = f"; distconsole report {end.run}" if task.run.is_kept else ""
                lines.append(f"{words}{page}")
        return lines

    def look_at_hosts(self) -> None:
        seconds = max(1.0, len(self.hosts) / LOADS_S)
        self.start(ask.Top(where=self.where, interval_seconds=seconds), "top", quiet=True)

    def choose_run(self, name: str) -> RequestTask | None:
        """Show the run with this name, id or beginning of an id, if this session knows it; return its task."""
        for task in reversed(self.tasks):
            known = (task.run.run, task.run.name)
            if task.is_run and name and (name in known or task.run.run.startswith(name)):
                self._chosen = task
                return task
        return None

    def newest(self, view: str) -> RequestTask | None:
        """Return the newest task for ``view``, preferably a complete list of runs; or None."""
        found = [task for task in reversed(self.tasks) if task.view == view]
        if view == "runs":
            found.sort(key=lambda task: not task.done)
        return next(iter(found), None)


def repeat_request(request: ask.Check, check: str) -> tuple[ask.Check, str]:
    """Return the request that repeats ``check`` on all hosts, and its line."""
    words = ["check", "--only", shlex.quote(check)]
    if request.level is not ask.Level.STANDARD:
        words += ["--level", request.level.value]
    if request.target is not None:
        words += ["--", *map(shlex.quote, request.target.command)]
    alone = replace(
        request, only=(check,), skip=(), junit=None, emit_hostfile=None, write_profile=None
    )
    return alone, " ".join(words)


def screen_words(line: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError:
        return []
    words[:1] = [ALIASES.get(word, word) for word in words[:1]]
    return words if words and words[0] in SCREEN_VERBS else []


OF_HOST = tuple(name for name in HOST_KEYS if name != "slots")
"""Settings of a host that files and clusters keep, except its number of ranks."""


def reach_as_own(cluster: Cluster, own: Cluster) -> Cluster:
    hosts = []
    for host in cluster.hosts:
        known = own.host(host.name) or host
        said = {name: getattr(host, name) or getattr(known, name) for name in OF_HOST}
        hosts.append(replace(host, **said))
    return replace(cluster, hosts=tuple(hosts))


def list_as_reached(hosts: str, own: Cluster) -> str:
    """Return a list of hosts with the users and ports of ``own``, to mean the same elsewhere."""
    try:
        named = read_list(hosts)
    except RangeError:
        return hosts  # whoever reads it says what is wrong
    found = []
    for host in named:
        known = own.host(host.name)
        if known is not None:
            host = replace(host, user=host.user or known.user, port=host.port or known.port)
        found.append(host)
    return hosts if found == named else ",".join(map(host_text, found))
