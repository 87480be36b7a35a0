"""What a node's agent said of it, as the planner reads it. It asks nothing."""

from __future__ import annotations

from distconsole.launch.addresses import NodeFacts
from distconsole.model.addresses import Interface
from distconsole.rpc.frames import Hello


def facts_of(hello: Hello, reached_at: str = "") -> NodeFacts:
    """Return the planner's facts.

    Args:
        hello: What the agent said when it was reached.
        reached_at: The address that the connection went to; empty where unknown.
    """
    return NodeFacts(
        python=hello.python,
        cpus=max(1, hello.cpus or 1),
        gpus=hello.gpus,
        interfaces=tuple(
            Interface(
                name=each.iface,
                address=each.address,
                prefix=each.prefix if each.prefix is not None else -1,
                up=each.up,
                loopback=each.loopback,
            )
            for each in hello.addresses
        ),
        boot_id=hello.boot_id or "",
        reached_at=reached_at,
        uid=hello.uid,
    )
