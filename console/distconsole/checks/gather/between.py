"""ssh between the hosts: whom each tries, and a plain mpirun over it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from distconsole.checks.facts.evidence import HostEvidence, Outcome
from distconsole.checks.facts.jobs import MpiSshFacts
from distconsole.checks.facts.network import BetweenFacts, NetFacts
from distconsole.checks.facts.node import MpiFacts, SshFacts
from distconsole.checks.gather.addresses import endpoints, machines
from distconsole.checks.gather.collective import able, job_seconds
from distconsole.checks.gather.nodes import Gathering, learn
from distconsole.errors import NodeError
from distconsole.model.cluster import Host

MPIRUN_SECONDS = 15.0
LEAST_SECONDS = 3.0
MOST_HOSTS = 64


def mpirun(gathering: Gathering, jobs: int) -> Iterator[str]:
    """Start one rank a host by a plain mpirun on the first; yields each host when it is over."""
    hosts = able(gathering, MpiSshFacts, _without_mpi)[:MOST_HOSTS]
    names = _names(gathering, hosts)
    if len(hosts) < 2 or names is None:
        why = "no ssh from the first host to all others" if len(hosts) > 1 else "one host only"
        gathering.lack((MpiSshFacts,), Outcome.SKIPPED, why)
        return
    found = machines(gathering.view((NetFacts, SshFacts)))
    if len({found[host.name] for host in hosts}) < len(hosts):
        why = "hosts that are one machine, which mpirun cannot tell apart"
        gathering.lack((MpiSshFacts,), Outcome.SKIPPED, why)
        return
    seconds = min(MPIRUN_SECONDS, job_seconds(gathering, jobs))
    if seconds < LEAST_SECONDS:
        gathering.lack((MpiSshFacts,), Outcome.TIMED_OUT, "the budget was over")
        return
    first = hosts[0]
    evidence = gathering.hosts[first.name]
    try:
        answer = gathering.ask(first, "mpi.ssh", seconds, _words(gathering, first, names))
    except NodeError as error:
        evidence.lack(MpiSshFacts, Outcome.COULD_NOT_RUN, error.message)
    else:
        learn(evidence, MpiSshFacts, {**answer, "hosts": [str(host.name) for host in hosts]})
    for host in hosts[1:]:
        gathering.hosts[host.name].learn(MpiSshFacts())
    yield from (host.name for host in hosts)


def _without_mpi(evidence: HostEvidence) -> str:
    facts = evidence.known.get(MpiFacts)
    return "" if isinstance(facts, MpiFacts) and facts.present else "no mpirun"


def _names(gathering: Gathering, hosts: list[Host]) -> list[str] | None:
    """Return what the first host's ssh calls the hosts; None unless it reaches all of them."""
    facts = gathering.hosts[hosts[0].name].known.get(BetweenFacts) if hosts else None
    if not isinstance(facts, BetweenFacts):
        return None
    reached = {login.target: login.name for login in facts.logins if login.ok}
    own = gathering.links[hosts[0].name].hello.hostname
    names = [own, *(reached.get(str(host.name), "") for host in hosts[1:])]
    return names if all(names) else None


def _words(gathering: Gathering, first: Host, names: list[str]) -> dict[str, Any]:
    mpi = gathering.hosts[first.name].known[MpiFacts]
    assert isinstance(mpi, MpiFacts)
    chosen = endpoints(gathering.view((NetFacts, SshFacts))).values()
    return {
        "hosts": names,
        "family": mpi.family,
        "networks": list(dict.fromkeys(each.network for each in chosen if each.network)),
        "python": gathering.links[first.name].python,
        "setup": first.setup,
    }
