"""The interface of a connection to a machine, and the one to this machine, without SSH."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import IO, Protocol

from distconsole.errors import AgentError, LinkLostError
from distconsole.model.cluster import Host
from distconsole.ssh.plain import plain_lines

Clock = Callable[[], float]
"""Monotonic seconds."""


STDERR_TAIL_BYTES = 8192

END_SECONDS = 2.0
"""How long a command may take to end once its stdin is closed."""


class Channel(Protocol):
    """One running command and its three streams."""

    @property
    def waits_on(self) -> tuple[int, ...]:
        """The descriptors that become readable when ``read_now`` has work; none once it is closed."""
        ...

    def read_now(self, max_bytes: int) -> bytes | None:
        """Return stdout's bytes, None if it has none now, empty at its end; never waits.

        ``recv`` raises the reason of the end, which may take a while. Raises LinkLostError if the connection ended.
        """
        ...

    def recv(self, max_bytes: int, timeout: float) -> bytes:
        """Return bytes of stdout, waiting at most ``timeout`` seconds; empty at its end.

        stderr is put aside meanwhile, see ``stderr_tail``.

        Raises TimeoutError if nothing came, LinkLostError if the connection ended.
        """
        ...

    def send(self, data: bytes, timeout: float) -> None:
        """Write all of ``data`` to stdin.

        Raises TimeoutError if not all of it was taken in ``timeout`` seconds, LinkLostError if the connection or the command has ended.
        """
        ...

    def end_input(self) -> None: ...

    def stderr_tail(self) -> str:
        """Return the end of the command's stderr, cleaned for a terminal."""
        ...

    def exit_code(self, timeout: float) -> int | None:
        """Return the exit code (128+S for signal S); None if it is not known in time."""
        ...

    def close(self) -> None:
        """Close the streams; does not raise and may be called from any thread, repeatedly."""
        ...


class Connection(Protocol):
    """One node, reached and authenticated."""

    @property
    def reached_at(self) -> str:
        """The node's address at the other end; empty if none is known, as behind a ProxyCommand."""
        ...

    @property
    def alive(self) -> bool:
        """True until its end is noticed, without asking the node."""
        ...

    def open(self, command: str, timeout: float) -> Channel:
        """Start ``command`` by the user's shell; raises LinkLostError, or AgentError if the server refuses."""
        ...

    def close(self) -> None:
        """Close the connection and everything on it; does not raise, may be called repeatedly."""
        ...


class Transport(Protocol):
    """A way to reach machines. May be called from several threads at once."""

    def connect(self, host: Host) -> Connection:
        """Reach ``host``; raises a kind of NodeError, with a remedy."""
        ...

    def close(self) -> None:
        """Close shared resources (jump hosts); does not raise."""
        ...


def login_folder() -> str:
    """Return the folder in which a login's command starts: as sshd(8) has it at home, or ``/`` if that cannot be entered."""
    home = os.path.expanduser("~")  # noqa: PTH111 - which raises nothing
    return home if os.path.isdir(home) and os.access(home, os.X_OK) else "/"  # noqa: PTH112


class LocalTransport:
    def connect(self, host: Host) -> LocalConnection:
        return LocalConnection()

    def close(self) -> None:
        """Nothing is shared."""


def start_shell(
    command: str | bytes, env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Run ``command`` as sshd does: by a shell in the home, in a session of its own."""
    return subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        cwd=login_folder(),
        start_new_session=True,
        bufsize=0,
    )


class LocalConnection:
    """See ``Connection``."""

    reached_at = ""
    alive = True

    def __init__(self) -> None:
        self._channels: list[LocalChannel] = []

    def open(self, command: str, timeout: float) -> LocalChannel:
        try:
            process = start_shell(command)
        except OSError as error:
            raise AgentError(f"cannot start a shell here: {error.strerror}") from None
        channel = LocalChannel(process)
        self._channels.append(channel)
        return channel

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


class PipeChannel:
    """A command with pipes of ours as its streams; see ``Channel``."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes], errors: IO[bytes]) -> None:
        self._stderr = bytearray()
        self._closed = False
        self._stderr_ended = False
        # The reader closes the pipes itself, so that none is closed under its feet.
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._stdin, self._stdout, self._errors = stdin, stdout, errors
        for pipe in (self._stdin, self._stdout, self._errors):
            os.set_blocking(pipe.fileno(), False)
        self.waits_on: tuple[int, ...] = (stdout.fileno(), errors.fileno())

    def read_now(self, max_bytes: int) -> bytes | None:
        with self._reading:
            if self._closed:
                raise LinkLostError("the channel is closed")
            if not self._stderr_ended:
                self._take_stderr()
            try:
                return os.read(self._stdout.fileno(), max_bytes)
            except BlockingIOError:
                return None

    def recv(self, max_bytes: int, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        with self._reading:
            while not self._closed:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                # Short waits, so that a close from another thread is seen.
                ready = readable(self.waits_on, min(left, 0.2))
                if self._errors.fileno() in ready:
                    self._take_stderr()
                if self._stdout.fileno() in ready:
                    return os.read(self._stdout.fileno(), max_bytes)
        raise LinkLostError("the channel is closed")

    def send(self, data: bytes, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        rest = memoryview(data)
        with self._writing:
            while rest:
                if self._closed:
                    raise LinkLostError("the channel is closed")
                try:
                    rest = rest[os.write(self._stdin.fileno(), rest) :]
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise TimeoutError from None
                    left = deadline - time.monotonic()
                    _ready([self._stdin.fileno()], selectors.EVENT_WRITE, min(left, 0.2))
                except OSError:
                    raise LinkLostError("the command has ended") from None

    def end_input(self) -> None:
        with self._writing, suppress(OSError):
            self._stdin.close()

    def stderr_tail(self) -> str:
        with self._reading:
            if not self._closed:
                self._take_stderr()
        return plain_lines(bytes(self._stderr).decode("utf-8", "replace")).strip()

    def close(self) -> None:
        self._closed = True
        self.end_input()
        with self._reading:
            self.waits_on = ()
            for pipe in (self._stdout, self._errors):
                with suppress(OSError):
                    pipe.close()

    def _take_stderr(self) -> None:
        with suppress(BlockingIOError):
            data = os.read(self._errors.fileno(), 65536)
            self._stderr += data
            if not data:
                self._stderr_ended, self.waits_on = True, self.waits_on[:1]
        del self._stderr[:-STDERR_TAIL_BYTES]


class LocalChannel(PipeChannel):
    """See ``Channel``."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        super().__init__(process.stdin, process.stdout, process.stderr)

    def exit_code(self, timeout: float) -> int | None:
        try:
            code = self.process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            return None
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        super().close()
        try:
            self.process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            # Its own session: programs that it started to outlive it have left that session.
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def readable(descriptors: Iterable[int], seconds: float) -> list[int]:
    """Return which of ``descriptors`` can be read within ``seconds``; ``select.select`` takes none above 1023."""
    return _ready(descriptors, selectors.EVENT_READ, seconds)


def _ready(descriptors: Iterable[int], event: int, seconds: float) -> list[int]:
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, event)
        return [key.fd for key, _ in selector.select(max(0.0, seconds))]
