"""Short jobs: collectives by torch, Horovod and mpirun, started as ``run`` starts them, and a plain mpirun over ssh."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from distconsole.checks.facts.evidence import LOST, HostEvidence, Outcome
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.jobs import (
    CollFacts,
    HorovodCollFacts,
    MpiCollFacts,
    MpiSshFacts,
    RankReport,
)
from distconsole.checks.facts.network import BetweenFacts, NetFacts, PortFacts
from distconsole.checks.facts.node import Facts, HorovodFacts, MpiFacts, SshFacts, TorchFacts
from distconsole.checks.gather.addresses import endpoints, machines
from distconsole.checks.gather.collective import (
    TIMED,
    Sweep,
    able,
    job_seconds,
    join_seconds,
    slots_of,
    work_for,
)
from distconsole.checks.gather.context import CheckContext, add_answer
from distconsole.checks.gather.local_facts import serving
from distconsole.checks.gather.reaching import find_dead_links, leave_out
from distconsole.checks.gather.transports import MPI_SAYS_ITS_WAYS
from distconsole.errors import ConsoleError, NodeError, PlanError
from distconsole.model.cluster import Host
from distconsole.model.findings import HostCure
from distconsole.model.requests import LauncherName
from distconsole.session import Session

MPIRUN_SECONDS = 15.0
MOST_HOSTS = 64
MEETING = ("MASTER_ADDR", "MASTER_PORT")
"""Where the user's ranks meet: others meet where ``run`` has them."""


@dataclass(frozen=True, slots=True)
class EngineJob:
    """What to run.

    Attributes:
        engine: The ranks' engine: ``gloo``, ``nccl``, ``horovod`` or ``mpi``.
        hosts: In the order of ranks; their ``slots`` say how many.
        work: The ranks' task (``collectives.worker`` of the agent).
        seconds: The deadline, after which the rest is killed.
        changes: By host the changes to the environment of its ranks.
        without: Variables that ``run`` sets by itself and this job shall not get, as if it were
            started by hand.
        given_up: Whether its result is no longer awaited.
        nic: The interface for every host, if one was asked for.
    """

    launcher: LauncherName
    engine: str
    hosts: tuple[Host, ...]
    work: Mapping[str, Any]
    seconds: float
    env: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, HostCure] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    given_up: Callable[[], bool] = lambda: False
    nic: str | None = None

    @property
    def world_size(self) -> int:
        return sum(host.slots or 1 for host in self.hosts)


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What came of it: the ``launcher`` that started it, each host's ``ranks``, the engine's last words."""

    launcher: str
    ranks: Mapping[str, tuple[RankReport, ...]]
    said: tuple[str, ...] = ()


StartJob = Callable[[Session, EngineJob], EngineAnswer]
"""Starts a job, waits for its end and leaves nothing of it on the hosts.

