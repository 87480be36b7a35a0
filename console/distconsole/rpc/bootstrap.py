"""From an authenticated connection to a running bridge, in one command.

The node's shell is given a constant command in quotes that bash, zsh, csh and fish read alike. It prints
that it is there and reads its orders from stdin, so that the login shell quotes nothing of the user's.
If the agent's file is missing, the same command receives it.
"""

from __future__ import annotations

import re
import secrets
import shlex
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from distconsole.errors import AgentError, LinkLostError, NodeError, PythonError, StorageError
from distconsole.model.cluster import Host
from distconsole.rpc.login_shell import GUARD, READ_LINE, code_text, last_lines, open_shell
from distconsole.rpc.pack import INSTALLER, Pack, joining_script
from distconsole.rpc.wire import start_refusal
from distconsole.ssh.plain import quote
from distconsole.ssh.transport import Channel, Connection
from distconsole_agent.contract.masking import mask_text

BRIDGE_WORD = b"distconsole-bridge 1 "
AGENT_SECONDS = 30.0
"""From the shell to the bridge's first line, without the setup command and the transfer."""
SETUP_SECONDS = 60.0
PUSH_SECONDS = 120.0
SHELL_FUNCTIONS = {
    "module": ". /etc/profile.d/modules.sh",
    "conda": ". /opt/miniconda3/etc/profile.d/conda.sh",
}
"""Commands that only an interactive shell knows, and the file that defines each for others."""
MISSED = re.compile(r"\b(module|conda): (?:command )?not found|(conda) init")
MISSED_IN_ANY_LANGUAGE = re.compile(r"\b(module|conda): ")
"""With the exit code of a shell that does not find a command."""
MAX_WORD_BYTES = 64 * 1024

NEWLINE = 'n="$(printf "\\n.")"; n="${n%.}"'
"""Defines ``_one_line``'s word for a newline."""

READER = """
import sys
sys.path[:] = [each for each in sys.path if each]
import os
def read(size):
    parts = []
    while size:
        part = os.read(0, size)
        if not part:
            sys.exit(1)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
joining, rest = read(int(sys.argv[1])), read(int(sys.argv[2]))
if sys.version_info >= (3, 9):
    del sys.argv[1:3]
    exec(joining)
os.execv("/bin/sh", ["sh", "-c", rest])
""".strip()
"""Usage: ``python -E -S -c READER BYTES BYTES …``, stdin: a script to join an agent, and one of sh if
that does not come about. It parses under Python 2, so that an old one, which has no ``-I``, is
refused in words; the folder of ``-c``, which is the home, is taken off its path."""

UNSAFE = {
    b"foreign": (
        "belongs to somebody else",
        "choose one of your own: --setup 'export XDG_CACHE_HOME=/scratch/$USER'",
    ),
    b"open": ("may be written to by others", "look what is in it, then: chmod go-w, on that node"),
}

INPUT_HINT = f"does a start-up file redirect the shell's input (exec <)? {GUARD} goes above that"
PYTHON_HINT = "name one with --python PATH, or activate an environment with --setup CMD"


@dataclass(slots=True)
class Bridge:
    """A channel whose bridge has written its first line.

    Attributes:
        early: Bytes that came after that line already.
        pushed: The agent's file had to be sent.
        python: The interpreter that runs it, which this session's host and ``--python`` decide; the
            agent's may be another.
        home: That of the node's shell; empty if it is no path.
    """

    channel: Channel
    early: bytes
    pushed: bool
    python: str
    home: str


def open_bridge(
    connection: Connection, host: Host, pack: Pack, *, closely: bool = False
) -> Bridge:
    """Start the bridge on the node; bring the agent's file if it is missing.

    Args:
        closely: Read the file even if an agent runs already.

    Raises as ``open_shell``, and PythonError if there is no Python, or one that is too old, StorageError if
    the file or the node's folder cannot be written, AgentError if the setup command fails, or
    anything else ends it before it begins.
    """
    token = secrets.token_hex(8)
    seconds = AGENT_SECONDS + (SETUP_SECONDS if host.setup else 0.0)
    channel, early = open_shell(connection, host, token)
    try:
        with suppress(LinkLostError):  # its exit code and words are still to come
            channel.send(start_input(host, pack, token, closely=closely), AGENT_SECONDS)
        return _Start(channel, host, pack, token, early).until_bridge(seconds)
    except BaseException:
        channel.close()
        raise


