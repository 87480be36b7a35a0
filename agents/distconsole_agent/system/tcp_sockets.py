"""The TCP sockets of a network namespace, from the kernel's tables (proc(5), ``/proc/net/tcp``).

Its text also stands in programs for other interpreters (``probes.scripts``).
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import NamedTuple

MAX_TABLE_BYTES = 1 << 24
ESTABLISHED, LISTEN = "01", "0A"

TcpEnd = tuple[str, int]
"""Address and port."""


class TcpSocket(NamedTuple):
    """A row of a table; ``inode`` is "0" of a socket that its process has closed, and a listener's other port is 0."""

    here: TcpEnd
    there: TcpEnd
    state: str
    uid: int
    inode: str

    @property
    def open_file(self) -> str:
        """The target of its descriptor in ``/proc/PID/fd``."""
        return f"socket:[{self.inode}]"


def tcp_sockets(folder: str = "/proc/net") -> Iterator[TcpSocket]:
    """Yield the sockets of IPv4, then those of IPv6; nothing of a table that cannot be read."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"{folder}/{name}", "rb") as table:
            for line in table.read(MAX_TABLE_BYTES).splitlines()[1:]:
                words = line.decode("ascii", "replace").split()
                if len(words) > 9:
                    here, there = map(_read_end, words[1:3])
                    yield TcpSocket(here, there, words[3], int(words[7]), words[9])


def _read_end(text: str) -> TcpEnd:
    """Return an end as people write it, one of IPv4 in IPv6's form as the former.

    A table has an address as words of four bytes, each in the order of x86 and ARM.
    """
    raw, _, port = text.partition(":")
    packed = b"".join(bytes.fromhex(raw[at : at + 8])[::-1] for at in range(0, len(raw), 8))
    packed = packed[12:] if packed.startswith(b"\0" * 10 + b"\xff\xff") else packed
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed), int(port, 16)
