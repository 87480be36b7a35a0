"""NCCL's choice of interfaces for its bootstrap and, without InfiniBand, for its data.

Sources: ``ncclFindInterfaces`` in src/misc/socket.cc, ``ncclOsFindInterfaces`` in src/os/linux.cc
(before: ``findInterfaces`` in socket.cc) and ``matchIfList`` in src/misc/utils.cc of NVIDIA/nccl.
Interfaces without a carrier are left out as by newer versions; older ones take them too. There is no
GPU on the machines on which this is tested: the rules are from the source alone.
"""

from __future__ import annotations

from distconsole.checks.interfaces.node import Node, Pick

VARIABLE = "NCCL_SOCKET_IFNAME"
FAMILIES = {"AF_INET": 4, "AF_INET6": 6}
MAX_INTERFACES = 16
"""MAX_IFS of src/include/socket.h."""

BY_ITSELF = (
    ("ib", "it takes interfaces called ib… first"),
    ("^docker,lo,virbr", "the first that is not docker…, lo… or virbr…"),
    ("docker", "nothing else than docker… is there"),
    ("lo", "nothing else than lo… is there"),
    ("virbr", "nothing else than virbr… is there"),
)
"""Its preferences without a setting, in order."""


def choose(node: Node) -> tuple[Pick, ...]:
    """Return its choices; the first is the bootstrap's."""
    wanted = node.variables.get(VARIABLE, "")
    if len(wanted) > 1:
        found = _matching(node, wanted, f"{VARIABLE}={wanted}")
        return found or (Pick("", "", f"{VARIABLE}={wanted} is none that it has"),)
    found = next(filter(None, (_matching(node, words, how) for words, how in BY_ITSELF)), ())
    return found or (Pick("", "", "it has no interface"),)


def data(node: Node) -> str:
    """Return the InfiniBand devices for its data, as text; empty if it uses sockets.

    ``ncclIbInit`` in src/transport/net_ib.cc: NCCL_IB_DISABLE, NCCL_IB_HCA with the grammar of
    interfaces; NCCL_NET=Socket keeps to sockets.
    """
    variables = node.variables
    if variables.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        return ""
    if variables.get("NCCL_NET", "").lower() == "socket":
        return ""
    wanted = variables.get("NCCL_IB_HCA", "")
    return ",".join(name for name in node.infiniband if not wanted or matches(name, wanted))


def matches(name: str, words: str) -> bool:
    """Whether ``words`` (``^`` for all but, ``=`` for the exact name, else prefixes) mean ``name``."""
    inverted = words.startswith("^")
    words = words[1:] if inverted else words
    exact = words.startswith("=")
    words = words[1:] if exact else words
    listed = [word.partition(":")[0] for word in words.split(",")]
    listed = [word for word in listed if word]
    hit = not listed or any(name == w if exact else name.startswith(w) for w in listed)
    return hit != inverted


def _matching(node: Node, words: str, how: str) -> tuple[Pick, ...]:
    family = FAMILIES.get(node.variables.get("NCCL_SOCKET_FAMILY", ""))
    picks: dict[str, Pick] = {}
    for entry in node.addresses:
        if not node.running(entry) or family not in (None, entry.family):
            continue
        if entry.loopback and entry.family == 6:
            continue
        if matches(entry.iface, words):
            picks.setdefault(entry.iface, Pick(entry.iface, entry.address, how))
    return tuple(picks.values())[:MAX_INTERFACES]
