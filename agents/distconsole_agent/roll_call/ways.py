"""The ways to get a process's stacks: py-spy and its own Python, which read its memory, and torch's worker server.

Each returns stacks, or raises ``WayRefusedError`` with the reason. None sends a signal: a handler that walks
frames meets them half made, and a signal may be one that the script itself listens to.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from distconsole_agent.journal.rings import SERVER_SUFFIX
from distconsole_agent.roll_call import facts
from distconsole_agent.roll_call.stacks import (
    Thread,
    parse_faulthandler,
    parse_py_spy,
    parse_python,
)
from distconsole_agent.supervisor.proctree import own_number, read_environ
from distconsole_agent.system import unix
from distconsole_agent.system.kernel_files import first_line_of, number_of

MAX_ANSWER_BYTES = 16 << 20
CONNECT_SECONDS = 0.5

YAMA = "/proc/sys/kernel/yama/ptrace_scope"
CAP_SYS_PTRACE = 19
_SCOPES = {
    1: "only a process's own parent may look into it",
    2: "only root may look into a process",
    3: "nobody may look into a process",
}

_PYTHON = re.compile(r".*/python(?:3(?:\.(\d+)[td]*)?)?(?: \(deleted\))?$")
READS_SINCE = 14
"""Python 3.14 and newer can read the stacks of another process of the same version."""

READER = """
import json, sys
try:
    from _remote_debugging import RemoteUnwinder
except ImportError:
    sys.exit("Python %d.%d cannot read the stacks of another process" % sys.version_info[:2])
def line_of(frame):
    where = frame.location if hasattr(frame, "location") else frame.lineno
    return where if isinstance(where, int) else where[0] if where else 0
for tries_left in (2, 1, 0):
    try:
        # Without its cache, which would write into the thread states of the process.
        found = RemoteUnwinder(int(sys.argv[1]), all_threads=True).get_stack_trace()
        break
    except Exception as error:
        why = "%s: %s" % (type(error).__name__, error)
        while error is not None and not isinstance(error, PermissionError):
            error = error.__cause__ or error.__context__
        if error is not None or not tries_left:
            sys.exit("PermissionError" if error is not None else why)
threads = [each for one in found for each in getattr(one, "threads", (one,))]
print(json.dumps([
    [each.thread_id, [[frame.funcname, frame.filename, line_of(frame)] for frame in each.frame_info]]
    for each in threads
]))
"""
"""Prints ``[[tid, [[function, file, line], ...]], ...]``, or why not."""

READS = 3
"""A process that runs changes while it is read: py-spy fails in one of ten reads."""

HELD = "a thread may hold Python's lock"
MAX_UNANSWERED = 256
_unanswered: dict[str, tuple[socket.socket, float]] = {}
"""Path of a worker server -> the request for its stacks that it has yet to answer, and when that was sent.

