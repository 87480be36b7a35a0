"""The node's network addresses, asked of the kernel by netlink.

Formats: rtnetlink(7), linux/rtnetlink.h, linux/if_addr.h.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

_RTM_GETLINK, _RTM_GETADDR = 18, 22
_NLM_F_REQUEST, _NLM_F_DUMP = 1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_IFF_UP, _IFF_LOOPBACK = 1, 8
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBi")
_ATTRIBUTE = struct.Struct("=HH")
_ANSWER_SECONDS = 2.0
_RECEIVE_BYTES = 65536


def local_addresses() -> list[dict[str, Any]]:
    """Return ``iface, address, prefix, family, up, loopback`` of each address; empty if unknown."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
            netlink.settimeout(_ANSWER_SECONDS)
            netlink.bind((0, 0))
            request = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
            links = [_LINK.unpack_from(body) for body in _dump(netlink, _RTM_GETLINK, request)]
            return list(_addresses(netlink, {link[2]: link[3] for link in links}))
    except OSError:
        return []


def _addresses(netlink: socket.socket, flags: dict[int, int]) -> Iterator[dict[str, Any]]:
    for body in _dump(netlink, _RTM_GETADDR, _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
        family, prefix, _flags, _scope, index = _ADDRESS.unpack_from(body)
        if family not in (socket.AF_INET, socket.AF_INET6):
            continue
        attributes = dict(_attributes(body[_ADDRESS.size :]))
        # On a point-to-point link ADDRESS is the other side's and LOCAL is ours.
        raw = attributes.get(_IFA_LOCAL, attributes.get(_IFA_ADDRESS))
        if raw is None:
            continue
        try:
            name = socket.if_indextoname(index)
        except OSError:
            continue
        yield {
            "iface": name,
            "address": socket.inet_ntop(family, raw),
            "prefix": prefix,
            "family": 4 if family == socket.AF_INET else 6,
            "up": bool(flags.get(index, 0) & _IFF_UP),
            "loopback": bool(flags.get(index, 0) & _IFF_LOOPBACK),
        }


def _dump(netlink: socket.socket, kind: int, request: bytes) -> Iterator[bytes]:
    length = _HEADER.size + len(request)
    netlink.send(_HEADER.pack(length, kind, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0) + request)
    while True:
        data = netlink.recv(_RECEIVE_BYTES)
        while len(data) >= _HEADER.size:
            size, answer, _flags, _seq, _pid = _HEADER.unpack_from(data)
            if answer == _NLMSG_DONE:
                return
            if answer == _NLMSG_ERROR or size < _HEADER.size:
                raise OSError(os.strerror(5))
            yield data[_HEADER.size : size]
            data = data[(size + 3) & ~3 :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(data)
        if size < _ATTRIBUTE.size:
            return
        yield kind, data[_ATTRIBUTE.size : size]
        data = data[(size + 3) & ~3 :]
