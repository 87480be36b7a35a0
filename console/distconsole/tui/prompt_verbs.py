"""Verbs about the prompt itself: jobs and their end, answers, the transcript."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.cells import cell_len, set_cell_size

from distconsole.config.paths import expand_home, runs_dir
from distconsole.config.shortcuts import startup_lines
from distconsole.config.spelling import mend_line
from distconsole.errors import ConsoleError, RunNotFoundError, UsageError
from distconsole.grammar.secrets import MASK
from distconsole.model import requests as ask
from distconsole.model.names import count_text, join_some
from distconsole.model.run_events import PlanMade
from distconsole.model.time_text import duration_text, span_text
from distconsole.model.verbs import verb_of
from distconsole.runs.present import done_text
from distconsole.runs.store.planned import stored_end, stored_plan
from distconsole.runs.store.store import RunStore
from distconsole.text.run import note_text
from distconsole.tui.jobs import SHORT_SECONDS, Ending, Job, foremost, jobs_of, spinner
from distconsole.tui.later import run_in_thread
from distconsole.tui.prompt.question import Asked, Danger, ask_from_thread
from distconsole.tui.tasks import RequestTask
from distconsole.tui.terminal.sanitize import one_line

if TYPE_CHECKING:
    from distconsole.tui.console import Console

MIN_LINE_CELLS = 24
"""Least cells of a job's line."""
SAVED_AS = "distconsole-%Y%m%d-%H%M%S.txt"


