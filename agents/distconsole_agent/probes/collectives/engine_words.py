"""Parses the transports in the output of NCCL (or RCCL) with NCCL_DEBUG=INFO: pure, bounded.

The formats are those of NVIDIA/nccl 2.18 to 2.28: src/init.cc, src/transport/{p2p,shm,net,net_ib,net_socket}.cc,
src/graph/{paths,topo}.cc. RCCL prints the same, and ends the lines of channels with its communicator.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any

from distconsole_agent.system.memory import memory_file
from distconsole_agent.system.tcp_sockets import ESTABLISHED, tcp_sockets

MAX_BYTES = 4 << 20
MAX_LINE = 2048
MAX_PAIRS, MAX_DEVICES, MAX_TOLD = 512, 64, 8
MAX_TEXT = 200

DEBUG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET"}
"""Variables that make NCCL print the parsed lines: INIT prints channels, NET prints queue pairs and GPUDirect."""

_SAID = re.compile(r"NCCL (INFO|WARN) (.*)")
_VERSION = re.compile(r"(?:NCCL|RCCL) version\s*:?\s*([\d.]+[\w.+-]*)")
_DEVICE = re.compile(r"(?:\]|\{|,) ?([\w.-]+):(\d+)/(IB|RoCE)")
_INTERFACE = re.compile(r"\[\d+\]([\w.@-]+):[^\s<]+<")
_CHANNEL = re.compile(
    r"Channel (\d{1,4})(?:/\d+)? : (\d{1,7})\[\w+\] -> (\d{1,7})\[\w+\](?: \[(?:send|receive)\])? via (.+)"
)
_NET = re.compile(r"NET/(.+?)/\d+(?:\(\d+\))?(/GDRDMA)?(?:\(PCI\))?(?:/Shared)?$")
_CHANNELS = re.compile(r"(\d+) coll channels")
_NO_GDR = re.compile(r"GPU Direct RDMA Disabled for (HCA \d+ '[^']*'|GPU .*)")
_GID = re.compile(r"Dev (\d+) Port \d+ .*GID (-?\d+) \(([0-9A-Fa-f]+)/[0-9A-Fa-f]+\)")
_SET = re.compile(r"(NCCL_\w+) set by environment to (\S+?)\.?$")
_TROUBLE = re.compile(r"P2P is disabled between|mismatched physical devices|iommu|\bACS\b", re.I)

LINK_LOCAL = 0xFE80
"""The first 16 bits of an address that no router passes on."""


class NcclWords:
    """NCCL's lines of one process so far. ``take`` reads text as it comes, and passes over unknown lines."""

    def __init__(self) -> None:
        self._rest = ""
        self._left = MAX_BYTES
        self._told: dict[str, object] = {}
        self._devices: dict[str, None] = {}
        self._interfaces: dict[str, None] = {}
        self._ways: dict[tuple[int, int, str], set[int]] = {}
        self._lists: dict[str, dict[Any, None]] = {
            name: {} for name in ("gids", "without_gdr", "trouble")
        }
        self._set: dict[str, str] = {}

    def take(self, text: str) -> None:
        """Read the text since the last call, cut anywhere; after ``MAX_BYTES`` nothing more."""
        text = self._rest + text[: self._left]
        self._left -= min(self._left, len(text) - len(self._rest))
        lines = text.split("\n")
        self._rest = lines.pop()[-MAX_LINE:]
        for line in lines:
            self._read(line[:MAX_LINE].rstrip())

    def facts(self) -> dict[str, Any] | None:
        """Return the facts; None without a line of NCCL's.

        ``pairs`` holds ``[rank, rank, way, channels]`` in the communicators' own numbers, ``gids``
        ``[device, index, whether link-local]``, ``set`` the variables that it found.
        """
        self.take("\n")
        lists = {name: list(found) for name, found in self._lists.items() if found}
        if not (self._told or self._ways or lists or self._devices):
            return None
        return {
            "engine": "NCCL",
            **self._told,
            "devices": list(self._devices),
            "interfaces": list(self._interfaces),
            "pairs": [[*key, len(found)] for key, found in sorted(self._ways.items())],
            "set": self._set,
            **lists,
        }

    def _read(self, line: str) -> None:
        if not line or ("NCCL" not in line and "RCCL" not in line):
            return
        version = _VERSION.search(line)
        if version:
            self._told.setdefault("version", version[1][:40])
        said = _SAID.search(line)
        if said is None:
            return
        kind, words = said[1], said[2].strip()
        if kind == "WARN" or _TROUBLE.search(words):
            self._list("trouble", words[:MAX_TEXT])
        channel = _CHANNEL.match(words)
        if channel is not None:
            number, source, target = (int(channel[at]) for at in (1, 2, 3))
            way = channel[4].partition(" comm ")[0].strip()
            net = _NET.match(way)
            if net is not None:
                way = f"NET/{net[1]}{net[2] or ''}"
            key = (source, target, way[:40])
            if key in self._ways or len(self._ways) < MAX_PAIRS:
                self._ways.setdefault(key, set()).add(number)
        else:
            self._read_rest(words)

    def _read_rest(self, words: str) -> None:
        if words.startswith("NET/"):
            self._read_network(words)
        found = _CHANNELS.match(words)
        if found:
            self._told.setdefault("channels", min(int(found[1]), 4096))
        found = _NO_GDR.search(words)
        if found:
            self._list("without_gdr", found[1][:MAX_TEXT])
        found = _SET.match(words)
        if found and len(self._set) < MAX_DEVICES:
            self._set[found[1][:60]] = found[2][:MAX_TEXT]

    def _read_network(self, words: str) -> None:
        if ": Using" in words and not words.startswith("NET/Socket"):
            for name, port, kind in _DEVICE.findall(words)[:MAX_DEVICES]:
                self._devices[f"{name}:{port}/{kind}"[:60]] = None
        elif ": Using" in words:
            self._interfaces.update(dict.fromkeys(_INTERFACE.findall(words)[:MAX_DEVICES]))
        elif "No device found" in words:
            self._told["no_device"] = True
        found = _GID.search(words)
        if found:
            # The prefix is in the order of the network, and printed as this machine's number.
            prefix = int(found[3][-4:].zfill(4)[2:] + found[3][-4:].zfill(4)[:2], 16)
            local = prefix & 0xFFC0 == LINK_LOCAL
            self._list("gids", (int(found[1][:6]), int(found[2][:6]), local))

    def _list(self, name: str, what: Any) -> None:
        if len(self._lists[name]) < MAX_TOLD * (4 if name == "gids" else 1):
            self._lists[name][what] = None


