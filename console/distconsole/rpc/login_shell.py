"""From a login to a POSIX shell that reads our commands: its first word, or the obstacle.

Output of start-up files before that is skipped. One may wait for input, or start another shell: a shell on the node runs
them once more, as the login did, with a trace. bash and zsh can trace positions; other shells cannot.
"""

from __future__ import annotations

import re
import secrets
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from distconsole.errors import AgentError, LinkLostError, ShellNoiseError
from distconsole.model.cluster import Host
from distconsole.ssh.plain import plain_text, quote
from distconsole.ssh.transport import Channel, Connection
from distconsole_agent.contract.masking import mask_text

START_SECONDS = 30.0
"""Longest that a login shell takes for its start-up files."""
SILENT_SECONDS = 2.5
"""After this long without a word a second login on the connection finds out why."""
LOOK_SECONDS = 0.1
MAX_NOISE_BYTES = 1024 * 1024

READ_LINE = 'IFS= read -r script || exit 1; eval "$script"'
"""Has a shell run the next line of its stdin."""

GUARD = "[[ $- == *i* ]] || return"
NOISE_HINT = f"put {GUARD} at the top of ~/.bashrc on that node (csh: if (! $?prompt) exit)"
ENDED_HINTS = {
    "currently not available": "its shell is nologin: whoever runs the node can give it another (chsh -s /bin/bash USER)",
    "sftp connections only": "the account is for SFTP alone (ForceCommand internal-sftp): ask for one that runs commands",
    r"exec: sh: not found|not found: sh\b|Unknown command: sh\b|sh: Command not found": "does a start-up file "
    "replace PATH? export PATH=DIR:$PATH keeps the system's folders",
    "password has expired": "log in to it by ssh in a terminal, and choose a new password",
}
ENDED_HINT = f"may this account run commands? does a start-up file end the shell (exit, exec)? {GUARD} goes above that"
TRACE_SECONDS = 3.0
MAX_TRACE_BYTES = 1024 * 1024

_BASH = (
    "PS4='@TOKEN $BASH_SOURCE:$LINENO: '; BASH_XTRACEFD=1; set -x; "
    'for f in /etc/bash.bashrc ~/.bashrc "$env"; do [ -r "$f" ] && . "$f"; done; echo "@TOKEN end"'
)
_ZSH = (
    "PS4='@TOKEN %x:%I: '; setopt xtrace; "
    'for f in /etc/zsh/zshenv "${ZDOTDIR:-$HOME}/.zshenv"; do [ -r "$f" ] && . "$f"; done; echo "@TOKEN end"'
)
_RC = "PS4='@TOKEN '$f:'$LINENO: '; set -x; . \"$f\""
# A bash that sshd started reads ~/.bashrc by itself, unless it has a parent shell (SHLVL).
_STEPS = (
    'u="${LOGNAME:-$(id -un)}"; s=$(getent passwd "$u" || grep "^$u:" /etc/passwd)',
    's="${s##*:}"',
    "b=$(command -v bash || echo sh)",
    'export f env="$BASH_ENV"; unset BASH_ENV',
    'for f in ~/.ssh/rc /etc/ssh/sshrc; do if [ -r "$f" ]; then '
    f'"$b" -c {shlex.quote(_RC)} 2>&1 </dev/null; break; fi; done',
    f"t() {{ case $s in */bash) SHLVL=3 bash -c {shlex.quote(_BASH)} 2>/dev/null;; "
    f"*/zsh) zsh -fc {shlex.quote(_ZSH)} 2>&1;; esac; }}",
    'echo "echo @TOKEN here" | t; echo "@TOKEN over"',
)


def open_shell(connection: Connection, host: Host, token: str) -> tuple[Channel, bytes]:
    """Return a channel on which a POSIX shell runs the next line of its stdin, and its output so far.

    Raises ShellNoiseError if the login shell prints more than ``MAX_NOISE_BYTES``, AgentError if it ends, becomes another shell or
    waits for input before it runs a command, LinkLostError if the connection ended.
    """
    said = f"distconsole-boot {token} ready"  # with single quotes, no backslash, no ``!``: for any login shell
    channel = connection.open(f"exec sh -c 'echo {said}; {READ_LINE}'", START_SECONDS)
    ready = f"{said}\n".encode()
    try:
        return channel, _Greeting(connection, channel, host, ready).wait()
    except BaseException:
        channel.close()
        raise