class PromptVerbs:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._looked = 0
        console.session.confirm = self._confirm

    @property
    def jobs(self) -> list[Job]:
        return jobs_of(self._console.session.tasks, self._console.session.clocks.monotonic())

    def do(self, words: list[str]) -> bool:
        """Run ``words`` if they are a verb of the prompt; return False if not."""
        match words:
            case ["jobs"]:
                self._console.show_view("jobs")
            case ["cancel", *which] if len(which) <= 1:
                self._cancel_named("".join(which))
            case ["save", *rest] if len(set(rest) - {"--yes", "-y"}) <= 1:
                self._save([word for word in rest if word not in ("--yes", "-y")], rest)
            case ["clear"]:
                self._console.messages.forget()
                if view := self._console.views.loaded("transcript"):
                    view.forget()
                self._console.session.transcript.forget()
            case ["screenshot"]:
                self._screenshot()
            case ["screenshot", path]:
                self.ask_about_files([path], partial(self._screenshot, path))
            case ["yes" | "no" as answer]:
                if not self._console.question.answer(answer == "yes"):
                    self._say("nothing was asked")
            case _:
                return False
        return True

    def begin(self, startup: Path | None, run_at: Callable[[str, str], None]) -> None:
        """Note conflicts of keys and ``run_at`` their places the start-up file's lines; the requested view stays."""
        for told in self._console.shortcuts.keymap.told:
            self._say(told)
        if startup is None:
            return
        console, view = self._console, self._console.view
        try:
            lines = startup_lines(startup)
        except ConsoleError as error:
            console.session.transcript.error(error)
            return
        for number, line in lines:
            run = partial(run_at, f"{startup}:{number}", one_line(line))
            console.want(view, run)
        if console.session.first is not None:
            console.want(view, partial(console.show_view, view))

    def start(self, line: str, then: Callable[[RequestTask], None]) -> None:
        """Start the request in ``line``, once confirmed if needed; raises ConsoleError if it is invalid."""
        if MASK in line:
            raise UsageError(
                f"where {MASK} stands was a secret, which the history has not kept",
                "type it again, or name a file of variables with --env-file",
            )
        request = self._console.session.request(line)
        place, verb = self._console.session.transcript.place, verb_of(request)
        if getattr(request, "json", False) and verb.live:
            self._say("the screen shows it; --json is for programs: 'export RUN' prints the same")
        if isinstance(request, ask.Init) and self._console.set_up(line):
            return
        offered = self._console.session.offers and verb.live
        if offered and isinstance(request, ask.Top) and request.where.names_hosts:
            self._console.session.choose_hosts(request.where)
            self._console.views.take_hosts()
        if not (verb.asks or verb.writes or isinstance(request, ask.Stop)):
            then(self._console.session.start(request, line))
            return

        def work() -> Callable[[], None]:
            try:
                meant, danger = assess(request, self._console.session.clocks.unix())
            except ConsoleError as error:
                return partial(self.fail, line, error, place)
            danger = danger if verb.asks or verb.writes else None
            return partial(self._if_wanted, danger, lambda: self._begin(meant, line, then))

        run_in_thread(self._console.post_message, work, "weigh")

    def _begin(self, request: ask.Request, line: str, then: Callable[[RequestTask], None]) -> None:
        if isinstance(request, ask.Stop) and self._console.session.stop_own(request):
            doing = "killing" if request.grace_seconds == 0 else "stopping"
            self._say(f"{doing} {request.run}")
        else:
            then(self._console.session.start(request, line))

    def fail(self, line: str, error: ConsoleError, place: str = "") -> None:
        """Report an invalid ``line``, at ``place`` in a file if given, and offer a corrected one."""
        if place:
            error = ConsoleError(f"{place}: {error.message}", error.hint)
        self._console.session.transcript.error(error)
        meant = mend_line(line, f"{error.message} {error.hint}")
        if meant is not None:
            self._console.prompt.mean(meant)

    def interrupt(self) -> bool:
        """Handle Ctrl-C: end the foremost job; return False without one."""
        job = foremost(self.jobs, self._console.view)
        if job is not None:
            self._cancel(job)
        return job is not None

    def ask_to_leave(self) -> None:
        """Leave; while jobs run name their fate, and ask first."""
        console = self._console
        details = [
            f"{task.run.run or task.line} "
            + (
                "goes on; 'distconsole attach' shows it again"
                if task.verb.outlives
                else "is stopped"
            )
            for task in console.session.going
        ]
        details += [
            f"[{job.number}] {job.line} is ended" for job in self.jobs if not job.task.is_run
        ]
        if details:
            danger = Danger("Leave distconsole?", tuple(dict.fromkeys(details)), "leave")
            console.question.ask(Asked(danger, lambda yes: console.leave() if yes else None))
        else:
            console.leave()

    def now_text(self, width: int) -> str:
        """The running jobs in ``width`` cells, with the way to end; the line gives way first, then the progress."""
        able = [job for job in self.jobs if job.ending is not Ending.NOT]
        jobs = [job for job in able if job.seconds >= SHORT_SECONDS]
        if not jobs:
            return ""
        job, *others = jobs
        words = [
            f"{spinner(self._console.session.clocks.monotonic())} [{job.number}] {job.line}",
            duration_text(job.seconds if job.seconds < 1 else int(job.seconds)),
            job.now,
            job.way_out,
            f"jobs: {len(others)} more" if others else "",
        ]
        for place, least in ((0, MIN_LINE_CELLS), (2, 0)):
            over = cell_len("  ".join(filter(None, words))) - width
            if over > 0:
                words[place] = shorten(words[place], cell_len(words[place]) - over, least)
        return "  ".join(filter(None, words))

    def look(self) -> None:
        """Draw the jobs, report ended runs, and suggest the right line after one that failed by a wrong word."""
        console = self._console
        self._tell_ends()
        if console.view == "jobs":
            console.views.jobs.draw(self.jobs, console.session.clocks.monotonic())
        for task in console.session.tasks:
            if task.error is None or task.number <= self._looked:
                continue
            self._looked = task.number
            meant = mend_line(task.line, f"{task.error.message} {task.error.hint}")
            prompt = console.prompt
            if meant is not None and not prompt.value:
                prompt.mean(meant)

    def _tell_ends(self) -> None:
        console = self._console
        for task in console.session.live_runs:
            if task.end_told or task.run.end is None:
                continue
            task.end_told = True
            if console.view != "run" or task is not console.session.shown_run():
                words = note_text(task.run.end, done_text(task.run))
                console.session.transcript.show(words)

    def ask_about_files(self, paths: list[str], then: Callable[[], None]) -> None:
        """Call ``then``; ask first if one of ``paths`` exists."""

        def work() -> Callable[[], None]:
            danger = overwriting(paths, self._console.session.clocks.unix())
            return partial(self._if_wanted, danger, then)

        run_in_thread(self._console.post_message, work, "look")

    def _if_wanted(self, danger: Danger | None, then: Callable[[], None]) -> None:
        if danger is None:
            then()
            return

        def answered(yes: bool) -> None:
            if yes:
                then()
            else:
                self._say(f"nothing was done ({danger.question})")

        self._console.question.ask(Asked(danger, answered))

    def _confirm(self, task: RequestTask, question: str) -> bool:
        """Ask for a verb that runs in a thread."""
        words = f"[{task.number}] {task.line.split()[0]}: {question}"
        return ask_from_thread(
            self._console.question.post_message,
            words,
            lambda: task.control.asked is None and self._console.is_running,
        )

    def _cancel_named(self, which: str) -> None:
        """End a job by its number, ``all`` that change nothing, or without a name the foremost."""
        jobs = self.jobs
        if which in ("", "all"):
            able = [each for each in jobs if each.ending is Ending.LEAVE] if which else []
            for each in able:
                self._cancel(each)
            if not (able or (not which and self.interrupt())):
                run = self._console.session.shown_run_name()
                stop = f"; 'stop {run}' stops the run" if run else ""
                self._say(f"nothing goes on that '{f'cancel {which}'.strip()}' ends{stop}")
            return
        by_number = {str(each.number): each for each in jobs}
        job = by_number.get(which)
        if job is None:
            hint = f"what goes on: {', '.join(by_number)}" if jobs else "nothing goes on"
            self.fail(f"cancel {which}", UsageError(f"nothing goes on as number {which}", hint))
        elif job.ending is Ending.NOT:
            run = job.task.run.run
            self._say(f"[{which}] is a run that goes on: 'stop {run}' ends it")
            self._console.prompt.mean(f"stop {run}")
        else:
            self._cancel(job)

    def _cancel(self, job: Job) -> None:
        if job.is_stopping:
            self._say(f"killing [{job.number}] {job.line}")
            job.end()
            return
        if job.ending is Ending.ASK:
            verb = job.task.line.split()[0]
            details = ("what it has started on the hosts is ended there",)
            danger = Danger(f"End [{job.number}] {job.line}?", details, f"end {verb}")
            self._if_wanted(danger, job.end)
            return
        stops = isinstance(job.task.request, ask.Stop)
        more = "; the run is being stopped all the same" if stops else ""
        self._say(f"cancelling [{job.number}] {job.line}{more}")
        job.end()

    def _save(self, files: list[str], rest: list[str]) -> None:
        path = expand_home(files[0] if files else time.strftime(SAVED_AS)).absolute()
        text = self._console.session.transcript.text()

        def write() -> Callable[[], None]:
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
                    file.write(text)
            except OSError as error:
                wrong = ConsoleError(f"{path} cannot be written: {error.strerror}", "save FILE")
                return partial(self.fail, "save", wrong)
            return partial(self._say, f"saved {count_text(text.count(chr(10)), 'line')} as {path}")

        def save() -> None:
            run_in_thread(self._console.post_message, write, "save")

        if len(rest) > len(files):
            save()
        else:
            self.ask_about_files([str(path)], save)

    def _screenshot(self, path: str | None = None) -> None:
        try:
            self._say(self._console.save_screenshot(path))
        except ConsoleError as error:
            self._console.session.transcript.error(error)

    def _say(self, words: str) -> None:
        self._console.session.transcript.say(words)


