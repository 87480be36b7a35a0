"""MPICH and Intel MPI: what their ranks take cannot be foretold.

Both leave it to a transport, libfabric (OFI) or UCX. Which one depends on how the library was built,
and which device that takes on the providers and drivers that it finds when a rank starts.
"""

from __future__ import annotations

from distconsole.checks.interfaces.node import Node, Pick
from distconsole.model.reports import NOT_FORETOLD

FAMILIES = ("MPICH", "Intel MPI")
STEERING = (
    *("FI_PROVIDER", "FI_TCP_IFACE", "FI_SOCKETS_IFACE", "I_MPI_OFI_PROVIDER"),
    *("UCX_NET_DEVICES", "UCX_TLS", "MPICH_INTERFACE_HOSTNAME"),
)
"""Variables by which people steer it, whichever it is."""


def choose(node: Node) -> tuple[Pick, ...]:
    """Return the one choice that is none, with what is set that may steer it."""
    told = [f"{name}={node.variables[name]}" for name in STEERING if name in node.variables]
    how = f"{NOT_FORETOLD}: libfabric or UCX, as it was built, takes what it finds at the start"
    return (Pick("", "", f"{how}; set is {', '.join(told)}" if told else how),)
