"""Sends notices about a run to a person; it never blocks or fails the run.

Bell and desktop notices appear in each terminal that shows the run. A command and a webhook get one notice
for each run: from the console that started it, or from one with ``--notify``. A failure is reported without
the webhook's address, which is a secret, and without the command's words.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from msgspec import UNSET

from distconsole.config.load import load_config
from distconsole.config.notify import NotifySettings, notify_settings
from distconsole.config.paths import user_config_file
from distconsole.errors import ConsoleError, UsageError
from distconsole.model import requests as ask
from distconsole.model.events import Event, TextMade
from distconsole.model.findings import Severity
from distconsole.model.notices import LOCAL_WAYS, Notice, NoticeKind, Way
from distconsole.model.run_events import (
    EndState,
    PlanMade,
    RankChanged,
    RankState,
    RunEnded,
    RunEvent,
    RunFinding,
)
from distconsole.model.time_text import duration_text
from distconsole.rpc.wire import NotToldError, post
from distconsole.ssh.plain import plain_text, quote

MAX_CHARS = 400
MAX_FINDINGS = 20
"""Most kinds of findings that one run reports: a run in trouble must not flood its reader."""
OF_OTHERS = ("run.first_failure", "run.stall", "run.restart")
"""Findings that another event reports, or that pass by themselves."""


class Notices:
    """Folds the events of one run; events before ``since`` (UNIX seconds) were reported when they happened."""

    def __init__(self, kinds: AbstractSet[NoticeKind], since: float = float("-inf")) -> None:
        self._kinds = kinds
        self._since = since
        self._name = ""
        self._stalled: set[int] = set()
        self._found: set[str] = set()

    def see(self, event: Event) -> Notice | None:
        notice = self._notice(event) if isinstance(event, RunEvent) else None
        wanted = notice and notice.kind in self._kinds and notice.t >= self._since
        return notice if wanted else None

    def _notice(self, event: RunEvent) -> Notice | None:
        match event:
            case PlanMade():
                self._name = event.name
                return None
            case RankChanged():
                return self._rank(event)
            case RunFinding(severity=Severity.FAIL):
                return self._finding(event)
            case RunEnded():
                return self._end(event)
            case _:
                return None

    def _rank(self, event: RankChanged) -> Notice | None:
        if event.state is not RankState.STALLED:
            self._stalled.discard(event.rank)
            return None
        first = not self._stalled
        self._stalled.add(event.rank)
        if not first:
            return None
        text = f"rank {event.rank} on {event.host} makes no step"
        return self._notice_of(NoticeKind.STALL, event, "stalled", text, event.rank, event.host)

    def _finding(self, event: RunFinding) -> Notice | None:
        known = event.check in self._found or event.check in OF_OTHERS
        if known or len(self._found) >= MAX_FINDINGS:
            return None
        self._found.add(event.check)
        rank = None if event.rank is UNSET else event.rank
        host = ",".join(event.hosts[:3])
        return self._notice_of(
            NoticeKind.FINDING, event, "is in trouble", event.summary, rank, host
        )

    def _end(self, event: RunEnded) -> Notice:
        failed, first = event.state is EndState.FAILED, event.first_failure
        what, rank, host = event.state.value, None, ""
        text = f"after {duration_text(event.seconds)}"
        if event.error is not UNSET:
            what, text = "was not started", event.error
        elif first is not UNSET:
            text += f", exit code {event.exit_code}: {first.short_blame}"
            rank, host = first.rank if first.of_rank else None, first.host
        elif failed:
            text += f", exit code {event.exit_code}"
        made = self._notice_of(
            NoticeKind.FAILURE if failed else NoticeKind.FINISH, event, what, text, rank, host
        )
        return replace(made, state=event.state.value, exit_code=event.exit_code)

    def _notice_of(
        self, kind: NoticeKind, event: RunEvent, what: str, text: str, rank: int | None, host: str
    ) -> Notice:
        name = plain_text(self._name)[:MAX_CHARS]
        return Notice(
            kind=kind,
            title=f"{name or plain_text(event.run)} {what}",
            text=plain_text(text)[:MAX_CHARS],
            t=event.t,
            run=plain_text(event.run),
            name=name,
            rank=rank,
            host=plain_text(host)[:MAX_CHARS],
        )


MAX_WAITING = 32
LEAVING_SECONDS = 15.0
"""Longest wait of the program's end for pending notices."""
SLACK_SECONDS = 5.0
"""Events of these last seconds before an attach still count as new."""

SHOWN_CHARS = 200
URGENCY = {
    NoticeKind.FINISH: "success",
    NoticeKind.FAILURE: "failure",
    NoticeKind.STALL: "warning",
    NoticeKind.FINDING: "warning",
}
"""Kind of notice -> apprise's type."""
APPRISE = """
import json, logging, sys
import apprise
logging.disable()
given = json.load(sys.stdin)
asset = apprise.AppriseAsset(app_id="distconsole", app_url="")
failed = []
for service in given.pop("services"):
    one = apprise.Apprise(asset=asset)
    if not (one.add(service) and one.notify(**given)):
        failed.append(service.partition(":")[0])
sys.exit(", ".join(failed) or 0)
"""
"""Posts to services, and prints the kinds of those that failed. A program of its own: apprise leaves threads behind."""