def read_nccl(text: str) -> dict[str, Any] | None:
    words = NcclWords()
    words.take(text)
    return words.facts()


def record_nccl() -> int:
    """Have NCCL in this process write its words into memory; returns the descriptor for ``recorded``."""
    descriptor = memory_file("nccl-words")
    os.environ.update(DEBUG, NCCL_DEBUG_FILE=f"/proc/self/fd/{descriptor}")
    return descriptor


def recorded(descriptor: int) -> dict[str, object] | None:
    text = os.pread(descriptor, MAX_BYTES, 0)
    return read_nccl(text.decode("utf-8", "replace"))


def own_sockets(without_port: int | None = None) -> list[list[str]]:
    """Return the pairs of addresses of this process's TCP connections, those by a port left out.

    These are Gloo's, which logs none itself: the kernel knows each pair's addresses.
    """
    mine = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            mine.add(os.readlink(f"/proc/self/fd/{name}"))
    pairs: dict[tuple[str, str], None] = {}
    for each in tcp_sockets("/proc/self/net"):
        if each.state == ESTABLISHED and each.open_file in mine:
            (here, port), (there, other) = each.here, each.there
            if without_port not in (port, other):
                pairs[here, there] = None
    return [list(pair) for pair in list(pairs)[:MAX_PAIRS]]