def shorten(words: str, cells: int, least: int) -> str:
    """Return ``words`` in about ``cells`` cells, or in ``least`` if that is more; empty if none are left."""
    cells = max(cells, least)
    if cell_len(words) <= cells:
        return words
    return f"{set_cell_size(words, cells - 1).rstrip()}…" if cells > 1 else ""


NAMED_HOSTS = 4
NAMED_FILES = 3


def assess(request: ask.Request, now: float) -> tuple[ask.Request, Danger | None]:
    """Return ``request`` with its run resolved, and its danger at ``now`` (UNIX seconds).

    It reads files, which may take long. Raises ConsoleError if the run is ambiguous, or its file cannot be read.
    """
    if isinstance(request, ask.Stop):
        return _assess_stop(request, now)
    if isinstance(request, ask.Export) and request.run is not None:
        with contextlib.suppress(RunNotFoundError):  # the verb itself says that
            request = replace(request, run=RunStore(runs_dir()).resolve(request.run))
    return request, overwriting(verb_of(request).writes, now)


def overwriting(paths: Sequence[str], now: float) -> Danger | None:
    """Return the danger of writing these files, and folders, which end with a slash; or None."""
    found = []
    for given in paths:
        path = expand_home(given)
        with contextlib.suppress(OSError):
            status = path.stat()
            ago = span_text(max(0.0, now - status.st_mtime))
            if path.is_file():
                found.append((path, f"{path} ({status.st_size:,} bytes) was written {ago} ago"))
            elif given.endswith("/") and path.is_dir():
                found.append((path, f"{path} was written {ago} ago"))
    if not found:
        return None
    names = join_some((path for path, _ in found), NAMED_FILES)
    details = tuple(words for _, words in found[:NAMED_FILES])
    return Danger(f"Overwrite {names}?", details, "overwrite")


