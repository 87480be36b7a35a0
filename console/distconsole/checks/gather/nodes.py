"""The evidence of a check, and what each node can say by itself, asked all at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from distconsole.checks.engine.target import Launch
from distconsole.checks.facts.evidence import ELSEWHERE, HostEvidence, Outcome, View
from distconsole.checks.facts.gpu import FabricFacts, GpuFacts
from distconsole.checks.facts.jobs import SlurmFacts
from distconsole.checks.facts.network import BetweenFacts, NetFacts, PortFacts
from distconsole.checks.facts.node import (
    ClockFacts,
    EnvFacts,
    Facts,
    HorovodFacts,
    ImportFacts,
    KernelFacts,
    MpiFacts,
    OsFacts,
    ProcFacts,
    PythonFacts,
    ShellFacts,
    ShmFacts,
    TorchFacts,
    convert,
)
from distconsole.checks.facts.script import FolderFacts, ScriptFacts
from distconsole.checks.gather.questions import (
    script_question,
    targets,
    touch_question,
    watched_folders,
)
from distconsole.errors import NodeError
from distconsole.model import outcome as fan
from distconsole.model.cluster import Host
from distconsole.model.expectation import NOTHING_EXPECTED, Expectation
from distconsole.model.names import HostName
from distconsole.model.requests import Check, Level
from distconsole.rpc.fanout import iter_outcomes
from distconsole.rpc.link import OFFSET_PINGS, NodeLink
from distconsole.session import Session

F = TypeVar("F", bound=Facts)

MASTER_PORT = 29500
"""torch's and most scripts' default rendezvous port."""

SPARE_PORTS = tuple(range(MASTER_PORT + 1, MASTER_PORT + 9))
"""What a job may take whose port is held."""

RENDEZVOUS_PORTS = (MASTER_PORT, 29400)
"""And that of torchrun's own rendezvous, c10d."""

LOCAL_SECONDS = {Level.QUICK: 8.0, Level.STANDARD: 20.0, Level.FULL: 40.0}
"""How long a host may take over all its local facts."""

FOLDER_SECONDS = {Level.QUICK: 1.5, Level.STANDARD: 4.0, Level.FULL: 8.0}
"""How long a filesystem may sleep over a question that a healthy one answers in milliseconds."""

MANY_HOSTS, FEW_PINGS = 32, 3
"""With more hosts than that, each one's clock is compared with fewer exchanges."""

ANSWER_SECONDS = 2.0
"""What an answer may take beyond the probe's own deadline."""

PYTHON_KINDS: tuple[type[Facts], ...] = (PythonFacts, TorchFacts, HorovodFacts, EnvFacts)
KINDS: tuple[type[Facts], ...] = (
    *(OsFacts, ShellFacts, MpiFacts, GpuFacts, PortFacts, ProcFacts, ImportFacts, KernelFacts),
    *(FabricFacts, ShmFacts, SlurmFacts, NetFacts, ScriptFacts, FolderFacts, BetweenFacts),
)
"""What a probe of the same name as the group finds; the former are from one probe, ``python_env``."""

BUDGET_OVER = "the budget was over"
NOTHING_WRITTEN = "nothing is written without a script, or --level full"
NOT_ALWAYS = {"port": ELSEWHERE, "folders": NOTHING_WRITTEN}
"""Groups of which not every host is asked, and why not."""


def expected_of(session: Session) -> dict[str, Expectation]:
    """Return by host what the configuration expects of it, where it expects anything."""
    config, name = session.config, session.cluster.name
    cluster = config.clusters.get(name) if name is not None else None
    found = {str(host.name): config.expected(host.name, cluster) for host in session.cluster.hosts}
    return {host: expected for host, expected in found.items() if expected != NOTHING_EXPECTED}


