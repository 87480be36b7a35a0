"""One way to try a cure: a trial without it and with it at the same time, and what that proves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from distconsole.checks.facts.network import NetFacts
from distconsole.checks.facts.node import SshFacts
from distconsole.checks.gather.addresses import endpoints
from distconsole.checks.gather.context import CheckContext
from distconsole.checks.gather.engine_jobs import StartJob
from distconsole.errors import ConsoleError, NodeError
from distconsole.model.cluster import Host
from distconsole.model.findings import Cure, Finding, HostCure, Proof

TRIAL_SECONDS = 40.0
"""Of one trial at most, with its imports on a slow disk."""

PATIENCE_SECONDS, PATIENCE = 2.0, 0.5
"""Once the trial with the cure has ended, the one without may take so much more, and so many times
as long, before it is ended as one that hangs."""

ENDING_SECONDS = 20.0
ASK_SECONDS = 5.0
MAX_RANKS = 8
WORDS = 160


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Result of a trial; not ``able`` if a requirement was missing, which proves nothing."""

    ok: bool
    words: str
    able: bool = True


Trial = Callable[[threading.Event], TrialResult]
"""Runs to its end, or soon after the event is set."""


def run_both(without: Trial, with_cure: Trial) -> tuple[TrialResult, TrialResult]:
    """Run a trial without and with the cure; one that hangs is not waited for long."""
    enough = [threading.Event(), threading.Event()]
    # Futures, and no joins: an interrupted one takes its thread for ended (bpo-45274 in Python 3.11).
    results: list[Future[TrialResult]] = [Future(), Future()]
    threads = [
        threading.Thread(target=_run, args=each, name="proof", daemon=True)
        for each in zip((without, with_cure), enough, results, strict=True)
    ]
    began = time.monotonic()
    try:
        for thread in threads:
            thread.start()
        after = _result_of(results[1])
        wait(results[:1], PATIENCE_SECONDS + PATIENCE * (time.monotonic() - began))
        enough[0].set()
        return _result_of(results[0]), after
    finally:
        for event in enough:
            event.set()
        begun = [
            result
            for thread, result in zip(threads, results, strict=True)
            if thread.ident is not None
        ]
        wait(begun, ENDING_SECONDS)


def _run(trial: Trial, enough: threading.Event, result: Future[TrialResult]) -> None:
    try:
        result.set_result(trial(enough))
    except BaseException as error:  # noqa: BLE001 - raised where it is waited for
        result.set_exception(error)


def _result_of(trial: Future[TrialResult]) -> TrialResult:
    try:
        return trial.result()
    except ConsoleError as error:
        return TrialResult(False, error.message[:WORDS], able=False)


@dataclass(frozen=True, slots=True)
class ProofOnHosts:
    proof: Proof
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProofHosts:
    """Where proofs are made: hosts that answer, who else is blamed; ``start`` starts jobs by mpirun, if any."""

    context: CheckContext
    start: StartJob
    blamed: frozenset[str]

    @property
    def seconds(self) -> float:
        return self.context.left(TRIAL_SECONDS)

    def hosts(self, names: Sequence[str], most: int = MAX_RANKS) -> list[Host]:
        """Return the hosts that answer, and for a single one a peer."""
        meet = endpoints(self.context.view((NetFacts, SshFacts)))
        able = [host for host in self.context.reached() if host.name in meet]
        found = [host for host in able if host.name in names][:most]
        if len(found) == 1:
            others = [host for host in able if host.name not in names]
            others.sort(key=lambda host: host.name in self.blamed)
            found += others[:1]
        return found

    def reached(self, names: Sequence[str]) -> list[Host]:
        return [host for host in self.context.reached() if host.name in names]

    def ask(self, host: Host, group: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return a probe's answer; one that has none gives an empty one with ``error``."""
        try:
            return self.context.ask(host, group, ASK_SECONDS, args)
        except NodeError as error:
            return {"error": error.message}

    def compare(
        self, ran: str, hosts: Sequence[Host], without: Trial, with_cure: Trial
    ) -> ProofOnHosts | None:
        """Run both trials at once on ``hosts``; return the proof."""
        began = self.context.clock()
        before, after = run_both(without, with_cure)
        seconds = self.context.clock() - began
        return conclude(
            f"{ran} on {','.join(host.name for host in hosts)}", before, after, hosts, seconds
        )


Prover = Callable[[ProofHosts, Sequence[Finding]], ProofOnHosts | None]
"""Tries the cure of the findings of one check; None if it could not be tried."""


def conclude(
    ran: str, before: TrialResult, after: TrialResult, hosts: Sequence[Host], seconds: float
) -> ProofOnHosts | None:
    """Return the proof of two trials; None if a requirement of one was missing."""
    if not (before.able and after.able):
        return None
    proof = Proof(
        ran=ran,
        before=f"could not be made to fail: {before.words}" if before.ok else before.words,
        after="" if before.ok else after.words,
        cured=after.ok and not before.ok,
        seconds=round(seconds, 3),
    )
    return ProofOnHosts(proof, tuple(host.name for host in hosts))


def change_for(cures: Sequence[Cure], name: str) -> HostCure:
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
    cures = [found.cure for found in findings if found.cure is not None]
    return {host.name: change_for(cures, host.name) for host in hosts}


def all_hosts(findings: Sequence[Finding]) -> list[str]:
    return list(dict.fromkeys(name for found in findings for name in found.hosts))