def _assess_stop(request: ask.Stop, now: float) -> tuple[ask.Request, Danger | None]:
    store = RunStore(runs_dir())
    try:
        run = store.resolve(request.run, unended=True)
    except RunNotFoundError:
        if any(record.run.startswith(request.run) for record in store.runs()):
            raise  # it may be several
        where = "this machine does not know it; the hosts are asked"
        return request, Danger(f"Stop {request.run}?", (where, _means(request)), "stop it")
    record = store.record(run)
    request = replace(request, run=run)
    if stored_end(record) is not None:
        return request, None
    plan = stored_plan(record)
    age = span_text(max(0.0, now - record.started))
    script = plan.script.rpartition("/")[2] if plan else ""
    about = ", ".join(filter(None, (script, f"begun {age} ago")))
    verb = "Kill" if request.grace_seconds == 0 else "Stop"
    details = (f"{_ranks(plan, record.hosts)}: {_means(request, _own_grace(record.request))}",)
    return request, Danger(f"{verb} {run} ({about})?", details, f"{verb.lower()} it")


def _ranks(plan: PlanMade | None, hosts: Sequence[str]) -> str:
    each = {host.host: len(host.ranks) for host in plan.hosts} if plan else dict.fromkeys(hosts, 0)
    named = [f"{host} ({count})" if count else host for host, count in each.items()]
    where = join_some(named, NAMED_HOSTS)
    count = sum(each.values())
    what = count_text(count, "rank") if count else "every rank"
    return f"{what} on {count_text(len(each), 'host')}: {where}"


def _means(request: ask.Stop, own_seconds: float | None = None) -> str:
    """Return the signals of a stop in words; ``own_seconds`` is the run's own grace, None if unknown."""
    grace = own_seconds if request.grace_seconds is None else request.grace_seconds
    if grace == 0:
        return "SIGKILL at once; nothing is saved"
    after = "the run's own grace" if grace is None else f"{grace:g} s"
    return f"SIGTERM to all, SIGKILL to what is left after {after}"


def _own_grace(request: bytes) -> float | None:
    with contextlib.suppress(msgspec.DecodeError):
        found = msgspec.json.decode(request) if request else None
        grace = found.get("grace_seconds") if isinstance(found, dict) else None
        return float(grace) if isinstance(grace, int | float) else None
    return None