Raises PlanError if ``run`` would refuse it, ConsoleError if it cannot be started.
"""


@dataclass(frozen=True, slots=True)
class JobEngine:
    """An engine that a job can be started by.

    Attributes:
        stage: The check whose stage it is.
        kind: The facts that it gives.
        lacking: Why a host cannot take part; empty if it can.
        everywhere: Whether all hosts must have it, or the job goes on without those that do not.
        mpirun: Whether mpirun starts the ranks.
        env: Variables that choose the engine's transport.
        timed: Elements of the timed all-reduces without a sweep.
    """

    launcher: LauncherName
    name: str
    stage: str
    kind: type[CollFacts]
    lacking: Callable[[HostEvidence], str]
    everywhere: bool = True
    mpirun: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    timed: tuple[int, ...] = (1 << 20,)  # short ones would have to wait for Horovod's cycles


def _without_torch(evidence: HostEvidence) -> str:
    torch = evidence.find(TorchFacts)
    return "" if torch and torch.present and not torch.error else "no torch there"


def _without_horovod(evidence: HostEvidence) -> str:
    facts = evidence.find(HorovodFacts)
    if facts is None or not facts.present:
        return "no Horovod"
    if facts.torch_library is None or facts.load_error:
        return "a Horovod that does not work with the torch there"
    return ""


def _without_mpi(evidence: HostEvidence) -> str:
    facts = evidence.find(MpiFacts)
    return "" if facts and facts.present else "no mpirun"


TORCH = JobEngine(
    LauncherName.TORCH,
    "torch",
    "coll.init",
    CollFacts,
    _without_torch,
    everywhere=False,
    timed=TIMED,
)
HOROVOD = JobEngine(
    LauncherName.HOROVOD, "Horovod", "horovod.init", HorovodCollFacts, _without_horovod
)
MPI = JobEngine(
    LauncherName.MPI,
    "mpirun",
    "mpi.launch",
    MpiCollFacts,
    _without_mpi,
    mpirun=True,
    env=MPI_SAYS_ITS_WAYS,
)
ENGINES = (TORCH, HOROVOD, MPI)


def run_engine(
    context: CheckContext, engine: JobEngine, start: StartJob, sweep: Sweep | None, jobs: int
) -> Iterator[str]:
    """Run the job by ``engine``, the first of ``jobs``; yields each host when it is over."""
    hosts = _participants(context, engine)
    if not hosts:
        return
    seconds = job_seconds(context, engine.kind, jobs)
    if not seconds:
        return
    timeout = join_seconds(context, seconds)
    job = _make_job(context, engine, hosts, sweep, seconds, timeout)
    names = [host.name for host in hosts]
    try:
        answer = start(context.session, job)
    except PlanError as error:
        for name in names:
            refused = engine.kind(
                launcher=engine.launcher.value, refused=error.message, refused_hint=error.hint
            )
            context.hosts[name].add_facts(refused)
    except ConsoleError as error:
        context.mark_missing((engine.kind,), Outcome.COULD_NOT_RUN, error.message)
    else:
        for name in names:
            ranks = answer.ranks.get(name, ())
            groups = [said["group"] for rank in ranks for said in rank.said if "group" in said]
            carrier = {"mpi": "mpi", "horovod": "gloo"}.get(answer.launcher, job.engine)
            facts = engine.kind(
                launcher=engine.launcher.value,
                backend=next((str(group.get("backend")) for group in groups), carrier),
                world_size=job.world_size,
                planned=tuple(rank.rank for rank in ranks),
                ranks=ranks,
                timeout_seconds=timeout,
                engine_said=answer.said,
            )
            context.hosts[name].add_facts(facts)
    if lost := find_dead_links(context, names):
        why = f"{', '.join(lost)} stopped answering while it went on {LOST}"
        leave_out(context, engine.kind, names, why)  # no fault of the others
    yield from names


def _make_job(
    context: CheckContext,
    engine: JobEngine,
    hosts: list[Host],
    sweep: Sweep | None,
    seconds: float,
    timeout: float,
) -> EngineJob:
    launch = context.launch
    placed = tuple(
        replace(host, slots=slots_of(context, host), python=python_of(context, host))
        for host in hosts
    )
    world = sum(host.slots or 1 for host in placed)
    env = env_of(context)
    fixed = _port_of_launch(context, hosts[0])
    if fixed is not None and engine is TORCH:
        env["MASTER_PORT"] = str(fixed)

    def given_up() -> bool:
        dead = find_dead_links(context, [host.name for host in hosts])
        return context.given_up.is_set() or bool(dead)

    return EngineJob(
        engine.launcher,
        _backend(context, placed) if engine is TORCH else engine.launcher.value,
        placed,
        {
            **work_for(context.request.level, sweep, seconds, timeout, world, engine.timed),
            **({"preloaded": context.torch_token} if serving(context) else {}),
        },
        seconds,
        {**env, **engine.env, "HOROVOD_GLOO_TIMEOUT_SECONDS": str(int(timeout))},
        given_up=given_up,
        nic=launch.nic if launch is not None else None,
    )


def env_of(context: CheckContext) -> dict[str, str]:
    """Return the variables that the user of the launch gives, but for where its own ranks meet."""
    env = context.launch.env if context.launch is not None else {}
    return {name: value for name, value in env.items() if name not in MEETING}


def _backend(context: CheckContext, hosts: tuple[Host, ...]) -> str:
    """Return what torch's ranks talk by: NCCL where each has a GPU of its own, unless the launch says Gloo."""
    view = context.view()
    gpus, torches = view.of(GpuFacts), view.of(TorchFacts)
    fixed = context.launch.traits.backend if context.launch is not None else ""
    nccl = fixed != "gloo" and all(
        host.name in gpus
        and gpus[host.name].count >= (host.slots or 1)
        and (torches[host.name].cuda or torches[host.name].hip)
        for host in hosts
    )
    return "nccl" if nccl else "gloo"