Such a request keeps one of the server's eight threads until Python's lock is free, so no second one is sent.
"""


class WayRefusedError(Exception):
    """A way is not possible; its text names the obstacle."""


class UnknownHandlerError(WayRefusedError):
    """This version of torch has no such handler."""


class LateAnswerError(WayRefusedError):
    """No answer came in time; the request may not even have been taken."""


def find_server(rings: str, pid: int) -> str | None:
    """Return the socket of the worker server of ``pid``, the newest; None without one."""
    own = own_number(pid) or pid
    try:
        names = [name for name in os.listdir(rings) if name.startswith(f"{own}-")]
    except OSError:
        return None
    names = sorted(name for name in names if name.endswith(SERVER_SUFFIX))
    sockets = [os.path.join(rings, name) for name in names]
    if own != pid and len(sockets) > 1:  # of several containers that call their process alike
        listening, sockets = sockets, []
        for path in listening:
            with contextlib.suppress(OSError), unix.connect(path, CONNECT_SECONDS) as sock:
                sockets += [path] if unix.peer_pid(sock) == pid else []
    return sockets[-1] if sockets else None


def ask_server(
    path: str,
    handler: str,
    seconds: float,
    keep: Callable[[socket.socket], None] = lambda _sock: None,
) -> bytes:
    """Return the answer of a handler of torch's worker server at ``path``, or raise WayRefusedError.

    ``keep`` is called with the connection of a request that was not answered in time, before that is closed.
    """
    until = time.monotonic() + seconds
    request = f"POST /handler/{handler} HTTP/1.1\r\nHost: rank\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    answer = b""
    try:
        with unix.connect(path, seconds) as sock:
            if unix.peer_uid(sock) != os.getuid():
                raise WayRefusedError(f"{path} is another user's")
            sock.sendall(request.encode("ascii"))
            try:
                while chunk := sock.recv(1 << 16):
                    answer += chunk
                    if len(answer) > MAX_ANSWER_BYTES:
                        break
                    sock.settimeout(max(until - time.monotonic(), 1e-3))
            except socket.timeout:
                keep(sock)
                raise
    except socket.timeout:
        raise LateAnswerError(f"torch's worker server: no answer within {seconds:.1f} s") from None
    except OSError as error:
        raise WayRefusedError(f"torch's worker server: {error.strerror}") from None
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.partition(b"\r\n")[0].split(b" ")[1:2]
    if status == [b"404"]:
        raise UnknownHandlerError(f"torch's worker server has no {handler.partition('?')[0]}")
    if status != [b"200"]:
        raise WayRefusedError(f"torch's worker server: {body[:200].decode('utf-8', 'replace')}")
    return body


def ask_server_for_any(path: str, handlers: Sequence[str], seconds: float) -> bytes:
    """Return the answer of the first handler that the server at ``path`` has, or raise WayRefusedError."""
    for handler in handlers[:-1]:
        with contextlib.suppress(UnknownHandlerError):
            return ask_server(path, handler, seconds)
    return ask_server(path, handlers[-1], seconds)


def stacks_by_server(path: str | None, state: str, seconds: float) -> list[Thread]:
    """Return the stacks as torch's worker server gives them, which waits for Python's lock, or raise WayRefusedError."""
    if path is None:
        raise WayRefusedError(
            "the process has no worker server of torch: it starts with a process group, from torch 2.4 on"
        )
    if state == "T":
        raise WayRefusedError("the process is stopped (state T)")
    if state == "t":
        raise WayRefusedError("a debugger holds the process (state t)")
    owed = _seconds_owed(path)
    if owed is not None:
        raise WayRefusedError(f"{owed:.0f} s after a request there is no answer: {HELD}")
    try:
        body = ask_server(path, "dump_traceback", seconds, partial(_keep, path))
    except LateAnswerError:
        raise WayRefusedError(f"no answer within {seconds:.1f} s: {HELD}") from None
    try:
        return _some(parse_faulthandler(body.decode("utf-8", "replace")))
    except ValueError as error:
        raise WayRefusedError(f"torch's worker server: {error}") from None


def _keep(path: str, sock: socket.socket) -> None:
    """Keep a second descriptor of a request without an answer; of ranks that are gone none is kept."""
    for other in list(_unanswered):
        _seconds_owed(other)
    if len(_unanswered) < MAX_UNANSWERED:
        kept = sock.dup()
        kept.setblocking(False)
        _unanswered[path] = kept, time.monotonic()


def _seconds_owed(path: str) -> float | None:
    """Return the age in seconds of the request that the server at ``path`` has not answered; None without one."""
    sock, sent = _unanswered.get(path, (None, 0.0))
    if sock is None:
        return None
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return time.monotonic() - sent
    except OSError:
        pass
    if _unanswered.pop(path, None) is not None:
        sock.close()
    return None


def from_outside(
    pid: int, state: str, left: Callable[[], float]
) -> tuple[tuple[str, Callable[[], list[Thread] | None]], ...]:
    """Return the ways that only read the memory of ``pid``, by name; ``left`` returns how many seconds they may take."""
    python = facts.interpreter_of(pid)
    return (
        ("py-spy", lambda: stacks_by_py_spy(pid, python, state, left())),
        ("python", lambda: stacks_by_python(pid, state, left())),
    )


def stacks_by_py_spy(pid: int, python: str, state: str, seconds: float) -> list[Thread]:
    """Return the stacks as py-spy reads them from the memory of ``pid``, which goes on meanwhile, or raise WayRefusedError.

    Args:
        python: The interpreter of the process; a py-spy beside it counts, too.
    """
    program = find_py_spy(python)
    if program is None:
        raise WayRefusedError(
            "py-spy is not on this node's PATH, in ~/.local/bin, nor beside the run's Python or the agent's: "
            "pip install py-spy there, or the extra distconsole[diagnosis]"
        )
    command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    until = time.monotonic() + seconds
    done = _run_reader(command, "py-spy", state, seconds)
    for _ in range(READS - 1):
        if done.returncode == 0 or b"ermission" in done.stderr:
            break
        done = _run_reader(command, "py-spy", state, until - time.monotonic())
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it failed"]
        if "ermission" in words[0]:
            raise WayRefusedError(f"py-spy may not look into it: {lacking(pid)}")
        raise WayRefusedError(f"py-spy: {words[0][:200]}")
    try:
        return _some(parse_py_spy(done.stdout.decode("utf-8", "replace"), pid))
    except (ValueError, RecursionError):
        raise WayRefusedError("py-spy gave no stacks") from None


def stacks_by_python(pid: int, state: str, seconds: float) -> list[Thread] | None:
    """Return the stacks as the interpreter of ``pid``, started once more, reads them from its memory, or raise WayRefusedError.

    None if it is too old, is no Python, or is invisible. The process goes on meanwhile; nothing is written into it.
    """
    try:
        python, same = os.readlink(f"/proc/{pid}/exe"), os.stat(f"/proc/{pid}/exe")
    except OSError:
        return None
    named = _PYTHON.match(python)
    if named is None or int(named[1] or READS_SINCE) < READS_SINCE:
        return None
    with contextlib.suppress(OSError):
        here = os.stat(python)
        if (here.st_dev, here.st_ino) == (same.st_dev, same.st_ino):
            return _read_with(python, pid, state, seconds)
    raise WayRefusedError(f"{python} is another file here: it was replaced, or is in a container")


def _read_with(python: str, pid: int, state: str, seconds: float) -> list[Thread]:
    libraries = read_environ(pid).get(b"LD_LIBRARY_PATH")
    env = {**os.environb, **({b"LD_LIBRARY_PATH": libraries} if libraries else {})}
    command = [python, "-I", "-S", "-c", READER, str(pid)]
    done = _run_reader(command, python, state, seconds, cwd="/", env=env)
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it failed"]
        if words[-1] == "PermissionError":
            raise WayRefusedError(f"{python} may not look into it: {lacking(pid)}")
        raise WayRefusedError(f"{python}: {words[-1][:200]}")
    try:
        threads = parse_python(done.stdout.decode("utf-8", "replace"), own_number(pid) or pid)
        for thread in threads:  # since 3.14 the kernel knows the names of Python's threads
            name = first_line_of(f"/proc/{pid}/task/{thread['tid']}/comm")
            thread["name"] = "" if thread["main"] else name or ""
        return _some(threads)
    except (ValueError, RecursionError):
        raise WayRefusedError(f"{python} gave no stacks") from None


def _run_reader(
    command: list[str],
    name: str,
    state: str,
    seconds: float,
    cwd: str | None = None,
    env: Mapping[bytes, bytes] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program that reads another process; raises WayRefusedError if it does not start, or end in time."""
    try:
        return subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=max(seconds, 0.1),
            check=False,
            cwd=cwd,
            env=env,
        )
    except subprocess.TimeoutExpired:
        raise WayRefusedError(
            f"{name} did not answer within {seconds:.1f} s (state {state})"
        ) from None
    except OSError as error:
        raise WayRefusedError(f"{command[0]}: {error.strerror}") from None


