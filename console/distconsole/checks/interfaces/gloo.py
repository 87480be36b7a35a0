"""Gloo's choice of address, as torch asks it to choose.

Sources: ``ProcessGroupGloo::createDefaultDevice`` in torch/csrc/distributed/c10d/ProcessGroupGloo.cpp
and ``lookupAddrForIface``, ``lookupAddrForHostname`` in gloo/transport/tcp/device.cc.
"""

from __future__ import annotations

from distconsole.checks.interfaces.node import Node, Pick

VARIABLE = "GLOO_SOCKET_IFNAME"


def choose(node: Node) -> tuple[Pick, ...]:
    """Return the address of each device: of the interfaces that were named, else of its own name."""
    wanted = node.variables.get(VARIABLE, "")
    if wanted:
        return tuple(on_interface(node, name, VARIABLE) for name in wanted.split(","))
    found = by_name(node)
    if found.address:
        return (found,)
    return (Pick("lo", "127.0.0.1", "its own name has no address of its own: loopback is left"),)


def on_interface(node: Node, interface: str, variable: str) -> Pick:
    """Return the first address of ``interface``, be it up or not, as ``lookupAddrForIface`` does."""
    for entry in node.addresses:
        if entry.iface == interface:
            return Pick(interface, entry.address, f"{variable}={interface}")
    return Pick("", "", f"{variable}={interface} has no address: it ends with an error")


def by_name(node: Node) -> Pick:
    if not node.named:
        return Pick("", "", "its own name has no address that it could listen on")
    address = node.named[0]
    return Pick(node.owner(address), address, "its own name")
