"""State of a check: facts and tried connections; it asks the nodes."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from distconsole.checks.engine.target import HostLaunch, Launch
from distconsole.checks.facts.evidence import HostEvidence, Outcome, View
from distconsole.checks.facts.node import Facts, convert
from distconsole.errors import NodeError
from distconsole.model import outcome as fan
from distconsole.model.cluster import Host
from distconsole.model.expectation import NOTHING_EXPECTED, Expectation
from distconsole.model.names import HostName
from distconsole.model.requests import Check
from distconsole.rpc.fanout import iter_outcomes
from distconsole.rpc.link import NodeLink
from distconsole.session import ANSWER_SECONDS, Session, probe

F = TypeVar("F", bound=Facts)

MASTER_PORT = 29500
"""torch's and most scripts' default rendezvous port."""

RENDEZVOUS_PORTS = (MASTER_PORT, 29400)
"""And that of torchrun's own rendezvous, c10d."""

BUDGET_OVER = "the budget was over"
NOTHING_WRITTEN = "nothing is written without a script, or --level full"


def expected_of(session: Session) -> dict[str, Expectation]:
    config, name = session.config, session.cluster.name
    cluster = config.clusters.get(name) if name is not None else None
    found = {str(host.name): config.expected(host.name, cluster) for host in session.cluster.hosts}
    return {host: expected for host, expected in found.items() if expected != NOTHING_EXPECTED}


@dataclass(slots=True)
class CheckContext:
    """The evidence so far and the time left (``clock``: monotonic seconds); ``lost``: by host why it is silent."""

    request: Check
    session: Session
    needed: frozenset[type[Facts]]
    clock: Callable[[], float] = time.monotonic
    hosts: dict[HostName, HostEvidence] = field(init=False)
    links: dict[HostName, NodeLink] = field(default_factory=dict)
    lost: dict[HostName, NodeError] = field(default_factory=dict)
    given_up: threading.Event = field(default_factory=threading.Event)
    torch_token: str = field(default_factory=lambda: secrets.token_hex(16))
    """By what the processes are known that have imported torch and fork the ranks of short jobs."""
    launch: Launch | None = None
    began: float = field(init=False)
    expected: Mapping[str, Expectation] = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()
        self.expected = expected_of(self.session)
        self.hosts = {host.name: HostEvidence(host) for host in self.session.cluster.hosts}

    def left(self, wanted_seconds: float) -> float:
        """Return ``wanted_seconds``, or less when the budget ends before."""
        if self.request.budget_seconds is None:
            return wanted_seconds
        return min(wanted_seconds, self.began + self.request.budget_seconds - self.clock())

    def view(self, kinds: tuple[type[Facts], ...] = ()) -> View:
        return View(
            tuple(host for host in self.hosts.values() if host.why_not(kinds) is None),
            tuple(self.hosts),
            self.request.nproc,
            self.launch,
            self.expected,
        )

    def reached(self) -> list[Host]:
        return [evidence.host for name, evidence in self.hosts.items() if name in self.links]

    def planned(self, host: Host) -> HostLaunch | None:
        return self.launch.hosts.get(host.name) if self.launch is not None else None

    def mark_missing(self, kinds: tuple[type[Facts], ...], outcome: Outcome, why: str) -> None:
        for host in self.hosts.values():
            for kind in kinds:
                host.mark_missing(kind, outcome, why)

    def ask(
        self, host: Host, group: str, seconds: float, args: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the facts of one probe; raises NodeError if the host does not answer, or cannot."""
        return probe(self.links[host.name], group, seconds, args)

    def ask_facts(
        self,
        hosts: Iterable[Host],
        kind: type[Facts],
        group: str,
        seconds: float,
        args: Callable[[Host], Mapping[str, Any]] = lambda _: {},
        take: Callable[[HostEvidence, dict[str, Any]], None] | None = None,
    ) -> Iterator[str]:
        """Ask ``hosts`` at once for facts of ``kind``; ``take`` adds other answers; yields each that is through."""
        for outcome in self.ask_all(hosts, group, seconds, args):
            evidence = self.hosts[outcome.host]
            if isinstance(outcome, fan.Failed):
                evidence.mark_missing(kind, Outcome.COULD_NOT_RUN, outcome.error.message)
            elif take is not None:
                take(evidence, outcome.value)
            else:
                add_answer(evidence, kind, outcome.value)
            yield outcome.host

    def ask_all(
        self,
        hosts: Iterable[Host],
        group: str,
        seconds: float,
        args: Callable[[Host], Mapping[str, Any]],
    ) -> Iterator[fan.Outcome[dict[str, Any]]]:
        def ask(host: Host) -> dict[str, Any]:
            return self.ask(host, group, seconds, args(host))

        return self.on_each(list(hosts), ask, seconds)

    def time_for(self, kind: type[Facts], wanted_seconds: float, least_seconds: float) -> float:
        """Return the remaining part of the wanted seconds; if that is too short, note it and return 0."""
        seconds = self.left(wanted_seconds)
        if seconds >= least_seconds:
            return seconds
        self.mark_missing((kind,), Outcome.TIMED_OUT, BUDGET_OVER)
        return 0.0

    def on_each(
        self, hosts: list[Host], work: Callable[[Host], dict[str, Any]], seconds: float
    ) -> Iterator[fan.Outcome[dict[str, Any]]]:
        allowed = seconds + 2 * ANSWER_SECONDS
        return iter_outcomes(hosts, work, seconds=allowed, linked=self.session.has_link)

    def stop(self, hosts: Iterable[Host], group: str, token: str, seconds: float) -> None:
        """Have ``hosts`` end what began there with ``token``; one that does not answer is let be."""
        list(self.ask_all(hosts, group, seconds, lambda _: {"token": token}))


def ports_of(context: CheckContext) -> tuple[int, ...]:
    """Return the rendezvous ports that matter: that of the launch if it fixes one, else the usual ones."""
    launch = context.launch
    if launch is None:
        return RENDEZVOUS_PORTS
    return () if launch.port is None else (launch.port,)


def fixed_port(context: CheckContext) -> int:
    """Return the port that all hosts try to reach on each other: the launch's, else the usual one."""
    return next(iter(ports_of(context)), MASTER_PORT)


def interpreter(context: CheckContext, host: Host) -> dict[str, Any]:
    """Return how a probe starts the interpreter of the ranks, with the launch's variables if there is one."""
    planned = context.planned(host)
    if planned is None:
        python = context.links[host.name].python
        return {"python": python, "setup": host.setup, "container": host.container}
    return {
        "python": planned.python,
        "setup": planned.setup,
        "container": planned.container,
        "workdir": planned.workdir,
        "env": dict(planned.env),
        "unset": list(planned.unset),
    }


def add_answer(evidence: HostEvidence, kind: type[Facts], answer: object) -> None:
    """Add a node's answer as facts of ``kind``; one that does not fit is not believed."""
    facts = believe(evidence, kind, answer)
    if facts is not None:
        evidence.add_facts(facts, answer if isinstance(answer, dict) else None)


def believe(
    evidence: HostEvidence, kind: type[F], answer: object, lacking: type[Facts] | None = None
) -> F | None:
    """Return a node's answer as ``kind``; where it does not fit, None.

    Then ``evidence`` lacks ``lacking``, or ``kind`` where the facts sought are the answer itself.
    """
    try:
        return convert(kind, answer)
    except ValueError as error:
        why = f"the node's answer is not as agreed: {error}"
        evidence.mark_missing(lacking or kind, Outcome.COULD_NOT_RUN, why)
        return None
