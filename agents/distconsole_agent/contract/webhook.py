"""Posts a notice to a webhook: by the console that follows a run, and by the run's first node.

Errors are reported without the address: it is secret.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

TRIES = 3
PAUSE_SECONDS = 0.5
"""Before the second try; twice as long before each further one."""
PASSING = (408, 425, 429)
"""Answers below 500 that are worth a retry."""


class NotToldError(Exception):
    """A notice did not arrive, and why, without a secret; ``passing``: another try may do better."""

    def __init__(self, text: str, *, passing: bool = False) -> None:
        super().__init__(text)
        self.passing = passing


def post(
    address: str,
    notice: Mapping[str, object],
    timeout_seconds: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Post the notice as JSON, ``text`` as Slack, Mattermost and Teams' workflows want it; try a few times.

    Redirects are not followed: they could lead to an unencrypted address. The console checks the
    address, and ``timeout_seconds`` are for all tries. Raises NotToldError if none succeeds.
    """
    body = json.dumps({**notice, "text": f"{notice['title']}: {notice['text']}"}).encode()
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
    import http.client  # slow to import, and most runs have no webhook
    import urllib.error
    import urllib.request

    class _Straight(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_args: object, **_more: object) -> None:
            return None

    headers = {"Content-Type": "application/json", "User-Agent": "distconsole"}
    if not address.startswith(("https://", "http://")):
        raise NotToldError("is no address of the web")
    request = urllib.request.Request(address, body, headers, method="POST")  # noqa: S310
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
    import socket
    import ssl

    if isinstance(reason, ssl.SSLCertVerificationError):
        return "cannot be trusted: its certificate is not valid here"
    if isinstance(reason, (TimeoutError, socket.timeout)):
        return "did not answer in time"
    if isinstance(reason, OSError) and reason.strerror and reason.errno is not None:
        return f"cannot be reached: {reason.strerror}"
    return f"cannot be reached: {type(reason).__name__}"
