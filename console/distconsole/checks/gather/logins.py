"""Whom a host's own ssh tries, and by which names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distconsole.model.cluster import Host
from distconsole.model.names import HostName
from distconsole.rpc.link import NodeLink

ALL_PAIRS = 8
"""With more hosts each tries the next one only."""

MOST_TRIED = 64


def targets(links: Mapping[HostName, NodeLink], host: Host) -> list[dict[str, Any]]:
    """Return the targets for the probe ``between`` on ``host``; the first host tries everybody.

    Args:
        links: In the order of the hosts.
        host: One of them.
    """
    names = list(links)
    others = [name for name in names if name != host.name]
    if len(names) > ALL_PAIRS and host.name != names[0]:
        others = [names[(names.index(host.name) + 1) % len(names)]]
    found = []
    for name in others[:MOST_TRIED]:
        hello = links[name].hello
        addresses = [each.address for each in hello.addresses if not each.loopback][:1]
        known = dict.fromkeys((str(name), hello.hostname, *addresses))
        found.append({"name": str(name), "as": list(known)})
    return found
