"""Tells a person what becomes of a run, beside the run: it never waits for anybody and never fails.

The bell and the desktop belong to the terminal that shows the run, and every one of them rings. A command
and a webhook are told once for each run: by the console that started it, or by one that was asked to. What
goes wrong is said without the webhook's address, which is a secret, and without the command's words.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue

from distconsole.config.load import load_config
from distconsole.config.notify import NotifySettings, notify_settings
from distconsole.config.paths import user_config_file
from distconsole.errors import ConsoleError, UsageError
from distconsole.model import requests as ask
from distconsole.model.events import Event, TextMade
from distconsole.model.notices import LOCAL_WAYS, Notice, NoticeKind, Way
from distconsole.runs.notices import Notices
from distconsole.ssh.plain import quote

MAX_WAITING = 32
LEAVING_SECONDS = 15.0
"""The program's end waits no longer for what is still to be told."""
SLACK_SECONDS = 5.0
"""Events from so long before a run was attached to still count as new."""

TRIES = 3
PAUSE_SECONDS = 0.5
"""Before the second try of a webhook; twice as long before each further one."""
SHOWN_CHARS = 200
PASSING = (408, 425, 429)
"""Answers below 500 after which it is worth trying again."""

Ring = Callable[[Notice, frozenset[Way]], None]
"""Rings the terminal by these ways; called from any thread."""


class NotToldError(Exception):
    """A notice did not arrive, and why, without a secret; ``passing``: another try may do better."""

    def __init__(self, text: str, *, passing: bool = False) -> None:
        super().__init__(text)
        self.passing = passing


def ways_for(request: ask.Request, settings: NotifySettings, *, on_screen: bool) -> frozenset[Way]:
    """Return how the person is told what becomes of ``request``; raises UsageError for an unset way."""
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
    there = usual_ways(settings, on_screen=on_screen)
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


def usual_ways(settings: NotifySettings, *, on_screen: bool) -> frozenset[Way]:
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


def run_command(command: Sequence[str], notice: Notice, timeout_seconds: float) -> None:
    """Run ``command`` with the notice (JSON) on stdin; it and its children end in time; raises NotToldError."""
    variables = {
        "DISTCONSOLE_NOTICE": notice.kind.value,
        "DISTCONSOLE_RUN": notice.run,
        "DISTCONSOLE_STATE": notice.state,
        "DISTCONSOLE_TITLE": notice.title,
        "DISTCONSOLE_TEXT": notice.text,
    }
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
            process.communicate(json.dumps(notice.fields).encode(), timeout_seconds)
        except subprocess.TimeoutExpired:
            raise NotToldError(f"took longer than {timeout_seconds:g} s and was ended") from None
        finally:
            _end(process)
        if process.returncode:
            said.seek(0)
            words = quote(said.read(4 * SHOWN_CHARS), SHOWN_CHARS)
            ended = f"ended with {process.returncode}"
            raise NotToldError(ended if words == "''" else f"{ended}: {words}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing of one that took too long; what a well-behaved one left running is its own affair."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.stdin is not None:
        process.stdin.close()
    process.wait()


def post(
    address: str,
    notice: Notice,
    timeout_seconds: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Post the notice as JSON, ``text`` as Slack, Mattermost and Teams' workflows want it; try a few times.

    Redirects are not followed: they could lead to where nothing is encrypted. ``config.notify`` checks
    the address, and ``timeout_seconds`` are for all tries. Raises NotToldError if none succeeds.
    """
    body = json.dumps({**notice.fields, "text": f"{notice.title}: {notice.text}"}).encode()
    deadline = monotonic() + timeout_seconds
    pause, tried = PAUSE_SECONDS, 1
    while True:
        try:
            _try_post(address, body, max(0.1, deadline - monotonic()))
        except NotToldError as error:
            if not error.passing or tried == TRIES or monotonic() + pause >= deadline:
                text = str(error) if tried == 1 else f"{error} (tried {tried} times)"
                raise NotToldError(text) from None
        else:
            return
        sleep(pause)
        pause, tried = 2 * pause, tried + 1


def _try_post(address: str, body: bytes, timeout_seconds: float) -> None:
    import http.client  # noqa: PLC0415 - slow to import, and most tell nobody
    import urllib.error  # noqa: PLC0415
    import urllib.request  # noqa: PLC0415

    class _Straight(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_args: object, **_more: object) -> None:
            return None

    headers = {"Content-Type": "application/json", "User-Agent": "distconsole"}
    request = urllib.request.Request(address, body, headers, method="POST")  # noqa: S310 - checked when it was read
    try:
        with urllib.request.build_opener(_Straight).open(request, timeout=timeout_seconds):
            return
    except urllib.error.HTTPError as error:
        with error:
            passing = error.code >= 500 or error.code in PASSING
            raise NotToldError(f"answered {error.code}", passing=passing) from None
    except urllib.error.URLError as error:
        raise NotToldError(_describe(error.reason), passing=True) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NotToldError(_describe(error), passing=True) from None


def _describe(reason: object) -> str:
    """Say why in words that have no part of the address."""
    import ssl  # noqa: PLC0415

    match reason:
        case ssl.SSLCertVerificationError():
            return "cannot be trusted: its certificate is not valid here"
        case TimeoutError():
            return "did not answer in time"
        case OSError() if reason.strerror and reason.errno is not None:
            return f"cannot be reached: {reason.strerror}"
        case _:
            return f"cannot be reached: {type(reason).__name__}"


def notify(request: ask.Notify) -> Iterator[Event]:
    """Say by which ways one is told, and tell by those that are not the terminal's if a test is wanted.

    Raises ConfigError if the configuration cannot be read.
    """
    settings = notify_settings(load_config().notify)
    there = usual_ways(settings, on_screen=True)
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
        raise ConsoleError(
            f"{' and '.join(way.value for way in failures if failures[way])} did not work",
            f"mend [notify] in {user_config_file()}",
        )


def trial(t: float) -> Notice:
    """Return the notice of ``notify test``."""
    return Notice(
        kind=NoticeKind.TEST, title="distconsole", text="this is how you are told of a run", t=t
    )
