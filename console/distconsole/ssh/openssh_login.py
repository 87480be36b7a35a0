"""One login by the system's ssh, which leaves a master behind: its questions go to a person, its failure becomes an error.

ssh has its SSH_ASKPASS run for whatever it wants to know, and that program asks here, over a socket in a folder
that only this user may enter. So an answer stands on no command line, in no environment and in no file. Where
this program was killed, the next one that needs such a folder takes it away.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from distconsole.errors import (
    AuthError,
    ChangedHostKeyError,
    ConfigError,
    ConnectError,
    ConsoleError,
    LinkLostError,
    ResolveError,
    UnknownHostKeyError,
)
from distconsole.ssh.asking import LoginQuestion, NotPutError, Person
from distconsole.ssh.multiplexing import ControlSocket
from distconsole.ssh.plain import plain_text
from distconsole.ssh.ssh_config import ONE_KEY
from distconsole.ssh.transport import readable

LOGIN_SECONDS = 120.0
"""Longest that a login takes without a person's answers; sshd's own LoginGraceTime."""
HELLO_SECONDS = 5.0
MAX_LOG_BYTES = 256 * 1024
MAX_QUESTION_BYTES = 8192
ASK_SOCKET = "DISTCONSOLE_ASK"
"""The variable with the socket that a login's SSH_ASKPASS asks."""

PREFIX = "dc-ssh-"
MAX_FOLDER_CHARS = 60
"""A Unix socket's path has 104 bytes at most, and ssh makes it in two steps, with a longer name first."""
YOUNG_SECONDS = 60.0
"""A folder is locked soon after it was made; an older one without a lock is left over."""
SCRIPT, PROGRAM = "ask.py", "ask"

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
"""The program: sends the kind of the question, a line, and its words, and prints the answer."""


