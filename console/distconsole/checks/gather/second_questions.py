"""Second questions to the hosts: what the others' names mean there, what the kernel says of lost connections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from distconsole.checks.facts.evidence import ALONE, Outcome
from distconsole.checks.facts.network import Edge, NameFacts
from distconsole.checks.facts.node import KernelFacts, OsFacts
from distconsole.checks.gather.nodes import BUDGET_OVER, CheckContext

SECONDS = 2.0


def ask_kernels(context: CheckContext, broken: Iterable[Edge]) -> None:
    """Read the kernel's log on both ends of connections that failed, as it is since they did."""
    names = {name for edge in broken for name in (edge.source, edge.target)}
    hosts = [host for host in context.reached() if host.name in names]
    seconds = context.left(SECONDS)
    if not hosts or seconds < SECONDS:
        return
    for _ in context.ask_facts(hosts, KernelFacts, "kernel", seconds):
        pass


RESOLVE_SECONDS = 6.0
"""A resolver asks its first dead server for 5 s (resolv.conf(5))."""


def ask_names(context: CheckContext) -> Iterator[str]:
    """Have every reached host resolve all names; yields each host when it has answered."""
    known = context.view((OsFacts,)).of(OsFacts)
    names = sorted({name for f in known.values() for name in (f.hostname, f.fqdn) if name})
    hosts = context.reached()
    seconds = context.left(RESOLVE_SECONDS)
    if len(context.hosts) < 2:
        context.mark_missing((NameFacts,), Outcome.SKIPPED, "one host")
    elif len(hosts) < 2:
        context.mark_missing((NameFacts,), Outcome.COULD_NOT_RUN, ALONE)
    elif seconds > 0.1:
        yield from context.ask_facts(
            hosts, NameFacts, "names", seconds, lambda _: {"names": names}
        )
    context.mark_missing((NameFacts,), Outcome.TIMED_OUT, BUDGET_OVER)
