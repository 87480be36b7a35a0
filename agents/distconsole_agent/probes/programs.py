"""Runs a program with a deadline, in a session of its own, with bounded output."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from typing import TYPE_CHECKING, NamedTuple

from distconsole_agent.probes.environment import session_environment
from distconsole_agent.supervisor.failures import FATAL
from distconsole_agent.supervisor.spawning import wrap_in_setup
from distconsole_agent.system.descriptors import UsersProgram

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_OUTPUT_BYTES = 1024 * 1024
REAP_SECONDS = 0.5
QUIET_SECONDS = 0.1
POLL_SECONDS = 0.005

_LEFT: set[int] = set()
"""Processes that did not die in time; they are ours to reap until they do."""


class Ended(NamedTuple):
    """How a program ended; ``exit_code`` is None when it was killed at its deadline."""

    exit_code: int | None
    out: str
    err: str
    seconds: float

    @property
    def last_words(self) -> str:
        """The last line of its standard error, bounded; of a Python that did not start, why."""
        lines = self.err.strip().splitlines() or ["it printed nothing"]
        return next((line for line in lines if line.startswith(FATAL)), lines[-1])[:300]


def run_program(
    argv: Sequence[str],
    seconds: float,
    setup: str | None = None,
    *,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    last: bytes = b"",
    stdin: int = subprocess.DEVNULL,
) -> Ended:
    """Run ``argv``, after ``setup`` in a shell, and return its output; after ``seconds`` all of it is dead.

    After ``last``, with which its output ends, it is not waited for: a filesystem that hangs may
    hold up its end. Without ``env`` it has the asking session's environment. Output beyond
    ``MAX_OUTPUT_BYTES`` a stream is dropped. Raises OSError if it cannot be started.
    """
    began = time.monotonic()
    for pid in tuple(_LEFT):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                continue
        _LEFT.discard(pid)
    words, setup_fds = wrap_in_setup(setup, tuple(argv))
    try:
        process = UsersProgram(
            words,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(session_environment() if env is None else env),
            cwd="/",
            pass_fds=(*pass_fds, *setup_fds),
            start_new_session=True,
        )
    finally:
        for descriptor in setup_fds:
            os.close(descriptor)
    with process:
        try:
            chunks, in_time = _read(process, began + seconds, last)
            said_all = bool(last) and _ends_with(chunks[0], last)
            if in_time and not said_all:
                in_time = _ends_in_time(process.pid, began + seconds)
        finally:
            _kill(process)
    out, err = (b"".join(part).decode("utf-8", "replace") for part in chunks)
    code = 0 if said_all else process.returncode if in_time else None
    return Ended(code, out, err, time.monotonic() - began)


def _read(
    process: subprocess.Popen[bytes], due: float, last: bytes
) -> tuple[list[list[bytes]], bool]:
    """Collect both streams until they end, or ``last`` comes, or the program ends (True); False: the time is over."""
    chunks: list[list[bytes]] = [[], []]
    room = [MAX_OUTPUT_BYTES, MAX_OUTPUT_BYTES]
    over = False
    with selectors.DefaultSelector() as selector:
        for index, stream in enumerate((process.stdout, process.stderr)):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, index)
        while selector.get_map():
            left = due - time.monotonic()
            if left <= 0:
                return chunks, False
            ready = selector.select(0 if over else min(left, QUIET_SECONDS))
            if not ready:
                # Processes that a setup command left running may hold the streams for ever.
                if over:
                    return chunks, True
                # It may have written between the look at its streams and its end: once more.
                over = _has_ended(process.pid)
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fileobj)
                elif room[key.data] > 0:
                    chunks[key.data].append(data[: room[key.data]])
                    room[key.data] -= len(data)
            if last and _ends_with(chunks[0], last):
                return chunks, True
    return chunks, True


def _ends_with(chunks: list[bytes], last: bytes) -> bool:
    return b"".join(chunks[-len(last) :]).endswith(last)


def _has_ended(pid: int) -> bool:
    """Return True if the child has ended; it is not reaped, so that its number stays its own."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _ends_in_time(pid: int, due: float) -> bool:
    while not _has_ended(pid):
        if time.monotonic() >= due:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole session, also processes that a finished program left behind in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    try:
        process.wait(REAP_SECONDS)
    except subprocess.TimeoutExpired:
        # It sleeps in the kernel, on a dead filesystem for example, and dies when that lets it.
        process.returncode = -int(signal.SIGKILL)
        _LEFT.add(process.pid)
