"""Jobs by the engines that all hosts have: collectives by Horovod and by mpirun, and a plain mpirun over ssh.

The former are started as ``run`` starts them: the check gets that as a ``StartJob``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from distconsole.checks.engine.losses import find_dead_links, leave_out_for
from distconsole.checks.facts.evidence import HostEvidence, Outcome
from distconsole.checks.facts.jobs import (
    CollFacts,
    HorovodCollFacts,
    HorovodMpiFacts,
    MpiCollFacts,
    MpiSshFacts,
)
from distconsole.checks.facts.network import BetweenFacts, NetFacts
from distconsole.checks.facts.node import Facts, HorovodFacts, MpiFacts, SshFacts
from distconsole.checks.gather.addresses import endpoints, machines
from distconsole.checks.gather.collective import (
    Sweep,
    able,
    job_seconds,
    join_seconds,
    reports,
    slots_of,
    work_for,
)
from distconsole.checks.gather.nodes import CheckContext, add_answer
from distconsole.errors import ConsoleError, NodeError, PlanError
from distconsole.model.cluster import Host
from distconsole.model.requests import LauncherName, Level
from distconsole.session import Session

MPIRUN_SECONDS = 15.0
MOST_HOSTS = 64
TIMED = (1 << 20,)
"""Elements of the all-reduce that is timed: short ones would have to wait for Horovod's cycles."""


@dataclass(frozen=True, slots=True)
class EngineJob:
    """What to run.

    Attributes:
        launcher: ``horovod`` or ``mpi``.
        hosts: In the order of ranks; their ``slots`` say how many.
        work: What the ranks shall do (``collective_worker``).
        seconds: After so long what is left is killed.
        env: Added to every rank's environment.
        without: Variables that ``run`` sets by itself and this job shall not get, as if it were
            started by hand.
        given_up: Whether nobody waits for it any more.
        nic: The interface that every host shall use, where one was asked for.
    """

    launcher: LauncherName
    hosts: tuple[Host, ...]
    work: Mapping[str, Any]
    seconds: float
    env: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    given_up: Callable[[], bool] = lambda: False
    nic: str | None = None


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What came of it.

    Attributes:
        launcher: What it was started by: mpirun also starts a Horovod without Gloo.
        planned: The ranks of each host.
        ranks: What became of each host's ranks, as ``facts.RankReport`` has it.
        said: The last words of the engine itself, mpirun's for example.
    """

    launcher: str
    planned: Mapping[str, tuple[int, ...]]
    ranks: Mapping[str, tuple[dict[str, Any], ...]]
    said: tuple[str, ...] = ()


class StartJob(Protocol):
    """Starts a job, waits for its end, and leaves nothing of it on the hosts."""

    def __call__(self, session: Session, job: EngineJob, /) -> EngineAnswer:
        """Return what came of ``job``.

        Raises:
            PlanError: if ``run`` would refuse it.
            ConsoleError: if it cannot be started.
        """
        ...


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that a job can be started by.

    Attributes:
        stage: The check whose stage it is.
        kind: The facts that it gives.
        lacking: Why a host cannot take part for what it has not; empty if it can.
        mpirun: Whether mpirun starts the ranks.
        env: Variables that choose what the engine goes by.
        brief: Whether a few cases are enough at every level.
    """

    launcher: LauncherName
    name: str
    stage: str
    kind: type[CollFacts]
    lacking: Callable[[HostEvidence], str]
    mpirun: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    brief: bool = False


def _without_horovod(evidence: HostEvidence) -> str:
    facts = evidence.known.get(HorovodFacts)
    if not isinstance(facts, HorovodFacts) or not facts.present:
        return "no Horovod"
    if facts.torch_library is None or facts.load_error:
        return "a Horovod that does not work with the torch there"
    return ""


def _without_mpi(evidence: HostEvidence) -> str:
    facts = evidence.known.get(MpiFacts)
    return "" if isinstance(facts, MpiFacts) and facts.present else "no mpirun"


def _without_both(evidence: HostEvidence) -> str:
    """Where Horovod has one controller only, its own job went by that."""
    facts = evidence.known.get(HorovodFacts)
    built = facts.built if isinstance(facts, HorovodFacts) else None
    why = _without_horovod(evidence) or _without_mpi(evidence)
    return why or (
        "" if built and built.get("mpi") and built.get("gloo") else "one controller only"
    )


HOROVOD = Engine(
    LauncherName.HOROVOD, "Horovod", "horovod.init", HorovodCollFacts, _without_horovod
)
HOROVOD_BY_MPI = Engine(
    LauncherName.HOROVOD,
    "Horovod with both controllers",
    "horovod.by_mpi",
    HorovodMpiFacts,
    _without_both,
    mpirun=True,
    env={"HOROVOD_CONTROLLER": "mpi"},
    brief=True,
)
MPI = Engine(LauncherName.MPI, "mpirun", "mpi.launch", MpiCollFacts, _without_mpi, mpirun=True)
ENGINES = (HOROVOD, HOROVOD_BY_MPI, MPI)