class Login:
    """One ``ssh`` on its way to become a master; ``words`` are its command line.

    Args:
        host: As the person knows it.
        place: The beginning of the names of the login's own files, in the private folder.
    """

    def __init__(
        self, words: Sequence[str], host: str, place: Path, askpass: Path, person: Person
    ) -> None:
        self._host, self._person, self._place = host, person, place
        self._log = place.with_suffix(".log")
        self._asks = place.with_suffix(".ask")
        self.said = ""
        """ssh's output."""
        self.control: ControlSocket | None = None
        """A connection to the master; None if there is none."""
        self.declined = False
        """A person was asked and gave no answer."""
        self.waited_in_vain = False
        """Its question waited too long for those of others to be shown."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._asks))
        self._asks.chmod(0o600)
        self._listener.listen()
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                    # Before OpenSSH 8.4, ssh without a terminal uses SSH_ASKPASS only if DISPLAY is set.
                    env={
                        "DISPLAY": ":0",
                        **os.environ,
                        "SSH_ASKPASS": str(askpass),
                        "SSH_ASKPASS_REQUIRE": "force",
                        ASK_SOCKET: str(self._asks),
                    },
                )
        except OSError:
            self._forget_files()
            raise
        self._ended, ended = os.pipe()
        threading.Thread(target=self._await_end, args=(ended,), daemon=True).start()

    def finish(self) -> None:
        """Wait until the master stands, or ssh has given up, and put its questions meanwhile."""
        deadline = self._person.working_seconds() + LOGIN_SECONDS
        while not readable([self._ended], 0.0):
            left = deadline - self._person.working_seconds()
            if left <= 0:
                self.kill()
            listener = self._listener.fileno()
            if listener in readable([self._ended, listener], max(1.0, left)):
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    self._answer(connection)
        if self.succeeded:
            with suppress(LinkLostError):  # the server ended the connection at once
                self.control = ControlSocket(str(self._place))
        with self._log.open("rb") as log:
            self.said = log.read(MAX_LOG_BYTES).decode("utf-8", "replace")

    def kill(self) -> None:
        """Give the login up; may be called from any thread."""
        self._process.kill()

    def close(self) -> None:
        os.close(self._ended)
        self._forget_files()

    @property
    def succeeded(self) -> bool:
        return self._process.wait() == 0

    def _forget_files(self) -> None:
        self._listener.close()
        for file in (self._log, self._asks):
            file.unlink(missing_ok=True)

    def _await_end(self, ended: int) -> None:
        self._process.wait()
        os.close(ended)

    def _answer(self, connection: socket.socket) -> None:
        """Have one question answered, or the login given up without an answer."""
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
            return not readable([self._ended, connection.fileno()], 0.0)

        try:
            answer = self._person.ask(question, wanted)
        except NotPutError:
            self.waited_in_vain = True
            self.kill()
            return
        if answer is not None:
            connection.sendall(answer.encode("utf-8", "surrogateescape") + b"\n")
        elif wanted() or not question.only_told:
            self.declined = True
            self.kill()


CERTIFICATE = re.compile(r"Offering public key: (\S+) \S+-CERT ")
TRIED = (
    (re.compile(r"Offering public key: (\S+) (?!\S+-CERT )"), "key {0}"),
    (CERTIFICATE, "certificate {0}"),
    (
        re.compile(
            r"Next authentication method: (password|keyboard-interactive|gssapi-with-mic|hostbased)"
        ),
        "{0}",
    ),
)
KEY_FILE = re.compile(r"^debug1: (?:Offering public|Trying private) key: (\S+)", re.MULTILINE)
UNREAD_KEY = re.compile(r'^Load key "(.+)": (.+?)\r?$', re.MULTILINE)
DENIED = re.compile(
    r"^(?:\S+: Permission denied \(|Received disconnect.*Too many auth)", re.MULTILINE
)
"""Of ssh itself: a server's banner may not look like it."""
OFFERED = re.compile(r"Authentications that can continue: (\S+)")
NO_ALGORITHM = re.compile(
    r"no matching (key exchange method|host key type|cipher|MAC) found\. Their offer: (\S+)"
)
ALGORITHMS = {
    "key exchange method": "KexAlgorithms",
    "host key type": "HostKeyAlgorithms",
    "cipher": "Ciphers",
    "MAC": "MACs",
}
"""Algorithms that ssh lacks, and the keyword of ssh_config that adds each."""
UNKNOWN_KEYWORD = re.compile(r"^.*Bad configuration option: (\S+)", re.MULTILINE)
REACHED = re.compile(r"debug1: Connecting to .* \[([^\]]+)\] port \d+")
FIRST_WORDS = re.compile(
    r"^debug1: (?:Remote protocol version .*, remote software version |(?:kex|ssh)_exchange_identification: "
    r"(?:banner line 0: )?)(.*?)\r?$",
    re.MULTILINE,
)
REVOKED_BY = re.compile(r"^Host key \S+ \S+ revoked by file (.+)$", re.MULTILINE)
REVOKED_UNREAD = re.compile(
    r"^Error checking host key .* in revoked keys file (.+)$", re.MULTILINE
)
OFFENDING = re.compile(r"Offending \S+ key in (\S+)")
REMOVAL = re.compile(r"ssh-keygen -f .+ -R .+")
HOST_KEY = re.compile(r"Server host key: (\S+ \S+)")


def reached_address(said: str) -> str:
    """Return the address that ssh connected to; empty if it logged none, as by a ProxyCommand."""
    found = REACHED.search(said)
    return "" if found is None else found[1].removeprefix("::ffff:")


def first_words(said: str) -> str:
    """Return the server's version or, without one, the first other line that it sent; empty if nothing came."""
    found = FIRST_WORDS.search(said)
    return found[1] if found else ""


