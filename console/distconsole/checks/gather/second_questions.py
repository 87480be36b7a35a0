"""Second questions to the hosts: what the others' names mean there, what the kernel says of lost connections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from distconsole.checks.facts.evidence import ALONE, Outcome
from distconsole.checks.facts.network import Edge, NameFacts
from distconsole.checks.facts.node import KernelFacts, OsFacts
from distconsole.checks.gather.nodes import BUDGET_OVER, Gathering

SECONDS = 2.0


def ask_kernels(gathering: Gathering, broken: Iterable[Edge]) -> None:
    """Read the kernel's log on both ends of connections that failed, as it is since they did."""
    names = {name for edge in broken for name in (edge.source, edge.target)}
    hosts = [host for host in gathering.reached() if host.name in names]
    seconds = gathering.left(SECONDS)
    if not hosts or seconds < SECONDS:
        return
    for _ in gathering.ask_facts(hosts, KernelFacts, "kernel", seconds):
        pass


RESOLVE_SECONDS = 6.0
"""A resolver asks its first dead server for 5 s (resolv.conf(5))."""


def ask_names(gathering: Gathering) -> Iterator[str]:
    """Have every reached host resolve all names; yields each host when it has answered."""
    known = gathering.view((OsFacts,)).of(OsFacts)
    names = sorted({name for f in known.values() for name in (f.hostname, f.fqdn) if name})
    hosts = gathering.reached()
    seconds = gathering.left(RESOLVE_SECONDS)
    if len(gathering.hosts) < 2:
        gathering.lack((NameFacts,), Outcome.SKIPPED, "one host")
    elif len(hosts) < 2:
        gathering.lack((NameFacts,), Outcome.COULD_NOT_RUN, ALONE)
    elif seconds > 0.1:
        yield from gathering.ask_facts(
            hosts, NameFacts, "names", seconds, lambda _: {"names": names}
        )
    gathering.lack((NameFacts,), Outcome.TIMED_OUT, BUDGET_OVER)