def runs_python(pid: int) -> bool:
    try:
        return _PYTHON.match(os.readlink(f"/proc/{pid}/exe")) is not None
    except OSError:
        return False


def find_py_spy(python: str) -> str | None:
    """Return py-spy on the PATH, beside ``python`` or our own interpreter, or in the folder of ``pip install --user``."""
    import shutil

    beside = (os.path.dirname(python), os.path.dirname(sys.executable))
    folders = [*filter(None, beside), os.path.expanduser("~/.local/bin")]
    return shutil.which("py-spy") or shutil.which("py-spy", path=os.pathsep.join(folders))


def lacking(pid: int) -> str:
    """Return why this process may not read ``pid``: the missing permission, and the setting that demands it."""
    scope, why = number_of(YAMA) or 0, ""
    status = facts.read_status(pid)
    if scope in _SCOPES and not (_may_trace() and scope < 3):
        why = f"kernel.yama.ptrace_scope is {scope}: {_SCOPES[scope]}"
    elif (owner := status.get("Uid", "").split()[:1]) not in ([], [str(os.geteuid())]):
        why = f"it is uid {owner[0]}'s, and this is uid {os.geteuid()}"
    elif _owner_of(f"/proc/{pid}/environ") != os.geteuid():
        why = "it forbids to be looked into (PR_SET_DUMPABLE, or a program with privileges of its own)"
    elif len(status.get("NSpid", "").split()) > len(_own("NSpid").split()):
        why = "it runs in a container"
    elif _own("Seccomp") == "2":
        why = "the agent runs under a seccomp filter, as in a container"
    missing = "" if _may_trace() else "without CAP_SYS_PTRACE"
    return ", ".join(filter(None, (why, missing))) or "the kernel forbids it (a security module?)"


def _may_trace() -> bool:
    return bool(int(_own("CapEff") or "0", 16) >> CAP_SYS_PTRACE & 1)


def _own(name: str) -> str:
    return facts.read_status(os.getpid()).get(name, "")


def _owner_of(path: str) -> int | None:
    try:
        return os.stat(path).st_uid
    except OSError:
        return None


def _some(threads: list[Thread]) -> list[Thread]:
    if not threads:
        raise WayRefusedError("no thread of it runs Python")
    return threads