def start_input(host: Host, pack: Pack, token: str, *, closely: bool = False) -> bytes:
    """Return the login command's input: a line of POSIX shell, two with a setup command, and the input of that line's Python.

    That Python joins an agent that runs already. Without one, it becomes a shell that checks
    the agent's file and runs it: most sessions need neither, and are spared the time.
    """
    say = f"echo distconsole-boot {token}"
    python = _path(host.agent_python or (sys.executable if host.local else "python3"))
    node_dir = _path(host.node_dir) if host.node_dir else "''"
    names = [
        NEWLINE,
        f"p={python}",
        'd="${XDG_CACHE_HOME:-$HOME/.cache}/distconsole"',
        f'f="$d/{pack.name}"',
    ]
    rest = "; ".join([*names, *_slow_steps(pack, say, node_dir)]).encode()
    joining = b"" if closely else joining_script()
    steps = [
        *names,
        f'command -v "$p" >/dev/null 2>&1 || {{ {say} nopython; exit 1; }}',
        f'{say} starting "$HOME"',
        f'exec "$p" -E -S -c {_one_line(READER)} {len(joining)} {len(rest)} "$f" '
        f"{len(pack.content)} {node_dir}",
    ]
    return _after_setup(host, "; ".join(steps), say).encode() + b"\n" + joining + rest


def _slow_steps(pack: Pack, say: str, node_dir: str) -> list[str]:
    """Return the steps that bring a missing or damaged agent's file, and run it."""
    return [
        f'if [ -e "$d" ]; then [ -O "$d" ] || {{ {say} foreign; exit 1; }}; '
        f'case "$(ls -ldL "$d")" in ?????w*|????????w*) {say} open; exit 1;; esac; fi',
        'have=$(sha256sum "$f" 2>/dev/null || wc -c 2>/dev/null <"$f")',
        f'case "$have" in {pack.sha256}*|{len(pack.content)}) ;; '
        f'*) {say} missing; "$p" -E -s -c {_one_line(INSTALLER)} "$f" {pack.sha256} || exit $? ;; esac',
        f"{say} starting",
        'exec "$p" -E -s "$f" bridge' + (f" --node-dir {node_dir}" if node_dir != "''" else ""),
    ]


def _after_setup(host: Host, script: str, say: str) -> str:
    if not host.setup:
        return script
    # The node's bash if there is one: environments are activated with `source`. It reads the rest, too:
    # a setup command may hold a secret, and every user may read a command line.
    return (
        "if command -v bash >/dev/null 2>&1; then s=bash; else s=sh; fi; "
        f"exec $s -c {shlex.quote(READ_LINE)}\n{NEWLINE}; "
        f"eval {_one_line(host.setup)} </dev/null >&2; c=$?; "
        f'[ "$c" = 0 ] || {{ {say} setup "$c"; exit 1; }}; {script}'
    )


