"""A process with torch imported, which forks the ranks of a check's short jobs: so a node imports torch once.

A rank that was started connects to it, hands over its standard streams, and ends as the process ends that is forked for it. Where
anything differs that an import may depend on (interpreter, variables, limits, namespaces), the rank imports torch itself.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import re
import resource
import select
import signal
import socket
import struct
import sys
import time
from typing import Any, NoReturn

from distconsole_agent.system.unix import peer_uid

ANSWER_SECONDS, POLL_SECONDS = 5.0, 0.001
MAX_REQUEST_BYTES = 4 << 20
BACKLOG = 64

OF_A_RANK = re.compile(
    r"(?:(?:LOCAL_|GROUP_|ROLE_)?(?:RANK|WORLD_SIZE|NAME)|MASTER_(?:ADDR|PORT)|OMP_NUM_THREADS|"
    r"PYTHONUNBUFFERED|LC_CTYPE|SHLVL|OLDPWD|_|(?:DISTCONSOLE|HOROVOD|TORCHELASTIC|NCCL|GLOO)_\w+)\Z"
)
"""Variables that no import reads. Each rank of these jobs sets its number of threads itself."""

ALIKE = ("Umask", "Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp")
"""Lines of ``/proc/self/status``."""


def surroundings() -> list[Any]:
    """Return the properties, as decoded JSON, that two processes must share for one to stand for the other."""
    limits = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        kept = [line for line in status if line.startswith(ALIKE)]
    for name in ("cgroup", "oom_score_adj"):
        with open(f"/proc/self/{name}", encoding="utf-8", errors="replace") as file:
            kept += list(file)
    kept.append(str(os.stat("/")[1:3]))
    places = [os.readlink(f"/proc/self/ns/{name}") for name in sorted(os.listdir("/proc/self/ns"))]
    return [
        [sys.executable, sys.version, globals().get("PATH", sys.path), *kept, *places],
        [list(resource.getrlimit(getattr(resource, name))) for name in limits],
        [sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0), os.getcwd()],
        {name: value for name, value in os.environ.items() if not OF_A_RANK.match(name)},
    ]


def serve(name: str, seconds: float, agent: int, alike: list[Any]) -> str | None:
    """Fork a process that forks ranks whose surroundings are ``alike``; return None, or in a rank its source.

    It ends after ``seconds``, or when the pipe ``agent`` does, whose other end the agent holds.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0{name}")
    listener.listen(BACKLOG)
    server = os.fork()
    if server:
        # The probe's process group is killed when the probe ends: leave it.
        os.setpgid(server, server)
        listener.close()
        return None
    nothing = os.open(os.devnull, os.O_RDWR)
    for place, stream in enumerate((agent, nothing, nothing)):
        os.dup2(stream, place)
    source = os.path.basename(sys.argv[0])  # the descriptor that the program was read from
    for stream in (agent, nothing, int(source)):
        os.close(stream)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    gc.freeze()  # a rank that looked through all of torch at its end would copy those pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the keepers
    while 0 not in select.select([0, listener.fileno()], [], [])[0]:
        connection, _ = listener.accept()
        if peer_uid(connection) == os.geteuid() and not os.fork():
            listener.close()
            return _keep(connection, alike)
        connection.close()
    os._exit(0)


def _keep(connection: socket.socket, alike: list[Any]) -> str:
    """Return a rank's source in a process forked for it; report that one's end to the rank that connected."""
    try:
        connection.settimeout(ANSWER_SECONDS)
        data, streams, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        while data and not data.endswith(b"\n") and len(data) < MAX_REQUEST_BYTES:
            data += connection.recv(1 << 16)
        asked = json.loads(data)
        if asked == "end":
            server = os.getppid()
            os.kill(server, signal.SIGKILL)
            while os.getppid() == server:
                time.sleep(POLL_SECONDS)
            os._exit(0)
        if asked["alike"] != alike or len(streams) != 3:
            os._exit(0)
        for place, stream in enumerate(streams):
            os.dup2(stream, place)
            os.close(stream)
        os.setsid()
        # The kernel kills this process group when the rank that connected is gone.
        fcntl.fcntl(connection, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(connection, fcntl.F_GETFL)
        fcntl.fcntl(connection, fcntl.F_SETFL, flags | os.O_ASYNC)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.sendall(b"\n")
        rank = os.fork()
    except (OSError, ValueError, KeyError, TypeError):
        os._exit(1)
    if rank:
        connection.sendall(struct.pack("i", os.waitpid(rank, 0)[1]))
        os._exit(0)
    connection.close()
    for variable in [each for each in os.environ if OF_A_RANK.match(each)]:
        del os.environ[variable]
    os.environ.update(asked["env"])
    sys.argv[:] = asked["argv"]
    return str(asked["source"])


def _connect(name: str, said: Any, streams: tuple[int, ...] = ()) -> socket.socket:
    data = json.dumps(said).encode() + b"\n"
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(f"\0{name}")
        if peer_uid(connection) != os.geteuid():
            raise PermissionError(name)  # noqa: TRY301 - closed below as any failure
        sent = socket.send_fds(connection, [data], streams) if streams else 0
        connection.sendall(data[sent:])
    except BaseException:
        connection.close()
        raise
    return connection


def end_server(name: str) -> None:
    """End the process that forks by ``name``; the ranks that it forked go on. Raises OSError if there is none."""
    with _connect(name, "end") as connection:
        connection.recv(1)


def be_forked(server: str, argv: list[str]) -> None:
    """Run as a rank with ``argv`` forked by ``server``, and exit like it; return if no server fits."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            words = os.fsdecode(file.read()).split("\0")
        own = {name: value for name, value in os.environ.items() if OF_A_RANK.match(name)}
        asked = {"alike": surroundings(), "env": own, "argv": argv}
        source = words[words.index("-c") + 1]
        connection = _connect(server, {**asked, "source": source}, (0, 1, 2))
        accepted = connection.recv(1) == b"\n"
    except (OSError, ValueError, IndexError, AttributeError):
        return
    if accepted:
        connection.settimeout(None)
        _end_as(connection.recv(4))
    connection.close()


def _end_as(answer: bytes) -> NoReturn:
    status = struct.unpack("i", answer)[0] if len(answer) == 4 else signal.SIGKILL
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the forked one has dumped its own
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))
