"""One login by the system's ssh, which leaves a master behind: its questions go to a person, its failure becomes an error.

ssh has its SSH_ASKPASS run for whatever it wants to know, and that program asks here, over a socket in a folder
that only this user may enter. So an answer stands on no command line, in no environment and in no file.
"""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from distconsole.errors import (
    AuthError,
    ChangedHostKeyError,
    ConfigError,
    ConnectError,
    ConsoleError,
    ResolveError,
    UnknownHostKeyError,
)
from distconsole.ssh.asking import LoginQuestion, Person
from distconsole.ssh.plain import plain_text

LOGIN_SECONDS = 120.0
"""What a login may take without what a person takes to answer; sshd's own LoginGraceTime."""
HELLO_SECONDS = 5.0
MAX_LOG_BYTES = 256 * 1024
MAX_QUESTION_BYTES = 8192
ASK_SOCKET = "DISTCONSOLE_ASK"
"""The variable that says where a login's SSH_ASKPASS asks."""

ASKPASS = """
import os, socket, sys
asked = socket.socket(socket.AF_UNIX)
asked.connect(os.environ["DISTCONSOLE_ASK"])
kind = os.environ.get("SSH_ASKPASS_PROMPT", "").encode()
asked.sendall(kind + b"\\n" + os.fsencode(" ".join(sys.argv[1:])) + b"\\0")
answer = b""
while part := asked.recv(4096):
    answer += part
os.write(1, answer)
sys.exit(not answer.endswith(b"\\n"))
"""


def write_askpass(folder: Path) -> Path:
    """Write the program that ssh asks with, and return it; raises OSError."""
    script, program = folder / "ask.py", folder / "ask"
    script.write_text(ASKPASS)
    program.write_text(f'#!/bin/sh\nexec {_quoted(sys.executable)} -I -S {_quoted(script)} "$@"\n')
    program.chmod(0o700)
    return program


