"""Checks of group ``script`` on what surrounds it: what ``run`` refuses, folder, interpreter, ranks, meeting."""

from __future__ import annotations

import re

from distconsole.checks.engine.rule import (
    HERE,
    NotApplicable,
    RuleResults,
    fail,
    hint,
    info,
    rule,
    warn,
)
from distconsole.checks.engine.target import Launch
from distconsole.checks.facts.evidence import UNREACHED, Outcome, View
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.network import NetFacts
from distconsole.checks.facts.node import OsFacts, SshFacts
from distconsole.checks.facts.script import Found, ScriptFacts
from distconsole.checks.gather.addresses import machines
from distconsole.checks.rules.system.stuck import TOLD, lies_below, stuck_points
from distconsole.checks.rules.wording import name_hosts
from distconsole.model.requests import Level

ENGINE_MODULES = (("horovod", "Horovod"), ("mpi4py", "mpi4py"))
LAUNCHER_OF = {"horovod": "horovod", "mpi4py": "mpi"}


@rule("script.launch", "script", Level.QUICK, SshFacts)
@hint("The finding has what `run` says.")
def _launch(view: View) -> RuleResults:
    """What `run` would refuse: no such interface, more ranks than slots, hosts without the launcher.

    What ``run`` would answer with an error.
    """
    launch = view.launch
    unreached = tuple(name for name, each in view.of(SshFacts).items() if each.error_kind)
    yield NotApplicable(UNREACHED, unreached, Outcome.COULD_NOT_RUN)
    if launch is None or not launch.refused:
        return
    meant = [
        name for name in view.everyone if re.search(rf"\b{re.escape(name)}\b", launch.refused)
    ]
    yield fail(
        f"distconsole run would refuse it: {launch.refused}",
        meant,
        seen="what run --dry-run says",
        expected="a launch that can be placed on these hosts",
        hint=launch.refused_hint or "see: distconsole run --dry-run",
    )


@rule("script.launcher", "script", Level.QUICK, ScriptFacts)
@hint("--launcher horovod, --launcher mpi.")
def _launcher(view: View) -> RuleResults:
    """A script that lies on the hosts alone, so that `auto` cannot see that it needs Horovod or MPI.

    ``auto`` reads the script here; where it lies on the hosts alone they know better.
    """
    launch = view.launch
    if launch is None or launch.needs.readable or not launch.auto:
        return
    for module, name in ENGINE_MODULES:
        hosts = [
            host
            for host, facts in view.of(ScriptFacts).items()
            if facts.modules is not None and module in facts.modules
        ]
        if hosts:
            yield warn(
                f"{launch.name} imports {name}, and would be started without it: it cannot be read here",
                hosts,
                seen=f"the launcher: {launch.launcher}, because {launch.why}",
                expected=f"--launcher {LAUNCHER_OF[module]}",
                hint=f"distconsole run --launcher {LAUNCHER_OF[module]} …",
            )
            return


@rule("script.interpreter", "script", Level.QUICK, ScriptFacts)
@hint("--python PATH, --setup 'source …/activate'.")
def _interpreter(view: View) -> RuleResults:
    """The interpreter that the command names is not there on some host, or does not start."""
    launch = view.launch
    for name, facts in view.of(ScriptFacts).items():
        if facts.python is not None and facts.python.error and launch is not None:
            python = launch.hosts[name].python if name in launch.hosts else "python"
            yield fail(
                f"{python} does not start on {HERE}",
                (name,),
                seen=facts.python.error,
                expected="the interpreter of the ranks, at the same path on every host",
                hint=f"on {HERE}: command -v python3; --python PATH names the right one, --setup what "
                "brings it into PATH",
            )


@rule("script.workdir", "script", Level.QUICK, ScriptFacts, OsFacts)
@hint("--sync, --workdir DIR, or make it.")
def _workdir(view: View) -> RuleResults:
    """A host without the folder that the ranks start in, or one on a filesystem that does not answer."""
    launch = view.launch
    if launch is None:
        return
    facts = view.of(ScriptFacts)
    if launch.brought:
        yield NotApplicable(f"--sync brings {launch.brought}", tuple(facts))
        return
    stuck = stuck_points(view)
    for name, found in facts.items():
        wrong = _no_folder(found.workdir)
        if found.workdir.late and lies_below(launch.workdir, stuck.get(name, ())):
            yield NotApplicable(TOLD, (name,))
        elif wrong:
            yield fail(
                f"the working folder {launch.workdir} {wrong} on {HERE}",
                (name,),
                seen=f"stat: {found.workdir.error or found.workdir.kind}",
                expected="a folder that the user can enter, on every host: the ranks start there",
                hint=f"--sync brings the code, --workdir names another folder; or on {HERE}: "
                f"mkdir -p {launch.workdir}",
            )