class _Greeting:
    """Waits for our own first word; whatever comes before it is the login shell's."""

    def __init__(self, connection: Connection, channel: Channel, host: Host, ready: bytes) -> None:
        self._connection, self._channel, self._host = connection, channel, host
        self._ready = ready
        self._held = bytearray()
        self._token = secrets.token_hex(8)

    def wait(self) -> bytes:
        began = time.monotonic()
        due = SILENT_SECONDS
        while self._ready not in self._held:
            if len(self._held) > MAX_NOISE_BYTES:
                words = quote(bytes(self._held))
                text = (
                    f"{self._host.name}: the login shell prints more than 1 MiB to stdout: {words}"
                )
                raise ShellNoiseError(text, NOISE_HINT)
            try:
                data = self._channel.recv(65536, max(0.0, began + due - time.monotonic()))
            except TimeoutError:
                if due == START_SECONDS:
                    raise AgentError(
                        f"{self._host.name}: the login shell ran nothing for {START_SECONDS:g} s{self._heard()}",
                        "does ssh to it, with a command, answer? A start-up file may wait for input",
                    ) from None
                due = START_SECONDS
                self._find_obstacle()
                continue
            if not data:
                raise self._ended(self._channel)
            self._held += data
        return bytes(self._held).partition(self._ready)[2]

    def _find_obstacle(self) -> None:
        """Return if the login shell is merely slow; raises AgentError, with the obstacle."""
        trace = "; ".join(_STEPS).replace("TOKEN", self._token)
        said = f'echo "@{self._token} $0 $(tr "\\000" " " </proc/$PPID/cmdline)"; {trace}'
        as_line = f"sh -c {shlex.quote(said)}"
        try:
            channel = self._connection.open(f"exec {as_line} ran", LOOK_SECONDS * 20)
        except (AgentError, LinkLostError):
            return  # MaxSessions
        try:
            channel.send(f"{as_line} other\n".encode(), LOOK_SECONDS * 20)
            channel.end_input()
            text = read_trace(channel, self._token, self._still_waits)
            if found := re.search(rf"^@{self._token} (ran|other) (.*)$", text, re.MULTILINE):
                self._judge(found[1], found[2].strip(), find_stop(text, self._token))
            elif self._still_waits() and channel.exit_code(0.5) is not None:
                raise self._ended(channel)
        except (TimeoutError, LinkLostError):
            return
        finally:
            channel.close()

    def _judge(self, word: str, shell: str, stop: Culprit | None) -> None:
        """Raise the error of a line that the ``other`` shell ran, or that ran when stdin ended."""
        name, at = self._host.name, f" ({stop})" if stop else ""
        above = (
            f"{GUARD} above line {stop.line} of {stop.file}"
            if stop
            else f"{GUARD} at the top of its start-up file"
        )
        hint = f"put {above} on that node: only a terminal then gets that far"
        if word == "other":
            became = plain_text(mask_text(shell))[:100]
            raise AgentError(
                f"{name}: the login shell became another one, {became}, and runs no command{at}",
                hint,
            )
        if self._still_waits():
            raise AgentError(
                f"{name}: a start-up file of the login shell waits for input{at}", hint
            )

    def _still_waits(self) -> bool:
        with suppress(LinkLostError):
            self._held += self._channel.read_now(65536) or b""
        return self._ready not in self._held

    def _heard(self) -> str:
        return f": {quote(bytes(self._held))}" if self._held else ""

    def _ended(self, channel: Channel) -> AgentError:
        """Return the error of a command that ended before it began."""
        code = channel.exit_code(2.0)
        words = f"{self._heard()}{last_lines(channel, self._token)}"
        hint = next(
            (hint for word, hint in ENDED_HINTS.items() if re.search(word, words)), ENDED_HINT
        )
        return AgentError(
            f"{self._host.name}: the login shell ended ({code_text(code)}) before it ran our command{words}",
            hint,
        )


def last_lines(channel: Channel, sent: str = "\n") -> str:
    """Return the last lines of stderr in one, behind a colon, without an echo of what was ``sent``."""
    lines = [line.strip() for line in channel.stderr_tail().splitlines() if sent not in line]
    lines = [line for line in lines if re.search(r"\w", line)]
    return f": {mask_text(' / '.join(lines[-3:]))[:400]}" if lines else ""


def code_text(code: int | None) -> str:
    return "no exit code" if code is None else f"exit code {code}"


@dataclass(frozen=True, slots=True)
class Culprit:
    """A line of a start-up file, and the command that it ran."""

    file: str
    line: int
    command: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return plain_text(mask_text(f"{place}: {self.command}"))[:300]


def read_trace(channel: Channel, token: str, wanted: Callable[[], bool]) -> str:
    """Return a trace's output, until it is over, takes too long or is not ``wanted`` any more."""
    text, deadline = bytearray(), time.monotonic() + TRACE_SECONDS
    while f"@{token} over\n".encode() not in text and len(text) < MAX_TRACE_BYTES:
        if time.monotonic() > deadline or not wanted():
            break
        try:
            part = channel.recv(65536, LOOK_SECONDS)
        except TimeoutError:
            continue
        except LinkLostError:
            break
        if not part:
            break
        text += part
    return text.decode("utf-8", "replace")


def find_stop(trace: str, token: str) -> Culprit | None:
    """Return the line that reads the shell's stdin, by another shell or itself, or behind which nothing runs."""
    traced: list[Culprit] = []
    for line in trace.splitlines():
        if line == f"@{token} here":
            return traced[-1] if traced else None
        if found := re.match(rf"@+{token} (/[^:]*):(\d*): (.*)", line):
            traced.append(Culprit(found[1], int(found[2] or 0), found[3]))
    if f"@{token} end" not in trace and f"@{token} over" in trace:
        return traced[-1] if traced else None
    return next((each for each in traced if each.command.startswith("read ")), None)