class Login:
    """One ``ssh`` on its way to become a master; ``words`` are its command line.

    Args:
        host: As the person knows it.
        place: The beginning of the names of the login's own files, in the private folder.
    """

    def __init__(
        self, words: Sequence[str], host: str, place: Path, askpass: Path, person: Person
    ) -> None:
        self._host, self._person = host, person
        self._log = place.with_suffix(".log")
        self._asks = place.with_suffix(".ask")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._asks))
        self._asks.chmod(0o600)
        self._listener.listen()
        self._ended, ended = os.pipe()
        self.declined = False
        """Whether a person was asked and gave no answer."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                env=_environment(askpass, self._asks),
            )
        threading.Thread(target=self._await_end, args=(ended,), daemon=True).start()

    def finish(self) -> str:
        """Return what ssh said once its master stands; raises OpensshError if it does not."""
        deadline = self._person.working_seconds() + LOGIN_SECONDS
        while not select.select([self._ended], [], [], 0)[0]:
            left = deadline - self._person.working_seconds()
            if left <= 0:
                self.kill()
            ready = select.select([self._ended, self._listener.fileno()], [], [], max(1.0, left))[
                0
            ]
            if self._listener.fileno() in ready:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    self._answer(connection)
        return self._said()

    def kill(self) -> None:
        """Give the login up; may be called from any thread."""
        self._process.kill()

    def close(self) -> None:
        """Forget its files."""
        self._listener.close()
        os.close(self._ended)
        for file in (self._log, self._asks):
            file.unlink(missing_ok=True)

    @property
    def succeeded(self) -> bool:
        return self._process.wait() == 0

    def _await_end(self, ended: int) -> None:
        self._process.wait()
        os.close(ended)

    def _answer(self, connection: socket.socket) -> None:
        """Have one question answered, or the login given up if nobody does."""
        connection.settimeout(HELLO_SECONDS)
        asked = b""
        while not asked.endswith(b"\0") and len(asked) < MAX_QUESTION_BYTES:
            part = connection.recv(4096)
            if not part:
                return
            asked += part
        kind, _, words = asked.rstrip(b"\0").partition(b"\n")
        question = LoginQuestion(self._host, words.decode("utf-8", "replace"), kind == b"none")

        def wanted() -> bool:
            return not select.select([self._ended, connection.fileno()], [], [], 0)[0]

        answer = self._person.ask(question, wanted)
        if answer is not None:
            connection.sendall(answer.encode() + b"\n")
        elif wanted() or not question.only_told:
            self.declined = True
            self.kill()

    def _said(self) -> str:
        with self._log.open("rb") as log:
            return log.read(MAX_LOG_BYTES).decode("utf-8", "replace")


def _environment(askpass: Path, asks: Path) -> dict[str, str]:
    forced = {"SSH_ASKPASS": str(askpass), "SSH_ASKPASS_REQUIRE": "force", ASK_SOCKET: str(asks)}
    # Before OpenSSH 8.4 a display is what makes it ask so, where there is no terminal.
    return {"DISPLAY": ":0", **os.environ, **forced}


def _quoted(text: object) -> str:
    return "'" + str(text).replace("'", "'\\''") + "'"


TRIED = (
    (re.compile(r"Offering public key: (\S+)"), "key {0}"),
    (
        re.compile(
            r"Next authentication method: (password|keyboard-interactive|gssapi-with-mic|hostbased)"
        ),
        "{0}",
    ),
)
OFFERED = re.compile(r"Authentications that can continue: (\S+)")
REACHED = re.compile(r"debug1: Connecting to .* \[([^\]]+)\] port \d+")
HOST_KEY = re.compile(r"Server host key: (\S+ \S+)")


def reached_address(said: str) -> str:
    """Return the address that ssh connected to; empty where it did not say, as by a ProxyCommand."""
    found = REACHED.search(said)
    return "" if found is None else found[1].removeprefix("::ffff:")


def failure(said: str, host: str, peer: str, *, declined: bool, asks: bool) -> ConsoleError:
    """Return what it means that ssh ended with these words.

    Args:
        declined: Whether a person was asked and gave no answer.
        asks: Whether there was a person to ask.
    """
    lines = [plain_text(line) for line in said.splitlines() if not line.startswith("debug")]
    words = [line for line in lines if line.strip() and not line.startswith(("@@@", "OpenSSH_"))]
    last = words[-1][:300] if words else "it said nothing"
    text = "\n".join(words)
    shown = HOST_KEY.search(said)
    key = f"; it shows {plain_text(shown[1])}" if shown else ""
    if declined:
        return AuthError(f"{peer} asked for a password or a code, and nobody answered", AGAIN)
    if "REVOKED HOST KEY" in text:
        return ChangedHostKeyError(
            f"the host key of {host} is revoked{key}",
            "do not connect to it; ask whoever runs it for a new key",
        )
    if "HOST IDENTIFICATION HAS CHANGED" in text:
        offending = next((each for each in words if each.startswith("Offending")), last)
        return ChangedHostKeyError(
            f"the host key of {host} is not the one in known_hosts{key}: {offending}",
            f"somebody may be listening in. If the host was set up anew: ssh-keygen -R {host}",
        )
    if "you have requested strict checking" in text or "Host key verification failed" in text:
        return UnknownHostKeyError(
            f"{host} is not in known_hosts{key}",
            f"compare that fingerprint with the host's own; `ssh {host} true` asks and adds it",
        )
    if "Permission denied" in text or "Too many authentication failures" in text:
        return _auth_error(said, host, peer, asks=asks)
    if "Could not resolve hostname" in text:
        return ResolveError(last, "check the spelling, ssh_config and /etc/hosts")
    if "Bad configuration option" in text or "Bad owner or permissions" in text:
        return ConfigError(last, f"ssh {host} true says the same")
    return ConnectError(f"ssh does not reach {peer}: {last}", f"ssh -v {host} true says more")


MASTER = "ControlMaster and ControlPath in ssh_config"
AGAIN = "a new start of distconsole asks again, and a console that stays open after five minutes"


def _auth_error(said: str, host: str, peer: str, *, asks: bool) -> AuthError:
    offered, tried = offered_and_tried(said)
    message = f"{peer} lets nobody in by what was tried ({', '.join(tried) or 'nothing'})"
    message += f"; the server offers: {', '.join(offered) or 'nothing'}"
    hint = f"ssh-copy-id {host}"
    if {"password", "keyboard-interactive"} & set(offered):
        hint = f"was it mistyped? `ssh -v {host} true` says more"
    if not asks and hint.startswith("was"):
        hint = f"here is no terminal to ask for a password or a code in: open a master before, by ssh ({MASTER})"
    return AuthError(message, hint, offered)


def offered_and_tried(said: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which ways to log in the server offers, and what was tried, in ssh's order."""
    offers = OFFERED.findall(said)
    tried: Iterable[str] = (
        words.format(plain_text(found[1]))
        for line in said.splitlines()
        for pattern, words in TRIED
        if (found := pattern.search(line))
    )
    first = offers[0].split(",") if offers else ()
    return tuple(plain_text(each)[:40] for each in first[:10]), tuple(dict.fromkeys(tried))
