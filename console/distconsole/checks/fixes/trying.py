"""What every proof is made with: the hosts that answer, what a cure changes on each, the outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from distconsole.checks.facts.network import NetFacts
from distconsole.checks.facts.node import SshFacts
from distconsole.checks.fixes.trials import TRIAL_SECONDS, Came, Trial, both
from distconsole.checks.gather.addresses import Endpoint, endpoints
from distconsole.checks.gather.engine_job import StartJob
from distconsole.checks.gather.nodes import Gathering
from distconsole.model.cluster import Host
from distconsole.model.findings import Cure, Finding, HostCure, Proof

MAX_RANKS = 8


@dataclass(frozen=True, slots=True)
class Bench:
    """Where proofs are made: the hosts that answer, and who else is blamed for something.

    Attributes:
        start: Starts jobs by mpirun; None where there is nobody who does.
    """

    gathering: Gathering
    start: StartJob | None
    blamed: frozenset[str]

    @property
    def seconds(self) -> float:
        """What a trial may take now."""
        return self.gathering.left(TRIAL_SECONDS)

    def meet(self) -> dict[str, Endpoint]:
        """Return where each host is met, as ``run`` chooses."""
        return endpoints(self.gathering.view((NetFacts, SshFacts)))

    def hosts(self, names: Sequence[str], most: int = MAX_RANKS) -> list[Host]:
        """Return these hosts as far as they answer, and where that is one alone a peer for it."""
        meet = self.meet()
        able = [host for host in self.gathering.reached() if host.name in meet]
        found = [host for host in able if host.name in names][:most]
        if len(found) == 1:
            others = [host for host in able if host.name not in names]
            others.sort(key=lambda host: host.name in self.blamed)
            found += others[:1]
        return found

    def named(self, names: Sequence[str]) -> list[Host]:
        """Return those of these hosts that answer."""
        return [host for host in self.gathering.reached() if host.name in names]

    def compare(
        self, ran: str, hosts: Sequence[Host], without: Trial, with_cure: Trial
    ) -> Tried | None:
        """Run both trials at once on ``hosts``; return what came of them."""
        return outcome(f"{ran} on {join_names(hosts)}", *both(without, with_cure), hosts)


def join_names(hosts: Sequence[Host]) -> str:
    """Return the hosts as a proof names them."""
    return ",".join(host.name for host in hosts)


@dataclass(frozen=True, slots=True)
class Tried:
    """A proof, and the hosts that it speaks for."""

    proof: Proof
    hosts: tuple[str, ...]


Prover = Callable[[Bench, Sequence[Finding]], Tried | None]
"""Tries the cure of the findings of one check; None where it could not be tried at all."""


def outcome(
    ran: str, before: Came, after: Came, hosts: Sequence[Host], seconds: float | None = None
) -> Tried | None:
    """Return what came of both trials; None where one lacked what it needs.

    Args:
        ran: What was run.
        hosts: On which it was run.
        seconds: What both took; where they ran at once it is known from them.
    """
    if not (before.able and after.able):
        return None
    took = max(before.seconds, after.seconds) if seconds is None else seconds
    proof = Proof(
        ran=ran,
        before=f"could not be made to fail: {before.words}" if before.ok else before.words,
        after="" if before.ok else after.words,
        cured=after.ok and not before.ok,
        seconds=round(took, 3),
    )
    return Tried(proof, tuple(host.name for host in hosts))


def change_for(cures: Sequence[Cure], name: str) -> HostCure:
    """Return what all of ``cures`` together change on one host."""
    env: dict[str, str] = {}
    unset: list[str] = []
    setup: list[str] = []
    nic = address = ""
    for cure in cures:
        own = cure.hosts.get(name, HostCure())
        env |= {**cure.env, **own.env}
        unset += [*cure.unset, *own.unset]
        setup += [own.setup] if own.setup and own.setup not in setup else []
        nic, address = own.nic or nic, own.address or address
    return HostCure(
        env=env,
        unset=tuple(dict.fromkeys(unset)),
        nic=nic,
        address=address,
        setup="\n".join(setup),
    )


def changes(findings: Sequence[Finding], hosts: Sequence[Host]) -> dict[str, HostCure]:
    """Return by host what the cures of ``findings`` change there."""
    cures = [found.cure for found in findings if found.cure is not None]
    return {host.name: change_for(cures, host.name) for host in hosts}


def all_hosts(findings: Sequence[Finding]) -> list[str]:
    """Return the hosts that the findings name, each once."""
    return list(dict.fromkeys(name for found in findings for name in found.hosts))
