"""A notice to a person's own command or webhook, in bounded time. It decides nothing about what is told.

What went wrong is said without the webhook's address, which is a secret, and without the command's words.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence

from distconsole.model.notices import Notice
from distconsole.ssh.plain import quote

TRIES = 3
PAUSE_SECONDS = 0.5
"""Before the second try; twice as long before each further one."""
SHOWN_CHARS = 200
PASSING = (408, 425, 429)
"""Answers below 500 after which it is worth trying again."""


class NotToldError(Exception):
    """A notice did not arrive; the text says why, without a secret."""


def run_command(command: Sequence[str], notice: Notice, timeout_seconds: float) -> None:
    """Run ``command`` with the notice as JSON on its stdin; it and its children end within the time.

    Raises:
        NotToldError: if it cannot be started, fails, or takes too long.
    """
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

    Redirects are not followed: they could lead to where nothing is encrypted.

    Args:
        address: A secret; checked by ``config.notify``.
        timeout_seconds: For all tries.

    Raises:
        NotToldError: if no try succeeds.
    """
    words = {**notice.fields, "text": f"{notice.title}: {notice.text}"}
    body = json.dumps(words).encode()
    deadline = monotonic() + timeout_seconds
    for tried in range(1, TRIES + 1):
        left = deadline - monotonic()
        failure, passing = _try_post(address, body, max(0.1, left))
        if not failure:
            return
        pause = PAUSE_SECONDS * 2 ** (tried - 1)
        if not passing or tried == TRIES or monotonic() + pause >= deadline:
            raise NotToldError(failure if tried == 1 else f"{failure} (tried {tried} times)")
        sleep(pause)


def _try_post(address: str, body: bytes, timeout_seconds: float) -> tuple[str, bool]:
    """Return what went wrong, or nothing, and whether another try may do better."""
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
            return "", False
    except urllib.error.HTTPError as error:
        with error:
            passing = error.code >= 500 or error.code in PASSING
            return f"answered {error.code}", passing
    except urllib.error.URLError as error:
        return _unreached(error.reason), True
    except (OSError, http.client.HTTPException, ValueError) as error:
        return _unreached(error), True


def _unreached(reason: object) -> str:
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