def failure(
    said: str,
    host: str,
    peer: str,
    *,
    by_hand: str,
    jump: str,
    declined: bool,
    asks: bool,
    let_in: bool = False,
) -> ConsoleError:
    """Return the error that ssh's output shows, if no master runs.

    Args:
        by_hand: The command that a person types for the same.
        jump: The jump host on the way; empty without one.
        declined: A person was asked and gave no answer.
        asks: There was a person to ask.
        let_in: The login itself succeeded.
    """
    lines = [plain_text(line) for line in said.splitlines() if not line.startswith("debug")]
    words = [line for line in lines if line.strip() and not line.startswith(("@@@", "OpenSSH_"))]
    last = words[-1][:300].removeprefix("ssh: ") if words else "it said nothing"
    text = "\n".join(words)
    if let_in:
        return ConnectError(
            f"{peer} ended the connection right after the login: {last}",
            f"`{by_hand}` shows it, too; the log of its sshd says why (PAM, limits, nologin?)",
        )
    if declined:
        return AuthError(f"{peer} asked for a password or a code, and nobody answered", AGAIN)
    if "Host key verification failed" in text:
        return _host_key_error(said, text, host, by_hand)
    if DENIED.search(text):
        return _auth_error(said, peer, by_hand, asks=asks)
    if "Could not resolve hostname" in text:
        return ResolveError(last, "check the spelling, ssh_config and /etc/hosts")
    if unknown := UNKNOWN_KEYWORD.search(text):
        return ConfigError(
            unknown[0][:300],
            f"a line before it has ssh pass over such lines: IgnoreUnknown {unknown[1][:60]}",
        )
    if "Bad owner or permissions" in text:
        return ConfigError(last, f"{by_hand} says the same")
    if jump and "UNKNOWN port" in last:
        return ConnectError(
            f"the jump host {jump} cannot reach {peer}",
            "is the host up, and does the jump host allow forwarding (AllowTcpForwarding)?",
        )
    # A ProxyCommand may have printed the reason in several lines, before ssh's own.
    told = [line for line in words if "UNKNOWN port 65535" not in line] or [last]
    lines = [line.removeprefix("ssh: ")[:300] for line in told[-3:]]
    hint = f"`{by_hand}` shows it, too"
    if old := NO_ALGORITHM.search(text):
        line = f"{ALGORITHMS[old[1]]} +{plain_text(old[2].split(',')[0])}"
        hint = f"an old server, or a list in ssh_config that is too short? There, before others: {line}"
    return ConnectError(f"ssh does not reach {peer}: {' / '.join(lines)}", hint)


def _host_key_error(said: str, text: str, host: str, by_hand: str) -> ConsoleError:
    shown = HOST_KEY.search(said)
    key = f"; it shows {plain_text(shown[1])}" if shown else ""
    if unread := REVOKED_UNREAD.search(text):
        return ConfigError(
            f"ssh cannot read the RevokedHostKeys of {host}: {plain_text(unread[1])}",
            "ssh_config names that file; without it ssh trusts no host",
        )
    by_file = REVOKED_BY.search(text)
    if by_file or "REVOKED HOST KEY" in text:
        place = f" by RevokedHostKeys {plain_text(by_file[1])}" if by_file else ""
        return ChangedHostKeyError(
            f"the host key of {host} is revoked{place}{key}",
            "do not connect to it; ask whoever runs it for a new key",
        )
    if "HOST IDENTIFICATION HAS CHANGED" in text:
        offending, removal = OFFENDING.search(text), REMOVAL.search(text)
        place = f", {plain_text(offending[1])} has another" if offending else ""
        cure = plain_text(removal[0]) if removal else f"take that line away, then: {by_hand}"
        return ChangedHostKeyError(
            f"the host key of {host} is not the one in known_hosts{key}{place}",
            f"somebody may be listening in. If the host was set up anew: {cure}",
        )
    return UnknownHostKeyError(
        f"{host} is not in known_hosts{key}",
        f"compare that fingerprint with the host's own; `{by_hand}` asks and adds it",
    )


MASTER = "ControlMaster and ControlPath in ssh_config"
AGAIN = "a new start of distconsole asks again, and a console that stays open after five minutes"


