"""Runs a program with a deadline, in a session of its own, with bounded output."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.asking import session_environment
from distconsole_agent.probes.errors import failed, timed_out
from distconsole_agent.probes.launch_env import launch_environment
from distconsole_agent.probes.sources import script_source
from distconsole_agent.supervisor.spawning import with_setup
from distconsole_agent.system.users_program import UsersProgram

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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


def facts_said(ended: Ended, mark: str) -> dict[str, Any] | None:
    """Return the JSON object on the line that begins with ``mark``; None where there is none."""
    for line in ended.out.splitlines():
        if line.startswith(mark):
            facts: dict[str, Any] = json.loads(line[len(mark) :])
            return facts
    return None


def parts_said(ended: Ended) -> Iterator[tuple[str, Any]]:
    """Yield name and value of every line that is a JSON list of two, the first a text."""
    for line in ended.out.splitlines():
        try:
            name, value = json.loads(line)
        except (ValueError, TypeError):
            continue
        if isinstance(name, str):
            yield name, value


def last_words(ended: Ended) -> str:
    """Return the last line of its standard error, bounded."""
    return (ended.err.strip().splitlines() or ["it printed nothing"])[-1][:300]


def run_program(
    argv: Sequence[str],
    seconds: float,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str = "/",
    pass_fds: Sequence[int] = (),
    stop: threading.Event | None = None,
    last: bytes = b"",
) -> Ended:
    """Run ``argv`` and return what it printed; it and its children are dead after ``seconds``.

    They are also once ``stop`` is set. After ``last``, with which its output ends, it is not waited
    for: a filesystem that hangs may hold up its end. Without ``env`` it has the asking session's environment.

    Output beyond ``MAX_OUTPUT_BYTES`` a stream is dropped while the program goes on.

    Raises:
        FileNotFoundError: if there is no such program.
        OSError: if it cannot be started.
    """
    began = time.monotonic()
    _reap_left()
    with UsersProgram(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(session_environment() if env is None else env),
        cwd=cwd,
        pass_fds=tuple(pass_fds),
        start_new_session=True,
    ) as process:
        try:
            chunks, in_time = _read(process, began + seconds, stop, last)
            said_all = bool(last) and _ends_with(chunks[0], last)
            if in_time and not said_all:
                in_time = _ends_in_time(process.pid, began + seconds)
        finally:
            _kill(process)
    out, err = (b"".join(part).decode("utf-8", "replace") for part in chunks)
    code = 0 if said_all else process.returncode if in_time else None
    return Ended(code, out, err, time.monotonic() - began)


def run_script(
    source: bytes,
    arguments: Sequence[str],
    seconds: float,
    *,
    python: str,
    flags: Sequence[str] = (),
    setup: str | None = None,
    env: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
    last: bytes = b"",
) -> Ended:
    """Run Python source with the node's interpreter, as a rank would be: after ``setup``.

    The source lies in memory (memfd_create(2)): it is on no disk and in no command line.

    Raises:
        ProbeError: if the interpreter cannot be started.
    """
    descriptor = os.memfd_create("distconsole-probe")
    try:
        os.write(descriptor, source)
        argv: tuple[str, ...] = (python, *flags, f"/dev/fd/{descriptor}", *arguments)
        if setup is not None:
            argv = with_setup(setup, argv)
        fds = (descriptor,)
        return run_program(argv, seconds, env=env, pass_fds=fds, stop=stop, last=last)
    except OSError as error:
        raise failed(f"{python} cannot be started: {error.strerror or error}") from None
    finally:
        os.close(descriptor)


def inspect_python(
    name: str, words: Sequence[str], args: dict[str, Any], seconds: float, mark: str
) -> tuple[dict[str, Any], float]:
    """Have the interpreter that ranks will use run a script of ours; return its facts and seconds.

    Args:
        name: The script, a module of this package.
        words: Its arguments.
        args: The probe's: ``python``, this one if not given; ``setup``, run by the shell before;
            ``env`` and ``unset``, what a launch changes in the environment.
        seconds: For the other process.
        mark: What the line with its facts begins with.

    Raises:
        ProbeError: when that interpreter does not answer.
    """
    python = read.optional_text(args, "python") or sys.executable
    ended = run_script(
        script_source(name),
        words,
        seconds,
        python=python,
        setup=read.optional_text(args, "setup"),
        env=launch_environment(args),
    )
    facts = facts_said(ended, mark)
    if facts is not None:
        return facts, ended.seconds
    if ended.exit_code is None:
        raise timed_out(f"{python} did not answer in {seconds:.1f} s")
    raise failed(f"{python} ended with code {ended.exit_code}: {last_words(ended)}")


def _read(
    process: subprocess.Popen[bytes], due: float, stop: threading.Event | None, last: bytes
) -> tuple[list[list[bytes]], bool]:
    """Collect both streams until they end, or the program has (True), or it is to end (False).

    Output that ends with ``last`` is an end, too.
    """
    chunks: list[list[bytes]] = [[], []]
    room = [MAX_OUTPUT_BYTES, MAX_OUTPUT_BYTES]
    over = False
    with selectors.DefaultSelector() as selector:
        for index, stream in enumerate((process.stdout, process.stderr)):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, index)
        while selector.get_map():
            left = due - time.monotonic()
            if left <= 0 or (stop is not None and stop.is_set()):
                return chunks, False
            ready = selector.select(0 if over else min(left, QUIET_SECONDS))
            if not ready:
                # What a setup command left running may hold the streams for ever.
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
    """Whether the child has ended; it is not reaped, so that its number stays its own."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _ends_in_time(pid: int, due: float) -> bool:
    while not _has_ended(pid):
        if time.monotonic() >= due:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole session, also what a program that ended by itself left behind in it."""
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


def _reap_left() -> None:
    """Reap what has died meanwhile of all that was left behind."""
    for pid in tuple(_LEFT):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                continue
        _LEFT.discard(pid)
