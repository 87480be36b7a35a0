"""Explains an sshd that drops a connection before its version, and keeps our failed logins below its penalty.

OpenSSH 9.8 and newer adds up seconds for each connection of an address that ends without a login, and drops further
ones while they are more than a minimum (PerSourcePenalties in sshd_config(5)). A dropped connection adds nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
import time
from contextlib import suppress
from dataclasses import astuple, dataclass

from distconsole.config.paths import state_dir
from distconsole.errors import ConnectError, LinkLostError
from distconsole.ssh.plain import plain_text
from distconsole.ssh.ssh_config import SshOptions

FAILED_SECONDS = 5.0
"""sshd's default penalty for a connection whose logins failed (``authfail``)."""
UNTRIED_SECONDS = 1.0
"""The same for one that ended before a login was tried (``noauth``)."""
LEAST_SECONDS, MOST_SECONDS = 15.0, 600.0
"""The penalty from which sshd drops connections, and the most that it adds up to (``min``, ``max``)."""
MARGIN_SECONDS = 3.0
"""sshd adds when the process of the connection has ended, which is after we have seen its end."""

NOT_ALLOWED = "Not allowed at this time"
"""From 9.8 on for a penalty and for MaxStartups alike."""
TOO_MANY = "Exceeded MaxStartups"
"""Before 9.8."""
PLACE_SECONDS = 1
"""Usual time of another's login; then there is a place for another one."""

_VERSION = re.compile(r"OpenSSH_(?:for_Windows_)?(\d+)\.(\d+)")
_FOLDER = "failed-logins"
_MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class FailedLogin:
    """One of ours: ``at`` is the time of its end (epoch), ``seconds`` sshd's default penalty for it."""

    at: float
    seconds: float
    said: str


class FailedLogins:
    """Our failed logins to one server by one way, those of other processes of this user included.

    Args:
        via: The jump hosts on the way: the server sees the address of the last one.
    """

    def __init__(self, options: SshOptions, via: tuple[str, ...]) -> None:
        self._server = f"{options.hostname} port {options.port}"
        self._seen_from = via[-1] if via else "here"
        way = json.dumps([options.hostname, options.port, via, options.proxy_command])
        name = hashlib.sha256(way.encode()).hexdigest()[:16]
        self._file = state_dir() / _FOLDER / name

    def note(self, version: str, said: str, *, tried: bool) -> None:
        """Remember one, if the server of this ``version`` adds up penalties; a disk that refuses is no error.

        Args:
            tried: The connection got as far as a login.
        """
        found = _VERSION.search(version)
        if found is None or (int(found[1]), int(found[2])) < (9, 8):
            return
        seconds = FAILED_SECONDS if tried else UNTRIED_SECONDS
        new = FailedLogin(time.time(), seconds, plain_text(said)[:1000])
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            oldest = time.time() - MOST_SECONDS
            for old in self._file.parent.iterdir():
                with suppress(OSError):
                    if old.stat().st_mtime < oldest:
                        old.unlink()
            with self._file.open("a") as file:
                self._file.chmod(0o600)
                kept = [new]
                if file.tell() > _MAX_BYTES:
                    kept = [*self._read(), new]
                    file.truncate(0)
                file.write("".join(f"{json.dumps(astuple(each))}\n" for each in kept))

    def hold(self, closed: threading.Event) -> None:
        """Wait until one more failed login would not bring a penalty; raises LinkLostError once ``closed``.

        That takes seconds at most: while there is a penalty nothing is to be lost.
        """
        outstanding = _outstanding(self._read(), time.time())
        over = outstanding + FAILED_SECONDS + MARGIN_SECONDS - LEAST_SECONDS
        if over > 0 and outstanding <= LEAST_SECONDS and closed.wait(over):
            raise LinkLostError(f"the way to {self._server} was closed")

    def refusal(self, said: str) -> ConnectError | None:
        """Return the error for these words of a server before its version; None for others."""
        words = said.strip()
        if words.startswith(TOO_MANY):
            return ConnectError(
                f"{self._server} takes no more logins at this time; its sshd says '{TOO_MANY}'",
                f"worth another try in {PLACE_SECONDS} s: a login that goes on there leaves its place when it is "
                "through, or has taken too long (LoginGraceTime); MaxStartups says how many there are",
            )
        if not words.startswith(NOT_ALLOWED):
            return None
        now = time.time()
        failed = self._read()
        seconds = max(LEAST_SECONDS, _outstanding(failed, now))
        ours = ""
        if failed:
            last = failed[-1]
            ours = f"; our last login there failed {now - last.at:.0f} s ago: {last.said}"
        return ConnectError(
            f"{self._server} drops connections from {self._seen_from} at this time; its sshd says '{NOT_ALLOWED}': "
            f"a penalty for logins that failed (PerSourcePenalties), or too many log in at once (MaxStartups){ours}",
            f"worth another try in {math.ceil(seconds)} s{', with that login corrected' if failed else ''}: by default "
            f"a penalty lasts {LEAST_SECONDS:.0f} s to {MOST_SECONDS / 60:.0f} min, and what is dropped adds nothing to it; "
            "its log says why: journalctl -u ssh | grep 'drop connection'",
        )

    def _read(self) -> list[FailedLogin]:
        """Return those of the last ten minutes, in the order of time."""
        oldest = time.time() - MOST_SECONDS
        found = []
        with suppress(OSError), self._file.open() as file:
            for line in file:
                with suppress(ValueError, TypeError):
                    at, seconds, said = json.loads(line)
                    found.append(FailedLogin(float(at), float(seconds), str(said)))
        return sorted((each for each in found if each.at > oldest), key=lambda each: each.at)


def _outstanding(failed: list[FailedLogin], now: float) -> float:
    """Return the seconds of penalty that an sshd with the default settings has added up, and not yet let pass."""
    ends = 0.0
    for each in failed:
        ends = min(max(ends, each.at) + each.seconds, each.at + MOST_SECONDS)
    return max(0.0, ends - now)