NODE_WORDS = {
    None: "a run's first node tells the webhook where it was started with --detach",
    True: "a run's first node tells the webhook",
    False: "off",
}

Ring = Callable[[Notice, frozenset[Way]], None]
"""Rings the terminal by these ways; called from any thread."""


def ways_for(request: ask.Request, settings: NotifySettings, *, on_screen: bool) -> frozenset[Way]:
    """Return the notifiers for ``request``; raises UsageError for an unset way."""
    ways = _choose_ways(request, settings, on_screen=on_screen)
    return ways - ({Way.NODE, Way.WEBHOOK} if Way.NODE in ways else set())


def node_notice(request: ask.Run) -> dict[str, Any] | None:
    """Return the settings for notices of a run's first node; None without any; raises as ``ways_for``."""
    settings = notify_settings(load_config().notify)
    if Way.NODE not in _choose_ways(request, settings, on_screen=False):
        return None
    kinds = sorted(settings.kinds)
    return {"address": settings.webhook, "on": kinds, "timeout": settings.timeout_seconds}


def _choose_ways(
    request: ask.Request, settings: NotifySettings, *, on_screen: bool
) -> frozenset[Way]:
    match request:
        case ask.Run(dry_run=True):
            return frozenset()
        case ask.Run() | ask.Rerun():
            asked, started, stays = request.notify, True, not request.detach
        case ask.Attach():
            asked, started, stays = request.notify, False, True
        case ask.Demo():
            asked, started, stays = None, False, True
        case _:
            return frozenset()
    by_node = frozenset({Way.NODE} if started and settings.webhook else ())
    usable = usual_ways(settings, on_screen=on_screen)
    if not stays:
        usable = frozenset() if settings.node is False else by_node
    usable -= {Way.NODE} - by_node
    if asked is None:
        return usable if started else usable & LOCAL_WAYS
    if asked == "none":
        return frozenset()
    if asked == "all":
        return usable | LOCAL_WAYS if stays else by_node
    ways = frozenset(Way(word) for word in asked.split(","))
    lacking = ways - LOCAL_WAYS - usable - by_node
    if lacking:
        way = min(lacking)
        raise UsageError(
            f"--notify {way}: none is configured",
            f"put '{way}' into [notify] of {user_config_file()}"
            if way is not Way.NODE
            else "the node that posts to 'webhook' of [notify] is told when its run starts",
        )
    return ways


def usual_ways(settings: NotifySettings, *, on_screen: bool) -> frozenset[Way]:
    bell = on_screen if settings.bell is None else settings.bell
    desktop = on_screen if settings.desktop is None else settings.desktop != "off"
    usable = {
        Way.BELL: bell,
        Way.DESKTOP: desktop,
        Way.COMMAND: bool(settings.command),
        Way.WEBHOOK: bool(settings.webhook),
        Way.SERVICES: bool(settings.services),
        Way.NODE: bool(settings.webhook and settings.node),
    }
    return frozenset(way for way, is_there in usable.items() if is_there)


