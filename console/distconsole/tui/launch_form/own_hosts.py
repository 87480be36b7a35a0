"""Hosts that a line names and that are the console's own: reached as those are. It reaches none."""

from __future__ import annotations

from dataclasses import replace

from distconsole.config.hostfile import read_list, written
from distconsole.config.ranges import RangeError
from distconsole.model.cluster import Cluster, Host

OF_HOST = ("user", "port", "python", "setup", "address", "nic", "node_dir")
"""What a host file or a cluster of the configuration says of a host, but how many ranks it has."""


def as_own(cluster: Cluster, own: Cluster) -> Cluster:
    """Return ``cluster`` with what only ``own`` says of a host of the same name."""

    def filled(host: Host) -> Host:
        known = own.host(host.name)
        if known is None:
            return host
        said = {name: getattr(host, name) or getattr(known, name) for name in OF_HOST}
        return replace(host, **said)

    return replace(cluster, hosts=tuple(map(filled, cluster.hosts)))


def list_as_own(hosts: str, own: Cluster) -> str:
    """Return a list of hosts with the users and ports that ``own`` has for them, so that it means the same elsewhere."""
    try:
        named = read_list(hosts)
    except RangeError:
        return hosts  # whoever reads it says what is wrong
    found = []
    for host in named:
        known = own.host(host.name)
        if known is not None:
            host = replace(host, user=host.user or known.user, port=host.port or known.port)
        found.append(host)
    return hosts if found == named else ",".join(map(written, found))
