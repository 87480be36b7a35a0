"""Which TCP ports of this node are free, and who listens on the others."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.host.procfs import read_head, read_process, uptime_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator


MAX_PORTS = 64

MAX_TABLE_BYTES = 1 << 24
_LISTEN = "0A"
"""TCP_LISTEN in /proc/net/tcp (proc(5))."""


def look(args: dict[str, Any], _seconds: float) -> dict[str, Any]:
    """Return the facts of group ``port``.

    Args:
        args: ``ports``: numbers to try on all addresses, as a rendezvous store does.
    """
    wanted = [port for port in read.items(args, "ports") if _is_port(port)][:MAX_PORTS]
    return {"ports": {str(port): _state(port) for port in wanted}}


def _is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65536


def _state(port: int) -> dict[str, Any]:
    try:
        # As torch's store binds: reusable, so that a connection in TIME_WAIT is no obstacle.
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # On all addresses, for an instant, and never accepted from.
            sock.bind(("", port))
            sock.listen(1)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        why = "in use" if error.errno == errno.EADDRINUSE else "not allowed"
        return {"free": False, "why": why, "holder": _holder(port)}
    return {"free": True, "why": "", "holder": None}


def _holder(port: int) -> dict[str, Any] | None:
    """Return who listens; pid and name are not known where it is another user's process."""
    found = next((each for each in listeners() if each.port == port), None)
    if found is None:
        return None
    pid = _owner(found.open_file)
    process = None if pid is None else read_process(pid, uptime_seconds())
    known = {"pid": pid} if process is None else process.told()
    return {**known, "uid": found.uid}


def _owner(target: str) -> int | None:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        folder = f"/proc/{pid}/fd"
        try:
            for descriptor in os.listdir(folder):
                if os.readlink(f"{folder}/{descriptor}") == target:
                    return int(pid)
        except OSError:
            continue
    return None


class Listener(NamedTuple):
    """A socket that listens; ``inode`` names it among the open files of a process."""

    port: int
    uid: int
    inode: int

    @property
    def open_file(self) -> str:
        """What a descriptor of it leads to (proc(5), ``/proc/pid/fd``)."""
        return f"socket:[{self.inode}]"


def listeners() -> Iterator[Listener]:
    """Yield all that listen, from the kernel's tables of connections."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read_head(table, MAX_TABLE_BYTES).splitlines()[1:]:
            fields = line.decode("ascii", "replace").split()
            if len(fields) > 9 and fields[3] == _LISTEN:
                port = int(fields[1].rpartition(":")[2], 16)
                yield Listener(port, int(fields[7]), int(fields[9]))
