"""Tells a person what becomes of a run, beside the run: it never waits for anybody and never fails.

The bell and the desktop belong to the terminal that shows the run, and every one of them rings. A command
and a webhook are told once for each run: by the console that started it, or by one that was asked to.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from distconsole.config.load import load_config
from distconsole.config.notify import NotifySettings, notify_settings
from distconsole.config.paths import user_config_file
from distconsole.errors import ConsoleError, UsageError
from distconsole.model import requests as ask
from distconsole.model.events import Event, TextMade
from distconsole.model.notices import LOCAL_WAYS, Notice, NoticeKind, Way
from distconsole.operations.telling import NotToldError, post, run_command
from distconsole.runs.notices import Notices

MAX_WAITING = 32
LEAVING_SECONDS = 15.0
"""The program's end waits no longer for what is still to be told."""
SLACK_SECONDS = 5.0
"""Events from so long before a run was attached to still count as new."""

Ring = Callable[[Notice, frozenset[Way]], None]
"""Rings the terminal by these ways; called from any thread."""


def ways_for(request: ask.Request, settings: NotifySettings, *, on_screen: bool) -> frozenset[Way]:
    """Return how the person who asks for ``request`` is told what becomes of it.

    Raises:
        UsageError: if a way was asked for that is not configured.
    """
    match request:
        case ask.Run(dry_run=True) | ask.Run(detach=True) | ask.Rerun(detach=True):
            return frozenset()
        case ask.Run() | ask.Rerun():
            asked, started = request.notify, True
        case ask.Attach():
            asked, started = request.notify, False
        case ask.Demo():
            asked, started = None, False
        case _:
            return frozenset()
    there = configured(settings, on_screen=on_screen)
    if asked is None:
        return there if started else there & LOCAL_WAYS
    if asked == "none":
        return frozenset()
    if asked == "all":
        return there | LOCAL_WAYS
    ways = frozenset(Way(word) for word in asked.split(","))
    lacking = ways - LOCAL_WAYS - there
    if lacking:
        way = min(lacking).value
        raise UsageError(
            f"--notify {way}: none is configured",
            f"put '{way}' into [notify] of {user_config_file()}",
        )
    return ways


def configured(settings: NotifySettings, *, on_screen: bool) -> frozenset[Way]:
    """Return the ways by which one is told if nothing else is asked."""
    bell = on_screen if settings.bell is None else settings.bell
    desktop = on_screen if settings.desktop is None else settings.desktop != "off"
    there = {
        Way.BELL: bell,
        Way.DESKTOP: desktop,
        Way.COMMAND: bool(settings.command),
        Way.WEBHOOK: bool(settings.webhook),
    }
    return frozenset(way for way, is_there in there.items() if is_there)


class Notifier:
    """Tells of one run.

    Args:
        ways: By which.
        ring: Rings the terminal.
        say: Says a failure, once for each way.
        attached: Whether the run may have begun before, so that what is long past is not told.
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
        """Tell of ``event`` if it is worth it. Never blocks."""
        notice = self._notices.see(event)
        if notice is not None:
            self.tell(notice)

    def tell(self, notice: Notice) -> None:
        """Tell of ``notice``. Never blocks."""
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
        """Wait, within bounds, until all is told."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(seconds)

    def _work(self) -> None:
        while (notice := self._waiting.get()) is not None:
            for way, failure in deliver(self._settings, self._ways, notice):
                if failure and way not in self._failed:
                    self._failed.add(way)
                    self._say(f"notify: the {way.value} {failure}")


def deliver(
    settings: NotifySettings, ways: frozenset[Way], notice: Notice
) -> list[tuple[Way, str]]:
    """Tell the command and the webhook, each in bounded time; return by way what went wrong, or nothing."""
    told: list[tuple[Way, str]] = []
    for way in (Way.COMMAND, Way.WEBHOOK):
        if way not in ways:
            continue
        try:
            if way is Way.COMMAND:
                run_command(settings.command, notice, settings.timeout_seconds)
            else:
                post(settings.webhook, notice, settings.timeout_seconds)
        except NotToldError as error:
            told.append((way, str(error)))
        else:
            told.append((way, ""))
    return told


def notify(request: ask.Notify) -> Iterator[Event]:
    """Say by which ways one is told, and tell by those that are not the terminal's if a test is wanted.

    Raises:
        ConfigError: if the configuration cannot be read.
    """
    settings = notify_settings(load_config().notify)
    there = configured(settings, on_screen=True)
    kinds = ", ".join(kind.value for kind in NoticeKind if kind in settings.kinds)
    yield TextMade(text=f"told of: {kinds or 'nothing'}")
    failures: dict[Way, str] = {}
    if request.test:
        failures = dict(deliver(settings, there, trial(time.time())))
    for way in Way:
        words = "yes" if way in there else "not configured" if way not in LOCAL_WAYS else "off"
        if way in failures:
            words = failures[way] or "told"
        elif way in there and way in LOCAL_WAYS:
            words = "rung" if request.test else "on the screen; elsewhere by --notify"
        failed = bool(failures.get(way))
        yield TextMade(
            text=f"  {way.value:<8} {'✗' if failed else '●' if way in there else '·'} {words}"
        )
    if Way.DESKTOP in there and os.environ.get("TMUX"):
        yield TextMade(
            text="  tmux passes the desktop's on only with: set -g allow-passthrough on"
        )
    if any(failures.values()):
        raise ConsoleError("not all ways work", f"[notify] in {user_config_file()}")


def trial(t: float) -> Notice:
    """Return the notice of ``notify test``."""
    return Notice(
        kind=NoticeKind.TEST, title="distconsole", text="this is how you are told of a run", t=t
    )
