"""Finds the user at the other end of a TCP connection, by this kernel or that of the other host.

So Horovod's protocol, which lacks a secret, is closed to the other users of the run's hosts.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Callable, NamedTuple

from distconsole_agent.coordination.channel import LinkError, Message
from distconsole_agent.coordination.conversation import Member
from distconsole_agent.coordination.link import read_integer
from distconsole_agent.supervisor.proctree import descendants, owner_of
from distconsole_agent.system.tcp_sockets import TcpEnd as End
from distconsole_agent.system.tcp_sockets import tcp_sockets

MAX_ASKED = 1024
"""Questions that wait for another node's answer."""

ASK, ANSWER = "whose", "owned"
"""The ``op`` of a question to a node, and of its answer."""

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST = 4, 20, 1
_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBBI2s2s16s16sIII")
_ANSWER = struct.Struct("=BBBB2s2s44xIIIII")
"""struct inet_diag_req_v2 and inet_diag_msg of linux/inet_diag.h (sock_diag(7))."""
_ANY_STATE = _NO_COOKIE = 0xFFFFFFFF
_PROTOCOL = socket.IPPROTO_TCP
_SECONDS = 2.0


class Ends(NamedTuple):
    """A connection, by the addresses and ports of its client and its server."""

    maker: End
    taker: End


class Holder(NamedTuple):
    """The user and the inode of a socket; /proc/PID/fd names the inode (proc(5))."""

    uid: int
    inode: int


class Whose:
    """Asks the run's ``nodes``, of which this is the first, about connections that it gets."""

    def __init__(self, nodes: Sequence[Member]) -> None:
        self._nodes = nodes
        self._addresses = [{node.spec.address} for node in nodes]
        self._asked: dict[int, tuple[set[int], Callable[[bool], None]]] = {}
        self._questions = 0

    def met(self, node: int, address: str) -> None:
        """Note an address from which a node has proved knowledge of the secret."""
        self._addresses[node].add(address)

    def ask(self, ends: Ends, answer: Callable[[bool], None]) -> None:
        """Call ``answer`` with True if this user made a connection, once the node of its other end has answered."""
        uid = uid_of(ends.maker, ends.taker)
        if uid is not None:
            answer(trusts(uid))
            return
        asked = {
            index
            for index, node in enumerate(self._nodes)
            if index and not node.lost and ends.maker[0] in self._addresses[index]
        }
        if not asked or len(self._asked) >= MAX_ASKED:
            answer(False)
            return
        self._questions += 1
        self._asked[self._questions] = (set(asked), answer)
        for index in asked:
            message = {"op": ASK, "id": self._questions, "maker": ends.maker, "taker": ends.taker}
            self._nodes[index].post(message)

    def heard(self, node: int, message: Message) -> None:
        """Take the answer of an asked node; one yes is enough."""
        self._take(read_integer(message, "id"), node, ours=message.get("ours") is True)

    def lost(self, node: int) -> None:
        """Take that a node will answer nothing any more."""
        for number in list(self._asked):
            self._take(number, node, ours=False)

    def _take(self, number: int, node: int, *, ours: bool) -> None:
        asked, answer = self._asked.get(number, (set(), None))
        if answer is None or node not in asked:
            return
        asked.discard(node)
        if ours or not asked:
            del self._asked[number]
            answer(ours)


def answer_of(message: Message) -> Message:
    try:
        ends: Any = message["maker"], message["taker"]
        maker, taker = ((str(at), int(port)) for at, port in ends)
        uid = uid_of(maker, taker)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise LinkError("a question about no connection") from None
    ours = uid is not None and trusts(uid)
    return {"op": ANSWER, "id": message.get("id"), "ours": ours}


def trusts(uid: int) -> bool:
    """Return True if a user may take part: this one, root, or the owner of a living process of the run."""
    return uid in (0, os.getuid()) or any(owner_of(pid) == uid for pid in descendants(os.getpid()))


def uid_of(near: End, far: End) -> int | None:
    """Return the user of the socket at ``near`` that is connected to ``far``; None if it is not held here.

    A socket that its process has closed already has no owner.

    Raises ValueError when an address is none.
    """
    holder = _holder(near, far)
    return None if holder is None else holder.uid


def listener_at(end: End) -> Holder | None:
    """Return the process that would get a connection to ``end`` here; None without a listener."""
    return _holder(end, ("::" if ":" in end[0] else "0.0.0.0", 0))  # noqa: S104 - not bound


def _holder(near: End, far: End) -> Holder | None:
    packed = [_pack_address(address) for address, _port in (near, far)]
    family = socket.AF_INET if len(packed[0]) == 4 else socket.AF_INET6
    ports = [port.to_bytes(2, "big") for _address, port in (near, far)]
    try:
        holder = _ask_kernel(family, ports, packed)
        if holder is not None or _has_inet_diag():
            return holder
    except OSError:
        pass
    here, there = (
        (socket.inet_ntop(family, address), end[1]) for address, end in zip(packed, (near, far))
    )
    # proc(5)'s table of all connections, where addresses that listen may be any.
    anywhere = "::" if ":" in here[0] else "0.0.0.0"  # noqa: S104 - not bound
    wanted = ((here, there), ((anywhere, here[1]), there))
    found = (each for each in tcp_sockets() if (each.here, each.there) in wanted)
    return next((Holder(each.uid, int(each.inode)) for each in found if each.inode != "0"), None)


@lru_cache(maxsize=1)
def _has_inet_diag() -> bool:
    """Return True if this kernel has sock_diag for TCP: without it even our own sockets are not found."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen(1)
        port = own.getsockname()[1].to_bytes(2, "big")
        addresses = [_pack_address("127.0.0.1"), bytes(4)]
        return _ask_kernel(socket.AF_INET, [port, bytes(2)], addresses) is not None


def _ask_kernel(family: int, ports: list[bytes], addresses: list[bytes]) -> Holder | None:
    """Ask by sock_diag(7). Raises OSError if the kernel cannot answer."""
    question = _QUESTION.pack(
        *(family, _PROTOCOL, 0, 0, _ANY_STATE, *ports, *addresses), *(0, _NO_COOKIE, _NO_COOKIE)
    )
    header = _HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_SECONDS)
        kernel.send(header + question)
        reply = kernel.recv(8192)
    if _HEADER.unpack_from(reply)[1] != _SOCK_DIAG_BY_FAMILY:
        (number,) = struct.unpack_from("=i", reply, _HEADER.size)
        if number == -errno.ENOENT:
            return None
        raise OSError(-number, "sock_diag")
    told = _ANSWER.unpack_from(reply, _HEADER.size)
    holder = Holder(int(told[9]), int(told[10]))
    # A listener answers if no such connection exists.
    same = [told[4], told[5]] == ports
    return holder if holder.inode and same else None


def _pack_address(address: str) -> bytes:
    """Return an address in bytes; one of IPv4 in IPv6's form is the former. Raises ValueError."""
    bare = address.partition("%")[0]
    bare = bare[7:] if bare.startswith("::ffff:") and "." in bare else bare
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in bare else socket.AF_INET, bare)
    except OSError:
        raise ValueError(f"{address!r} is no address") from None