def _no_folder(found: Found) -> str:
    if found.late:
        return "does not answer"
    if found.error:
        return (
            "is not there" if found.code in ("ENOENT", "") else f"cannot be seen ({found.error})"
        )
    if found.kind != "folder":
        return "is no folder"
    return "" if found.readable else "cannot be entered"


@rule("script.rendezvous", "script", Level.QUICK, ScriptFacts, NetFacts, SshFacts)
@hint("The address of the first host.")
def _rendezvous(view: View) -> RuleResults:
    """MASTER_ADDR, --master_addr, --rdzv_endpoint or tcp:// that is not the first host: everybody waits.

    Rank 0 listens where it is told to, and must have that address.
    """
    launch, facts, nets = view.launch, view.of(ScriptFacts), view.of(NetFacts)
    if launch is None or not launch.address or not launch.hosts:
        yield NotApplicable("the launch names no address to meet at", tuple(facts))
        return
    first = next(iter(launch.hosts))
    planned = launch.hosts[first]
    hint = f"the address of {first}, where rank 0 is: {planned.address or first}; distconsole run sets it"
    unknown = [
        name for name, found in facts.items() if found.address is not None and found.address.error
    ]
    if unknown:
        yield fail(
            f"{launch.address}, where the ranks are to meet, has no address on {name_hosts(unknown)}",
            unknown,
            seen="\n".join(f"{name}: {_format_script(facts[name])}" for name in unknown[:8]),
            expected="a name that every host resolves, or an address",
            hint=hint,
        )
        return
    alone = len(set(machines(view).values())) < 2
    for name, found in facts.items():
        meant = found.address.addresses if found.address is not None else ()
        owners = [
            host for host, net in nets.items() if {a.address for a in net.addresses} & set(meant)
        ]
        loops = [address for address in meant if address.startswith("127.") or address == "::1"]
        if not meant or alone or (first in owners and not loops):
            continue
        whose = f"is {name_hosts([host for host in owners if host != first] or ['no host here'])}"
        yield fail(
            f"{launch.address}, where the ranks are to meet, "
            + ("means each host itself" if loops else f"{whose}, not {first} with rank 0"),
            (name,),
            seen=f"getaddrinfo({launch.address!r}): {', '.join(meant)}; rank 0 is on {first}, "
            f"{planned.address or 'the first host'}",
            expected=f"an address of {first}",
            hint=hint,
        )


def _format_script(facts: ScriptFacts) -> str:
    return facts.address.error if facts.address is not None else ""


@rule("script.ranks", "script", Level.QUICK, OsFacts, GpuFacts)
@hint("--nproc gpu.")
def _ranks(view: View) -> RuleResults:
    """More ranks on a host than GPUs, by a script that uses NCCL.

    More ranks than GPUs: `Duplicate GPU detected`, `invalid device ordinal`.
    """
    launch, gpus = view.launch, view.of(GpuFacts)
    if launch is None:
        return
    for name, system in view.of(OsFacts).items():
        planned = launch.hosts.get(name)
        count = len(planned.ranks) if planned is not None else 0
        have = _visible(launch, name, gpus[name].count)
        nccl = "nccl" in launch.needs.backend
        if nccl and count > have:
            yield fail(
                f"{count} {_many('rank', count)} by NCCL on {have} {_many('GPU', have)} of {HERE}",
                (name,),
                seen=f"init_process_group({launch.needs.backend!r}) in {launch.name}; NVML counts "
                f"{gpus[name].count}",
                expected="a GPU for each rank, or another backend",
                hint="--nproc gpu"
                if have
                else "a script that falls back on gloo, or hosts with GPUs",
            )
        elif have and count > have:
            yield warn(
                f"{count} ranks share {have} {_many('GPU', have)} of {HERE}",
                (name,),
                expected="a rank for each GPU",
                hint="--nproc gpu",
            )
        elif not have and system.cpus and count > system.cpus:
            yield info(
                f"{count} ranks share {system.cpus} {_many('processor', system.cpus)} of {HERE}",
                (name,),
            )


def _many(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"


def _visible(launch: Launch, name: str, count: int) -> int:
    """Return how many GPUs a rank sees."""
    planned = launch.hosts.get(name)
    chosen = planned.env.get("CUDA_VISIBLE_DEVICES") if planned is not None else None
    if chosen is None:
        return count
    listed = [word for word in chosen.split(",") if word.strip() not in ("", "-1")]
    return min(count, len(listed))


RULES = (_launch, _launcher, _interpreter, _workdir, _rendezvous, _ranks)
