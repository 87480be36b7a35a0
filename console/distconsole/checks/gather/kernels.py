"""Asks hosts that do not reach each other what their kernels say of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distconsole.checks.facts.host import KernelFacts
from distconsole.checks.facts.network import Edge
from distconsole.checks.gather.nodes import Gathering, learn_outcome
from distconsole.model.cluster import Host

SECONDS = 2.0


def ask_kernels(gathering: Gathering, broken: Iterable[Edge]) -> None:
    """Read the kernel's log on both ends of connections that failed, as it is since they did."""
    names = {name for edge in broken for name in (edge.source, edge.target)}
    hosts = [host for host in gathering.reached() if host.name in names]
    seconds = gathering.left(SECONDS)
    if not hosts or seconds < SECONDS:
        return

    def ask(host: Host) -> dict[str, Any]:
        return gathering.ask(host, "kernel", seconds, {})

    for outcome in gathering.on_each(hosts, ask, seconds):
        learn_outcome(gathering.hosts[outcome.host], KernelFacts, outcome)
