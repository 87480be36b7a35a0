"""Copies bytes between a session and an agent that runs already, as a script of its own or in the bridge.

As a script it makes a second session cheap (40 ms instead of 160): read from stdin, it needs few imports.
It connects only if all is as usual.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time

GREETING = b"distconsole-bridge 1 "
"""Begins the first line of ours on stdout; whatever came before it is the shell's own noise.

The session's interpreter follows: the agent's own may be one that another session named.
"""

BUFFER_BYTES = 256 * 1024
"""Most that is held in each direction before the bridge stops reading."""

FLUSH_SECONDS = 2.0
"""How long bytes already read may take to be handed on once the other side has gone."""

ANSWER_SECONDS = 5.0
"""How long a full queue of the agent's socket is waited for."""

ROOM_BYTES = 64 * 1024 * 1024
"""With less in the node folder the bridge looks closely, and may refuse (``folders``)."""

OWNER = "host"
"""In a node folder: the host that owns it (``node_owner``)."""


def this_host() -> str:
    """Return an identity of this host among those that may share a folder: its boot and its namespaces."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net")]
    return " ".join([boot, *spaces]) + "\n"


def join(archive: str, size: int, node_dir: str) -> bool:
    """Be the bridge to the agent of ``archive``; return False, with nothing printed, if there is none to connect to.

    Args:
        archive: The zipapp ``agent-<sha16>.pyz``.
        size: Its expected size; a damaged archive is left to the program that starts the agent.
        node_dir: The node folder; empty for the usual one.
    """
    node_dir = node_dir or f"/tmp/distconsole-{os.getuid()}"  # noqa: S108 - checked to be ours
    try:
        if os.stat(archive).st_size != size or not _is_ours(node_dir):
            return False
        # Not ``socket``: its import takes longer than all the rest.
        import _socket

        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        sock.settimeout(ANSWER_SECONDS)
        sock.connect(f"{node_dir}/{os.path.basename(archive)[: -len('.pyz')]}.sock")
        agent = sock.detach()
        # Last: while an agent lives there the folder stays with its host.
        with open(f"{node_dir}/{OWNER}") as file:
            if not file.read().startswith(this_host()):
                os.close(agent)
                return False
    except OSError:
        return False
    os.write(1, GREETING + os.fsencode(sys.executable) + b"\n")
    copy(agent, 0, 1)
    return True


def _is_ours(node_dir: str) -> bool:
    """Return True if the folder needs no closer look: it exists, is ours alone, and has room."""
    for folder in (node_dir, f"{node_dir}/runs"):
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            return False
    room = os.statvfs(node_dir)
    files_left = room.f_files == 0 or room.f_favail > 0
    flags = os.ST_RDONLY | os.ST_NOEXEC
    return files_left and room.f_bavail * room.f_frsize > ROOM_BYTES and not room.f_flag & flags


def copy(agent: int, source: int, sink: int) -> None:
    """Copy ``source`` to the agent and the agent to ``sink`` (descriptors), unbuffered, until either ends."""
    for fd in (agent, source, sink):
        os.set_blocking(fd, False)
    inward, outward = _Pipe(source, agent), _Pipe(agent, sink)
    while not (inward.ended or outward.ended):
        wanted = {outward.sink: 0}
        for pipe in (inward, outward):
            # A source without room is left out: its hang-up would be reported again and again.
            if pipe.room:
                wanted[pipe.source] = wanted.get(pipe.source, 0) | select.POLLIN
            if pipe.held:
                wanted[pipe.sink] = wanted.get(pipe.sink, 0) | select.POLLOUT
        poll = select.poll()
        for fd, mask in wanted.items():
            poll.register(fd, mask)
        ready = dict(poll.poll())
        if ready.get(sink, 0) & (select.POLLERR | select.POLLNVAL):
            return
        gone = select.POLLHUP | select.POLLERR
        for pipe in (inward, outward):
            pipe.step(bool(ready.get(pipe.source, 0) & (select.POLLIN | gone)))
    for pipe in (inward, outward):
        pipe.flush(FLUSH_SECONDS)


class _Pipe:
    """One direction of the copy."""

    def __init__(self, source: int, sink: int) -> None:
        self.source, self.sink = source, sink
        self.ended = False
        self.held = bytearray()

    @property
    def room(self) -> int:
        return BUFFER_BYTES - len(self.held)

    def step(self, readable: bool) -> None:
        if readable and self.room:
            try:
                data = os.read(self.source, min(self.room, 65536))
                self.held += data
                self.ended = not data
            except BlockingIOError:
                pass
            except OSError:
                self.ended = True
        if self.held:
            self._write()

    def flush(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.held and time.monotonic() < deadline:
            select.select([], [self.sink], [], max(0.0, deadline - time.monotonic()))
            if not self._write():
                return

    def _write(self) -> bool:
        try:
            del self.held[: os.write(self.sink, self.held)]
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True
            return False
        return True


if __name__ == "__main__" and join(sys.argv[1], int(sys.argv[2]), sys.argv[3]):
    os._exit(0)