def run_engine(
    context: CheckContext,
    engine: Engine,
    start: StartJob,
    sweep: Sweep | None,
    jobs: int,
) -> Iterator[str]:
    """Run the job by ``engine``, the first of ``jobs``; yields each host when it is over."""
    hosts = _everywhere(context, engine)
    if not hosts:
        return
    seconds = job_seconds(context, engine.kind, jobs)
    if not seconds:
        return
    placed = tuple(
        replace(host, slots=slots_of(context, host), python=python_of(context, host))
        for host in hosts
    )
    world = sum(host.slots or 1 for host in placed)
    timeout = join_seconds(context, seconds)
    level = Level.STANDARD if engine.brief else context.request.level
    work = work_for(level, sweep, seconds, timeout, world, TIMED)
    launch = context.launch
    own = dict(launch.env) if launch is not None else {}
    env = {**own, **engine.env, "HOROVOD_GLOO_TIMEOUT_SECONDS": str(int(timeout))}
    nic = launch.nic if launch is not None else None
    names = [host.name for host in hosts]

    def given_up() -> bool:
        return context.given_up.is_set() or bool(find_dead_links(context, names))

    job = EngineJob(engine.launcher, placed, work, seconds, env, given_up=given_up, nic=nic)
    try:
        answer = start(context.session, job)
    except PlanError as error:
        for host in hosts:
            refused = engine.kind(
                launcher=engine.launcher.value, refused=error.message, refused_hint=error.hint
            )
            context.hosts[host.name].add_facts(refused)
    except ConsoleError as error:
        context.mark_missing((engine.kind,), Outcome.COULD_NOT_RUN, error.message)
    else:
        for host in hosts:
            facts = _facts(engine, host, answer, world, timeout)
            context.hosts[host.name].add_facts(facts)
    if lost := find_dead_links(context, names):
        leave_out_for(context, engine.kind, names, lost)
    yield from (host.name for host in hosts)


def python_of(context: CheckContext, host: Host) -> str | None:
    """Return the interpreter that the launch names for a host's ranks, else what it has itself."""
    launch = context.launch
    planned = launch.hosts.get(host.name) if launch is not None else None
    return host.python if planned is None else planned.python


def _everywhere(context: CheckContext, engine: Engine) -> list[Host]:
    """Return the hosts of the job; none, with the reason noted, unless all have the engine."""
    reached = context.reached()
    lacking = {host.name: engine.lacking(context.hosts[host.name]) for host in reached}
    without = [name for name, why in lacking.items() if why]
    for host in reached if without else ():
        why = lacking[host.name] or f"{engine.name} is not on every host (not on {without[0]})"
        context.hosts[host.name].mark_missing(engine.kind, Outcome.SKIPPED, why)
    if without:
        return []
    hosts = able(context, engine.kind, engine.lacking)
    if engine.mpirun and _share_a_machine(context, hosts, engine.kind):
        return []
    return hosts


def _share_a_machine(context: CheckContext, hosts: list[Host], kind: type[Facts]) -> bool:
    """Whether mpirun cannot tell two of ``hosts`` apart, which is then noted."""
    found = machines(context.view((NetFacts, SshFacts)))
    if len({found[host.name] for host in hosts}) == len(hosts):
        return False
    why = "hosts that are one machine, which mpirun cannot tell apart"
    context.mark_missing((kind,), Outcome.SKIPPED, why)
    return True


def _facts(
    engine: Engine, host: Host, answer: EngineAnswer, world: int, timeout: float
) -> CollFacts:
    planned = answer.planned.get(host.name, ())
    ranks = reports(answer.ranks.get(host.name), planned)
    groups = [said["group"] for rank in ranks for said in rank.said if "group" in said]
    backend = next((str(group.get("backend")) for group in groups), "")
    return engine.kind(
        launcher=engine.launcher.value,
        backend=backend or ("mpi" if answer.launcher == LauncherName.MPI else "gloo"),
        world_size=world,
        planned=planned,
        ranks=ranks,
        timeout_seconds=timeout,
        engine_said=answer.said,
    )


def mpirun(context: CheckContext, jobs: int) -> Iterator[str]:
    """Start one rank a host by a plain mpirun on the first; yields each host when it is over."""
    hosts = able(context, MpiSshFacts, _without_mpi)[:MOST_HOSTS]
    names = _names(context, hosts)
    if len(hosts) < 2 or names is None:
        why = "no ssh from the first host to all others" if len(hosts) > 1 else "one host only"
        context.mark_missing((MpiSshFacts,), Outcome.SKIPPED, why)
        return
    if _share_a_machine(context, hosts, MpiSshFacts):
        return
    seconds = job_seconds(context, MpiSshFacts, jobs, MPIRUN_SECONDS)
    if not seconds:
        return
    first = hosts[0]
    evidence = context.hosts[first.name]
    try:
        answer = context.ask(first, "mpi.ssh", seconds, _words(context, first, names))
    except NodeError as error:
        evidence.mark_missing(MpiSshFacts, Outcome.COULD_NOT_RUN, error.message)
    else:
        add_answer(evidence, MpiSshFacts, {**answer, "hosts": [str(host.name) for host in hosts]})
    for host in hosts[1:]:
        context.hosts[host.name].add_facts(MpiSshFacts())
    yield from (host.name for host in hosts)


def _names(context: CheckContext, hosts: list[Host]) -> list[str] | None:
    """Return what the first host's ssh calls the hosts; None unless it reaches all of them."""
    facts = context.hosts[hosts[0].name].known.get(BetweenFacts) if hosts else None
    if not isinstance(facts, BetweenFacts):
        return None
    reached = {login.target: login.name for login in facts.logins if login.ok}
    own = context.links[hosts[0].name].hello.hostname
    names = [own, *(reached.get(str(host.name), "") for host in hosts[1:])]
    return names if all(names) else None


def _words(context: CheckContext, first: Host, names: list[str]) -> dict[str, Any]:
    mpi = context.hosts[first.name].known[MpiFacts]
    assert isinstance(mpi, MpiFacts)
    chosen = endpoints(context.view((NetFacts, SshFacts))).values()
    return {
        "hosts": names,
        "family": mpi.family,
        "networks": list(dict.fromkeys(each.network for each in chosen if each.network)),
        "python": context.links[first.name].python,
        "setup": first.setup,
    }
