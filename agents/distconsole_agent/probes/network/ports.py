"""Which TCP ports of this node are free, and who listens on the others."""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.errors import failed
from distconsole_agent.probes.host.procfs import read_head, read_process, uptime_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator


MAX_PORTS = 64

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
"""NLM_F_REQUEST | NLM_F_DUMP (netlink(7))."""
_ERROR, _DONE = 2, 3
_LISTEN = 10
"""TCP_LISTEN of include/net/tcp_states.h; 0A in /proc/net/tcp (proc(5))."""
_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBBI48x")
"""struct inet_diag_req_v2 of linux/inet_diag.h (sock_diag(7))."""
_ANSWER = struct.Struct("=BBBB2s2s44xIIIII")
"""struct inet_diag_msg: family, state, timer, retransmits, ports and addresses, ..., uid, inode."""
_SECONDS = 2.0


def look(args: dict[str, Any], _seconds: float) -> dict[str, Any]:
    """Return the facts of group ``port``.

    Args:
        args: ``ports``: numbers to try on all addresses, as a rendezvous store does.
    """
    wanted = [port for port in read.items(args, "ports") if _is_port(port)][:MAX_PORTS]
    return {"ports": {str(port): _state(port) for port in wanted}}


def find_free(args: dict[str, Any], _seconds: float) -> dict[str, Any]:
    """Return ``{"port": …}``: one that is free on ``address`` right now.

    Raises:
        ProbeError: if the address cannot be bound.
    """
    address = read.text(args, "address")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((address, 0))
            return {"port": sock.getsockname()[1]}
    except OSError as error:
        raise failed(f"{address} cannot be bound: {error.strerror or error}") from None


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


def listeners() -> list[Listener]:
    """Return all that listen.

    The kernel is asked for them alone where it can be. Its table of all connections it puts together
    from as many places as the machine's memory allows connections: that takes 5 to 10 ms and more.
    """
    try:
        return [
            each for family in (socket.AF_INET, socket.AF_INET6) for each in _ask_kernel(family)
        ]
    except OSError:
        return [*_read("/proc/net/tcp"), *_read("/proc/net/tcp6")]


def _ask_kernel(family: int) -> list[Listener]:
    """Ask by sock_diag(7).

    Raises:
        OSError: where the kernel cannot answer, or the answer is not as expected.
    """
    question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << _LISTEN)
    head = (_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
    found: list[Listener] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as sock:
        sock.settimeout(_SECONDS)
        sock.send(_HEADER.pack(*head) + question)
        while True:
            for kind, body in _messages(sock.recv(1 << 16)):
                if kind == _DONE:
                    return found
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=i", body)[0], "sock_diag")
                found.append(_listener(body))


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _HEADER.size:
        length, kind = _HEADER.unpack_from(data)[:2]
        if length < _HEADER.size:
            raise OSError("a netlink message without a length")
        yield kind, data[_HEADER.size : length]
        data = data[length + -length % 4 :]


def _listener(body: bytes) -> Listener:
    if len(body) < _ANSWER.size:
        raise OSError("a short answer of sock_diag")
    fields = _ANSWER.unpack_from(body)
    return Listener(int.from_bytes(fields[4], "big"), fields[9], fields[10])


def _read(table: str) -> Iterator[Listener]:
    for line in read_head(table, 1 << 22).splitlines()[1:]:
        fields = line.decode("ascii", "replace").split()
        if len(fields) > 9 and int(fields[3], 16) == _LISTEN:
            port = int(fields[1].rpartition(":")[2], 16)
            yield Listener(port, int(fields[7]), int(fields[9]))