def _port_of_launch(context: CheckContext, host: Host) -> int | None:
    """Return the port that the launch fixes, unless it is held there: that is another finding."""
    launch = context.launch
    if launch is None or launch.port is None:
        return None
    facts = context.view((PortFacts,)).of(PortFacts).get(host.name)
    port = facts.ports.get(str(launch.port)) if facts is not None else None
    return launch.port if port is not None and port.free else None


def python_of(context: CheckContext, host: Host) -> str | None:
    """Return the interpreter that the launch names for a host's ranks, else the host's own."""
    planned = context.planned(host)
    return host.python if planned is None else planned.python


def _participants(context: CheckContext, engine: JobEngine) -> list[Host]:
    """Return the hosts of the job; none, with the reason noted, if it cannot run."""
    reached = context.reached()
    lacking = {host.name: engine.lacking(context.hosts[host.name]) for host in reached}
    without = [name for name, why in lacking.items() if why]
    if without and engine.everywhere:
        for host in reached:
            why = lacking[host.name] or f"{engine.name} is not on every host (not on {without[0]})"
            context.hosts[host.name].mark_missing(engine.kind, Outcome.SKIPPED, why)
        return []
    hosts = able(context, engine.kind, engine.lacking)
    if engine.mpirun and _share_a_machine(context, hosts, engine.kind):
        return []
    if not hosts:
        context.mark_missing((engine.kind,), Outcome.COULD_NOT_RUN, "no host can take part")
    return hosts


def _share_a_machine(context: CheckContext, hosts: list[Host], kind: type[Facts]) -> bool:
    found = machines(context.view((NetFacts, SshFacts)))
    if len({found[host.name] for host in hosts}) == len(hosts):
        return False
    why = "hosts that are one machine, which mpirun cannot tell apart"
    context.mark_missing((kind,), Outcome.SKIPPED, why)
    return True


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
        mpi = context.hosts[first.name].find(MpiFacts)
        chosen = endpoints(context.view((NetFacts, SshFacts))).values()
        answer = context.ask(
            first,
            "mpi.ssh",
            seconds,
            {
                "hosts": names,
                "family": mpi.family if mpi else "",
                "networks": list(dict.fromkeys(each.network for each in chosen if each.network)),
                "python": context.links[first.name].python,
                "setup": first.setup,
            },
        )
    except NodeError as error:
        evidence.mark_missing(MpiSshFacts, Outcome.COULD_NOT_RUN, error.message)
    else:
        add_answer(evidence, MpiSshFacts, {**answer, "hosts": [str(host.name) for host in hosts]})
    for host in hosts[1:]:
        context.hosts[host.name].add_facts(MpiSshFacts())
    yield from (host.name for host in hosts)


def _names(context: CheckContext, hosts: list[Host]) -> list[str] | None:
    """Return the names of the hosts for the first host's ssh; None unless it reaches all of them."""
    facts = context.hosts[hosts[0].name].find(BetweenFacts) if hosts else None
    if facts is None:
        return None
    reached = {login.target: login.name for login in facts.logins if login.ok}
    own = context.links[hosts[0].name].hello.hostname
    names = [own, *(reached.get(str(host.name), "") for host in hosts[1:])]
    return names if all(names) else None