class Notifier:
    """Sends the notices of one run.

    Args:
        say: Reports a failed notice, once for each way.
        attached: Whether the run may have begun before, so that old events are left out.
    """

    def __init__(
        self,
        settings: NotifySettings,
        ways: frozenset[Way],
        ring: Ring,
        say: Callable[[str], None],
        *,
        attached: bool = False,
    ) -> None:
        self._settings = settings
        self._ways = ways
        self._ring = ring
        self._say = say
        since = time.time() - SLACK_SECONDS if attached else float("-inf")
        self._notices = Notices(settings.kinds if ways else frozenset(), since)
        self._waiting: SimpleQueue[Notice | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failed: set[Way] = set()

    def see(self, event: Event) -> None:
        """Send the notice of an event that has one. Never blocks. Leaves the webhook to the run's node if that posts to it."""
        if isinstance(event, PlanMade) and event.told_by_node is True:
            self._ways -= {Way.WEBHOOK}
        notice = self._notices.see(event)
        if notice is not None:
            self.tell(notice)

    def tell(self, notice: Notice) -> None:
        """Send a notice. Never blocks."""
        local = self._ways & LOCAL_WAYS
        if local:
            self._ring(notice, local)
        if not self._ways - LOCAL_WAYS or self._waiting.qsize() >= MAX_WAITING:
            return
        self._waiting.put(notice)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="notify", daemon=True)
            self._thread.start()

    def close(self, seconds: float = LEAVING_SECONDS) -> None:
        """Wait until all notices are sent; after ``seconds`` report that some are not, and nothing later."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(seconds)
            if self._thread.is_alive():
                self._failed.update(Way)
                self._say("notify: not all notices were sent before the end")

    def _work(self) -> None:
        while (notice := self._waiting.get()) is not None:
            for way, failure in deliver(self._settings, self._ways, notice):
                if failure and way not in self._failed:
                    self._failed.add(way)
                    self._say(f"notify: the {way.value} {failure}")


def deliver(
    settings: NotifySettings, ways: frozenset[Way], notice: Notice
) -> Iterator[tuple[Way, str]]:
    """Send a notice by all ways but the terminal's, each in bounded time; yield each way's error, or an empty text."""
    for way in (Way.COMMAND, Way.WEBHOOK, Way.SERVICES):
        if way not in ways:
            continue
        try:
            if way is Way.COMMAND:
                run_command(settings.command, notice, settings.timeout_seconds)
            elif way is Way.SERVICES:
                tell_services(settings.services, notice, settings.timeout_seconds)
            else:
                post(settings.webhook, notice.fields, settings.timeout_seconds)
        except NotToldError as error:
            yield way, str(error)
        else:
            yield way, ""


def run_command(command: Sequence[str], notice: Notice, timeout_seconds: float) -> None:
    """Run ``command`` with the notice (JSON) on stdin; it and its children end in time; raises NotToldError."""
    variables = {
        "DISTCONSOLE_NOTICE": notice.kind.value,
        "DISTCONSOLE_RUN": notice.run,
        "DISTCONSOLE_STATE": notice.state,
        "DISTCONSOLE_TITLE": notice.title,
        "DISTCONSOLE_TEXT": notice.text,
    }
    code, words = _run_program(command, notice.fields, variables, timeout_seconds)
    if code:
        ended = f"ended with {code}"
        raise NotToldError(ended if words == "''" else f"{ended}: {words}")


def tell_services(services: Sequence[str], notice: Notice, timeout_seconds: float) -> None:
    """Post to services by apprise, in a program that ends in time; raises NotToldError with their kinds."""
    if importlib.util.find_spec("apprise") is None:
        raise NotToldError("need apprise: pip install 'distconsole[notify]'")
    kind = URGENCY.get(notice.kind, "info")
    given = {"services": services, "body": notice.text, "title": notice.title, "notify_type": kind}
    code, words = _run_program([sys.executable, "-P", "-c", APPRISE], given, {}, timeout_seconds)
    if code:
        raise NotToldError(f"did not take it: {words}")


def _run_program(
    command: Sequence[str],
    given: Mapping[str, object],
    variables: Mapping[str, str],
    timeout_seconds: float,
) -> tuple[int, str]:
    """Return a program's exit code and its stderr; ``given`` is JSON on its stdin."""
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
                env={**os.environ, **variables},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise NotToldError(f"cannot be started: {reason}") from None
        try:
            process.communicate(json.dumps(given).encode(), timeout_seconds)
        except subprocess.TimeoutExpired:
            raise NotToldError(f"took longer than {timeout_seconds:g} s and was ended") from None
        finally:
            _end(process)
        said.seek(0)
        return process.returncode, quote(said.read(4 * SHOWN_CHARS), SHOWN_CHARS)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the group of a program that took too long; processes that a well-behaved one left stay."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.stdin is not None:
        process.stdin.close()
    process.wait()


def notify(request: ask.Notify) -> Iterator[Event]:
    """List the ways of notices; with ``test``, try those that are not the terminal's.

    Raises ConfigError if the configuration cannot be read.
    """
    settings = notify_settings(load_config().notify)
    usable = usual_ways(settings, on_screen=True)
    kinds = ", ".join(kind.value for kind in NoticeKind if kind in settings.kinds)
    yield TextMade(text=f"told of: {kinds or 'nothing'}")
    failures: dict[Way, str] = {}
    if request.test:
        failures = dict(deliver(settings, usable, trial(time.time())))
    for way in Way:
        words = "yes" if way in usable else "not configured" if way not in LOCAL_WAYS else "off"
        if way in failures:
            words = failures[way] or "told"
        elif way is Way.NODE and settings.webhook:
            words = NODE_WORDS[settings.node]
        elif way in usable and way in LOCAL_WAYS:
            told = "sent to this terminal, if it is one"
            words = told if request.test else "on the screen; elsewhere by --notify"
        failed = bool(failures.get(way))
        yield TextMade(
            text=f"  {way.value:<8} {'✗' if failed else '●' if way in usable else '·'} {words}"
        )
    if Way.DESKTOP in usable and os.environ.get("TMUX"):
        yield TextMade(
            text="  tmux passes the desktop's on only with: set -g allow-passthrough on"
        )
    if any(failures.values()):
        raise ConsoleError(
            f"{' and '.join(way.value for way in failures if failures[way])} did not work",
            f"mend [notify] in {user_config_file()}",
        )


def trial(t: float) -> Notice:
    """Return the notice of ``notify test``."""
    return Notice(
        kind=NoticeKind.TEST, title="distconsole", text="this is how you are told of a run", t=t
    )