@dataclass(slots=True)
class CheckContext:
    """The evidence so far, and the time that is left.

    Attributes:
        needed: The groups of facts that the chosen checks need.
        clock: Monotonic seconds.
        lost: By host why it does not answer any more, as far as that was noticed.
        given_up: Set once nobody waits for the check any more.
        launch: The launch that is checked, once it is planned; None where none was given.
    """

    request: Check
    session: Session
    needed: frozenset[type[Facts]]
    clock: Callable[[], float] = time.monotonic
    hosts: dict[HostName, HostEvidence] = field(init=False)
    links: dict[HostName, NodeLink] = field(default_factory=dict)
    lost: dict[HostName, NodeError] = field(default_factory=dict)
    given_up: threading.Event = field(default_factory=threading.Event)
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
        """Return the hosts that have all of ``kinds``."""
        return View(
            tuple(host for host in self.hosts.values() if host.why_not(kinds) is None),
            tuple(self.hosts),
            self.request.nproc,
            self.launch,
            self.expected,
        )

    def reached(self) -> list[Host]:
        """Return the hosts that have a link, in order."""
        return [evidence.host for name, evidence in self.hosts.items() if name in self.links]

    def mark_missing(self, kinds: tuple[type[Facts], ...], outcome: Outcome, why: str) -> None:
        """Note for every host that lacks one of ``kinds`` why it does."""
        for host in self.hosts.values():
            for kind in kinds:
                host.mark_missing(kind, outcome, why)

    def ask(
        self, host: Host, group: str, seconds: float, args: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the facts of one probe.

        Raises:
            NodeError: if the host does not answer, or cannot.
        """
        answer = self.links[host.name].request(
            "probe",
            timeout=seconds + ANSWER_SECONDS,
            group=group,
            args={**args, "timeout": seconds},
        )
        facts = answer.get("facts")
        return facts if isinstance(facts, dict) else {}

    def ask_facts(
        self,
        hosts: Iterable[Host],
        kind: type[Facts],
        group: str,
        seconds: float,
        args: Callable[[Host], Mapping[str, Any]] = lambda _: {},
        take: Callable[[HostEvidence, dict[str, Any]], None] | None = None,
    ) -> Iterator[str]:
        """Ask ``hosts`` at once for facts of ``kind``; yields each that has answered, or cannot.

        Args:
            take: Adds an answer, where it is not the facts themselves.
        """
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
        """Run a probe on ``hosts`` at once and yield each outcome as it comes."""

        def ask(host: Host) -> dict[str, Any]:
            return self.ask(host, group, seconds, args(host))

        return self.on_each(list(hosts), ask, seconds)

    def time_for(self, kind: type[Facts], wanted_seconds: float, least_seconds: float) -> float:
        """Return what is left of the wanted seconds; where that is too short, note it and return 0."""
        seconds = self.left(wanted_seconds)
        if seconds >= least_seconds:
            return seconds
        self.mark_missing((kind,), Outcome.TIMED_OUT, BUDGET_OVER)
        return 0.0

    def on_each(
        self, hosts: list[Host], work: Callable[[Host], dict[str, Any]], seconds: float
    ) -> Iterator[fan.Outcome[dict[str, Any]]]:
        """Do ``work`` on ``hosts`` at once and yield each outcome as it comes."""
        return iter_outcomes(hosts, work, seconds=seconds + 2 * ANSWER_SECONDS, clock=self.clock)

    def stop(self, hosts: Iterable[Host], group: str, token: str, seconds: float) -> None:
        """Have ``hosts`` end what began there with ``token``; one that does not answer is let be."""
        for _ in self.ask_all(hosts, group, seconds, lambda _: {"token": token}):
            pass


def local_facts(context: CheckContext) -> Iterator[HostEvidence]:
    """Ask every reached host what it knows by itself, and yield each when it has answered."""
    seconds = context.left(LOCAL_SECONDS[context.request.level])
    hosts = context.reached()
    if seconds > 0.1 and hosts:
        peers = _peer_addresses(context)
        first = next(iter(context.hosts))
        work = partial(_ask_all, context, peers=peers, first=first, seconds=seconds)
        for outcome in context.on_each(hosts, work, seconds):
            evidence = context.hosts[outcome.host]
            if isinstance(outcome, fan.Failed):
                code = getattr(outcome.error, "code", "")
                _note_error(evidence, context.needed, code, outcome.error.message)
            else:
                _learn_all(evidence, outcome.value, context.needed)
            yield evidence
    context.mark_missing((*KINDS, *PYTHON_KINDS, ClockFacts), Outcome.TIMED_OUT, BUDGET_OVER)


def _peer_addresses(context: CheckContext) -> list[str]:
    """Return addresses of the hosts, by what their agents said, a few of each."""
    found: list[str] = []
    for link in context.links.values():
        usable = [entry.address for entry in link.hello.addresses if not entry.loopback]
        found += [address for address in usable if not address.startswith("fe80:")][:4]
    return list(dict.fromkeys(found))[:4096]


def _ask_all(
    context: CheckContext, host: Host, *, peers: list[str], first: str, seconds: float
) -> dict[str, Any]:
    link = context.links[host.name]
    offset = link.clock_offset(OFFSET_PINGS if len(context.hosts) <= MANY_HOSTS else FEW_PINGS)
    probes = [
        {"name": name, "group": group, "args": args, "seconds": seconds}
        for name, group, args in _questions(context, host, peers, first)
    ]
    answers = context.ask(host, "many", seconds, {"probes": probes}).get("answers", {})
    return {
        "clock": {"offset_seconds": offset.seconds, "rtt_seconds": offset.rtt_seconds},
        "answers": answers if isinstance(answers, dict) else {},
    }


def _questions(
    context: CheckContext, host: Host, peers: list[str], first: str
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    needed = context.needed
    if context.launch is not None:
        first = next(iter(context.launch.hosts), first)
    deep = context.request.level is Level.FULL
    quick = context.request.level is Level.QUICK
    shell = interpreter(context, host)
    if needed & set(PYTHON_KINDS):
        load = not quick and HorovodFacts in needed
        yield "python_env", "python_env", {**shell, "load": load}
    arguments: dict[str, dict[str, Any]] = {
        "os": {
            "paths": watched_folders(context.launch, host),
            "patience_seconds": FOLDER_SECONDS[context.request.level],
        },
        "mpi": {"setup": host.setup},
        "net": {"peers": peers},
        "slurm": {"names": [str(host.name)]},
        "between": {
            # In the order of the hosts, not in that in which the links came about.
            "targets": targets(
                {each.name: context.links[each.name] for each in context.reached()}, host
            )
            if BetweenFacts in needed
            else []
        },
        "import": shell,
        "gpu": {"health": not quick},
        "port": {"ports": [*ports_of(context)[:1], *SPARE_PORTS]},
        "proc": {"ports": ports_of(context), "patience_seconds": 1.0 if quick else 3.0},
        "script": script_question(context.launch, shell) if context.launch else {},
        "folders": touch_question(context.launch),
    }
    without = {"port"} if host.name != first or not ports_of(context) else set()
    if context.launch is None and not deep:
        without.add("folders")
    for kind in KINDS:
        if kind in needed and kind.group not in without:
            yield kind.group, kind.group, arguments.get(kind.group, {})


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
    launch = context.launch
    planned = launch.hosts.get(host.name) if launch is not None else None
    if planned is None:
        return {"python": context.links[host.name].python, "setup": host.setup}
    return {
        "python": planned.python,
        "setup": planned.setup,
        "env": dict(planned.env),
        "unset": list(planned.unset),
    }


def _learn_all(
    evidence: HostEvidence, said: Mapping[str, Any], needed: frozenset[type[Facts]]
) -> None:
    add_answer(evidence, ClockFacts, said["clock"])
    answers = said["answers"]
    inspected = _facts_or_reason(evidence, answers.get("python_env"), PYTHON_KINDS)
    for kind in PYTHON_KINDS:
        if inspected is not None:
            add_answer(evidence, kind, inspected.get(kind.group))
    for kind in KINDS:
        if kind.group in NOT_ALWAYS and kind.group not in answers:
            evidence.mark_missing(kind, Outcome.SKIPPED, NOT_ALWAYS[kind.group])
        elif kind in needed:
            found = _facts_or_reason(evidence, answers.get(kind.group), (kind,))
            if found is not None:
                add_answer(evidence, kind, found)


def _facts_or_reason(
    evidence: HostEvidence, answer: object, kinds: tuple[type[Facts], ...]
) -> dict[str, Any] | None:
    """Return what a probe found; else note why not."""
    if not isinstance(answer, dict):
        return None
    facts, error = answer.get("facts"), answer.get("error")
    if isinstance(facts, dict):
        return facts
    code = error.get("code") if isinstance(error, dict) else ""
    why = error.get("message", "") if isinstance(error, dict) else "the answer is not as agreed"
    _note_error(evidence, kinds, code, str(why)[:300])
    return None


def _note_error(
    evidence: HostEvidence, kinds: Iterable[type[Facts]], code: object, why: str
) -> None:
    outcome = Outcome.TIMED_OUT if code == "timed_out" else Outcome.COULD_NOT_RUN
    for kind in kinds:
        evidence.mark_missing(kind, outcome, why)


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