def _auth_error(said: str, peer: str, by_hand: str, *, asks: bool) -> AuthError:
    from distconsole.ssh.authentication import load_key  # noqa: PLC0415 - with paramiko

    offered, tried = offered_and_tried(said)
    message = f"{peer} lets nobody in by what was tried ({', '.join(tried) or 'nothing'})"
    message += f"; the server offers: {', '.join(offered) or 'nothing'}"
    for path, why in UNREAD_KEY.findall(said):
        message += f"; {plain_text(path)} cannot be read ({plain_text(why)})"
    wants_a_person = bool({"password", "keyboard-interactive"} & set(offered))
    hint = f"was it mistyped? `{by_hand}` shows the same login"
    if "Too many auth" in said:
        return AuthError(f"{message}, and takes no more keys", ONE_KEY, offered)
    if "publickey" in offered and "Next authentication method:" not in said:
        hint = "ssh_config allows no way in that the server offers: see PreferredAuthentications and PubkeyAuthentication there"
    elif certificate := CERTIFICATE.search(said):
        beside = f"{certificate[1]}-cert.pub"
        file = shlex.quote(beside if Path(beside).is_file() else certificate[1])
        hint = f"for whom and until when is the certificate valid? ssh-keygen -L -f {file}"
    elif not wants_a_person and (
        locked := [path for path in KEY_FILE.findall(said) if load_key(path) == "locked"]
    ):
        message += f"; {plain_text(locked[0])} needs a passphrase and no agent holds it"
        hint = f"ssh-add {shlex.quote(plain_text(locked[0]))}"
    elif not wants_a_person:
        hint = by_hand.replace("ssh", "ssh-copy-id", 1).removesuffix(" true")
    elif not asks:
        hint = f"here is no terminal to ask for a password or a code in: open a master before, by ssh ({MASTER})"
    return AuthError(message, hint, offered)


def offered_and_tried(said: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the server's ways to log in, and those that were tried, in ssh's order."""
    offers = OFFERED.findall(said)
    tried: Iterable[str] = (
        words.format(plain_text(found[1]))
        for line in said.splitlines()
        for pattern, words in TRIED
        if (found := pattern.search(line))
    )
    first = offers[0].split(",") if offers else ()
    return tuple(plain_text(each)[:40] for each in first[:10]), tuple(dict.fromkeys(tried))


class PrivateFolder:
    """Of this user alone, for the sockets of ssh and the program that it asks with; gone at the end.

    Made at once; raises ConnectError if it can be made nowhere.

    Attributes:
        askpass: The program that ssh asks with.
    """

    def __init__(self) -> None:
        # In the home last: it may be of a kind that has no sockets. The others may be mounted with noexec.
        found = (
            os.environ.get("XDG_RUNTIME_DIR"),
            tempfile.gettempdir(),
            "/tmp",  # noqa: S108 - 0700, by mkdtemp
            str(Path.home()),
        )
        places = [place for place in found if place and len(place) < MAX_FOLDER_CHARS]
        for may_run in (True, False):  # without the program all but questions works
            for place in places:
                with suppress(OSError):
                    _sweep(place)
                    self._folder = tempfile.TemporaryDirectory(
                        prefix=PREFIX, dir=place, ignore_cleanup_errors=True
                    )
                    self.path = Path(self._folder.name)
                    self._lock = _lock(self.path)
                    self.askpass = _write_askpass(self.path)
                    if os.access(self.askpass, os.X_OK) >= may_run:
                        return
                    self.close()
        raise ConnectError(
            "there is no folder for the sockets of ssh", "set TMPDIR to a short path"
        )

    def close(self) -> None:
        with suppress(OSError):
            self._folder.cleanup()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _lock(folder: Path) -> int | None:
    """Return the lock, which ends with this process; None if another holds it, or the filesystem has none."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _sweep(place: str) -> None:
    oldest = time.time() - YOUNG_SECONDS
    for folder in Path(place).glob(f"{PREFIX}*"):
        with suppress(OSError):
            found = folder.lstat()
            if found.st_uid != os.getuid() or found.st_mtime > oldest:
                continue
            if (folder / SCRIPT).is_file() and (lock := _lock(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _write_askpass(folder: Path) -> Path:
    script, program = folder / SCRIPT, folder / PROGRAM
    script.write_text(ASKPASS)
    words = shlex.join([sys.executable, "-I", "-S", str(script)])
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    program.chmod(0o700)
    return program
