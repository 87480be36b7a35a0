"""The collective job once more by the engines that all hosts have: Horovod, and MPI by mpirun.

It decides who takes part and notes what came of it; the job is started by what the check was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from distconsole.checks.engine.losses import broken_links, leave_out_for
from distconsole.checks.facts.evidence import HostEvidence, Outcome
from distconsole.checks.facts.jobs import (
    CollFacts,
    HorovodCollFacts,
    HorovodMpiFacts,
    MpiCollFacts,
)
from distconsole.checks.facts.network import NetFacts
from distconsole.checks.facts.node import HorovodFacts, MpiFacts, SshFacts
from distconsole.checks.gather.addresses import machines
from distconsole.checks.gather.collective import (
    Sweep,
    able,
    job_seconds,
    join_seconds,
    reports,
    slots_of,
    work_for,
)
from distconsole.checks.gather.engine_job import EngineAnswer, EngineJob, StartJob
from distconsole.checks.gather.nodes import Gathering
from distconsole.errors import ConsoleError, PlanError
from distconsole.model.cluster import Host
from distconsole.model.requests import LauncherName, Level

LEAST_SECONDS = 3.0
TIMED = (1 << 20,)
"""Elements of the all-reduce that is timed: short ones would have to wait for Horovod's cycles."""


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
    gathering: Gathering,
    engine: Engine,
    start: StartJob,
    sweep: Sweep | None,
    jobs: int,
) -> Iterator[str]:
    """Run the job by ``engine``, the first of ``jobs``; yields each host when it is over."""
    hosts = _everywhere(gathering, engine)
    if not hosts:
        return
    seconds = job_seconds(gathering, jobs)
    if seconds < LEAST_SECONDS:
        gathering.lack((engine.kind,), Outcome.TIMED_OUT, "the budget was over")
        return
    placed = tuple(
        replace(host, slots=slots_of(gathering, host), python=python_of(gathering, host))
        for host in hosts
    )
    world = sum(host.slots or 1 for host in placed)
    timeout = join_seconds(gathering, seconds)
    level = Level.STANDARD if engine.brief else gathering.request.level
    work = work_for(level, sweep, seconds, timeout, world, TIMED)
    launch = gathering.launch
    own = dict(launch.env) if launch is not None else {}
    env = {**own, **engine.env, "HOROVOD_GLOO_TIMEOUT_SECONDS": str(int(timeout))}
    nic = launch.nic if launch is not None else None
    names = [host.name for host in hosts]

    def given_up() -> bool:
        return gathering.given_up.is_set() or bool(broken_links(gathering, names))

    job = EngineJob(engine.launcher, placed, work, seconds, env, given_up=given_up, nic=nic)
    try:
        answer = start(gathering.session, job)
    except PlanError as error:
        for host in hosts:
            refused = engine.kind(
                launcher=engine.launcher.value, refused=error.message, refused_hint=error.hint
            )
            gathering.hosts[host.name].learn(refused)
    except ConsoleError as error:
        gathering.lack((engine.kind,), Outcome.COULD_NOT_RUN, error.message)
    else:
        for host in hosts:
            facts = _facts(engine, host, answer, world, timeout)
            gathering.hosts[host.name].learn(facts)
    if lost := broken_links(gathering, names):
        leave_out_for(gathering, engine.kind, names, lost)
    yield from (host.name for host in hosts)


def python_of(gathering: Gathering, host: Host) -> str | None:
    """Return the interpreter that the launch names for a host's ranks, else what it has itself."""
    launch = gathering.launch
    planned = launch.hosts.get(host.name) if launch is not None else None
    return host.python if planned is None else planned.python


def _everywhere(gathering: Gathering, engine: Engine) -> list[Host]:
    """Return the hosts of the job; none, with the reason noted, unless all have the engine."""
    reached = gathering.reached()
    lacking = {host.name: engine.lacking(gathering.hosts[host.name]) for host in reached}
    without = [name for name, why in lacking.items() if why]
    for host in reached if without else ():
        why = lacking[host.name] or f"{engine.name} is not on every host (not on {without[0]})"
        gathering.hosts[host.name].lack(engine.kind, Outcome.SKIPPED, why)
    if without:
        return []
    hosts = able(gathering, engine.kind, engine.lacking)
    found = machines(gathering.view((NetFacts, SshFacts)))
    if engine.mpirun and len({found[host.name] for host in hosts}) < len(hosts):
        why = "hosts that are one machine, which mpirun cannot tell apart"
        gathering.lack((engine.kind,), Outcome.SKIPPED, why)
        return []
    return hosts


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