class _Start:
    """Reads the node's lines until the bridge's first one."""

    def __init__(self, channel: Channel, host: Host, pack: Pack, token: str, early: bytes) -> None:
        self.channel = channel
        self.host = host
        self.pack = pack
        self.prefix = f"distconsole-boot {token} ".encode()
        self.held, self.noise = bytearray(early), bytearray()
        self.stage = "ready"
        self.home = ""

    def until_bridge(self, seconds: float) -> Bridge:
        pushed = False
        deadline = time.monotonic() + seconds
        while True:
            line = self._line(deadline)
            if BRIDGE_WORD in line:
                python = line.partition(BRIDGE_WORD)[2].decode("utf-8", "replace")
                return Bridge(self.channel, bytes(self.held), pushed, python, self.home)
            word = line[len(self.prefix) :] if line.startswith(self.prefix) else b""
            kind, _, rest = word.partition(b" ")
            match kind:
                case b"missing":
                    self._push()
                    pushed, deadline = True, time.monotonic() + seconds
                case b"starting":
                    self.stage = "starting"
                    told = rest.decode("utf-8", "replace")
                    if told.startswith("/") and told.isprintable():
                        self.home = told
                case b"nopython":
                    python = self._python()
                    where = "" if "/" in python else " on the PATH of a non-interactive shell"
                    raise PythonError(
                        f"{self.host.name}: there is no program {python}{where}", PYTHON_HINT
                    )
                case b"foreign" | b"open" as why:
                    trouble, hint = UNSAFE[why]
                    raise StorageError(
                        f"{self.host.name}: the folder of the agent's file (~/.cache/distconsole, "
                        f"or XDG_CACHE_HOME's) {trouble}",
                        hint,
                    )
                case b"setup":
                    raise self._setup_failed(rest.decode("ascii", "replace"))
                case _:
                    if (error := start_refusal(line)) is not None:
                        raise type(error)(f"{self.host.name}: {error.message}", error.hint)
                    # A background job of a start-up file prints, or the Python at its start.
                    self.noise += line + b"\n"

    def _push(self) -> None:
        self.stage = "push"
        body = self.pack.compressed
        try:
            self.channel.send(b"%d\n" % len(body) + body, PUSH_SECONDS)
        except TimeoutError:
            raise AgentError(
                f"{self.host.name} did not take the agent ({len(body)} bytes) in {PUSH_SECONDS:g} s"
            ) from None
        except LinkLostError:
            # The installer may have printed why it ended.
            return

    def _line(self, deadline: float) -> bytes:
        while b"\n" not in self.held:
            if len(self.held) + len(self.noise) > MAX_WORD_BYTES:
                raise AgentError(
                    f"{self.host.name}: in place of the agent came more than "
                    f"{MAX_WORD_BYTES // 1024} KiB{self._heard()}",
                    "does a background job of a start-up file print, or a sitecustomize of the Python?",
                )
            try:
                self.held += self._more(deadline)
            except TimeoutError:
                raise AgentError(
                    f"{self.host.name}: the agent did not start in time (at: {self.stage})"
                    f"{self._heard()}",
                    "is the node overloaded, or a file system of it hanging?",
                ) from None
        line, _, rest = bytes(self.held).partition(b"\n")
        self.held = bytearray(rest)
        return line.rstrip(b"\r")

    def _more(self, deadline: float) -> bytes:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        data = self.channel.recv(65536, left)
        if not data:
            raise self._ended()
        return data

    def _ended(self) -> NodeError:
        code = self.channel.exit_code(2.0)
        name, said = self.host.name, self._heard()
        if self.stage == "ready" and self.prefix not in self.held:
            return AgentError(
                f"{name}: the login shell ended ({code_text(code)}) before it ran our command{said}",
                "does the --setup command end the shell?" if self.host.setup else INPUT_HINT,
            )
        if self.stage != "ready" and code in (126, 127):
            return PythonError(f"{name}: {self._python()} cannot be run{said}", PYTHON_HINT)
        if self.stage == "push":
            return StorageError(
                f"{name}: the agent's file could not be stored ({code_text(code)}){said}",
                "see whether ~/.cache on that node can be written",
            )
        return AgentError(
            f"{name}: the agent ended before it spoke ({code_text(code)}){said}",
            f"run {self._python()} by hand on that node",
        )

    def _heard(self) -> str:
        """Return what came on stdout and stderr, each behind a colon."""
        noise = bytes(self.noise + self.held)
        return (f": {quote(noise)}" if noise else "") + last_lines(self.channel)

    def _setup_failed(self, code: str) -> AgentError:
        # Both streams come separately: once it has ended, its output is all here.
        self.channel.exit_code(2.0)
        said = last_lines(self.channel)
        before = ""
        missed = MISSED.search(said) or (code == "127" and MISSED_IN_ANY_LANGUAGE.search(said))
        if missed:
            word = next(filter(None, missed.groups()))
            before = (
                f"; put the file that defines {word} in front, such as {SHELL_FUNCTIONS[word]}"
            )
        return AgentError(
            f"{self.host.name}: the setup command failed with exit code {code}{said}",
            f"it was: {mask_text(self.host.setup or '')}{before}",
        )

    def _python(self) -> str:
        return self.host.agent_python or "python3"


def _path(text: str) -> str:
    """Quote for sh; a leading ``~/`` keeps its meaning."""
    if text.startswith("~/"):
        return '"$HOME"/' + _one_line(text[2:])
    return _one_line(text)


def _one_line(text: str) -> str:
    """Quote for sh without a newline in the result: the script travels as one line."""
    return '"$n"'.join(shlex.quote(line) for line in text.split("\n"))
