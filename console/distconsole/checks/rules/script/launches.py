"""Checks of group ``script`` on what surrounds it: what ``run`` refuses, folder, interpreter, ranks, meeting."""

from __future__ import annotations

import re

from distconsole.checks.engine.rule import (
    HERE,
    HostView,
    NotApplicable,
    RuleResults,
    fail,
    hint,
    host_rule,
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
from distconsole.checks.rules.system.folders import TOLD, lies_on_stuck
from distconsole.checks.rules.wording import name_hosts
from distconsole.model.requests import Level

LAUNCHER_OF = {"horovod": ("horovod", "Horovod"), "mpi4py": ("mpi", "mpi4py")}
"""By module the launcher that it needs, and its name."""


def unless_launch(host: HostView) -> NotApplicable | None:
    """Leave out all hosts where there is no launch to judge."""
    return None if host.view.launch is not None else NotApplicable("no script was given")


def get_launch(view: View) -> Launch:
    """Return the launch of a check that has one."""
    assert view.launch is not None
    return view.launch


def unless_brought(host: HostView) -> NotApplicable | None:
    """Leave out all hosts where the code is not there yet: --sync brings it with the launch."""
    launch = host.view.launch
    if launch is None or not launch.brought:
        return unless_launch(host)
    return NotApplicable(f"--sync brings {launch.brought}")


@rule("script.launch", "script", Level.QUICK, SshFacts)
@hint("The finding has what `run` says.")
def _launch(view: View) -> RuleResults:
    """What `run` would refuse: no such interface, more ranks than slots, hosts without the launcher."""
    launch = view.launch
    unreached = tuple(name for name, each in view.of(SshFacts).items() if each.error_kind)
    yield NotApplicable(UNREACHED, unreached, Outcome.COULD_NOT_RUN)
    if launch is not None and launch.refused:
        yield fail(
            f"distconsole run would refuse it: {launch.refused}",
            [
                each
                for each in view.everyone
                if re.search(rf"\b{re.escape(each)}\b", launch.refused)
            ],
            seen="what run --dry-run says",
            expected="a launch that can be placed on these hosts",
            hint=launch.refused_hint or "see: distconsole run --dry-run",
        )


@host_rule("script.launcher", "script", Level.QUICK, ScriptFacts, unless=unless_launch)
@hint("--launcher horovod, --launcher mpi.")
def _launcher(host: HostView) -> RuleResults:
    """A script that lies on the hosts alone, so that `auto` cannot see that it needs Horovod or MPI.

    ``auto`` reads the script here; where it lies on the hosts alone they know better.
    """
    launch, modules = get_launch(host.view), host.of(ScriptFacts).modules or {}
    found = [LAUNCHER_OF[module] for module in LAUNCHER_OF if module in modules]
    if found and launch.auto and not launch.needs.readable:
        launcher, name = found[0]
        yield warn(
            f"{launch.name} imports {name}, and would be started without it: it cannot be read here",
            seen=f"the launcher: {launch.launcher}, because {launch.why}",
            expected=f"--launcher {launcher}",
            hint=f"distconsole run --launcher {launcher} …",
        )


@host_rule("script.interpreter", "script", Level.QUICK, ScriptFacts, unless=unless_launch)
@hint("--python PATH, --setup 'source …/activate'.")
def _interpreter(host: HostView) -> RuleResults:
    """The interpreter that the command names is not there on some host, or does not start."""
    python = host.of(ScriptFacts).python
    if python is not None and python.error:
        planned = get_launch(host.view).hosts.get(str(host))
        yield fail(
            f"{planned.python if planned else 'python'} does not start on {HERE}",
            seen=python.error,
            expected="the interpreter of the ranks, at the same path on every host",
            hint=f"on {HERE}: command -v python3; --python PATH names the right one, --setup what "
            "brings it into PATH",
        )


@host_rule("script.workdir", "script", Level.QUICK, ScriptFacts, OsFacts, unless=unless_brought)
@hint("--sync, --workdir DIR, or make it.")
def _workdir(host: HostView) -> RuleResults:
    """A host without the folder that the ranks start in, or one on a filesystem that does not answer."""
    workdir, found = get_launch(host.view).workdir, host.of(ScriptFacts).workdir
    wrong = _no_folder(found)
    if found.late and lies_on_stuck(workdir, host.of(OsFacts)):
        yield NotApplicable(TOLD)
    elif wrong:
        yield fail(
            f"the working folder {workdir} {wrong} on {HERE}",
            seen=f"stat: {found.error or found.kind}",
            expected="a folder that the user can enter, on every host: the ranks start there",
            hint=f"--sync brings the code, --workdir names another folder; or on {HERE}: "
            f"mkdir -p {workdir}",
        )


def _no_folder(found: Found) -> str:
    if found.late:
        return "does not answer"
    if found.error and found.code in ("ENOENT", ""):
        return "is not there"
    if found.error:
        return f"cannot be seen ({found.error})"
    if found.kind != "folder":
        return "is no folder"
    return "" if found.readable else "cannot be entered"


@host_rule("script.rendezvous", "script", Level.QUICK, ScriptFacts, NetFacts, SshFacts)
@hint("The address of the first host.")
def _rendezvous(host: HostView) -> RuleResults:
    """MASTER_ADDR, --master_addr, --rdzv_endpoint or tcp:// that is not the first host: everybody waits.

    Rank 0 listens where it is told to, and must have that address.
    """
    launch, meant = host.view.launch, host.of(ScriptFacts).address
    if launch is None or not launch.address or not launch.hosts:
        yield NotApplicable("the launch names no address to meet at")
        return
    first, planned = next(iter(launch.hosts.items()))
    hint = f"the address of {first}, where rank 0 is: {planned.address or first}; distconsole run sets it"
    if meant is not None and meant.error:
        yield fail(
            f"{launch.address}, where the ranks are to meet, has no address on {HERE}",
            seen=meant.error,
            expected="a name that every host resolves, or an address",
            hint=hint,
        )
    elif meant is not None and meant.addresses and len(set(machines(host.view).values())) > 1:
        owners = [
            name
            for name, net in host.view.of(NetFacts).items()
            if {each.address for each in net.addresses} & set(meant.addresses)
        ]
        loops = any(each.startswith("127.") or each == "::1" for each in meant.addresses)
        others = name_hosts([name for name in owners if name != first] or ["no host here"])
        if loops or first not in owners:
            yield fail(
                f"{launch.address}, where the ranks are to meet, "
                + ("means each host itself" if loops else f"is {others}, not {first} with rank 0"),
                seen=f"getaddrinfo({launch.address!r}): {', '.join(meant.addresses)}; rank 0 is on "
                f"{first}, {planned.address or 'the first host'}",
                expected=f"an address of {first}",
                hint=hint,
            )


@host_rule("script.ranks", "script", Level.QUICK, OsFacts, GpuFacts, unless=unless_launch)
@hint("--nproc gpu.")
def _ranks(host: HostView) -> RuleResults:
    """More ranks on a host than GPUs, by a script that uses NCCL.

    More ranks than GPUs: `Duplicate GPU detected`, `invalid device ordinal`.
    """
    launch, gpus, cpus = get_launch(host.view), host.of(GpuFacts).count, host.of(OsFacts).cpus
    planned = launch.hosts.get(str(host))
    if planned is None:
        return
    count, have = len(planned.ranks), gpus
    if (chosen := planned.env.get("CUDA_VISIBLE_DEVICES")) is not None:
        have = min(gpus, sum(word.strip() not in ("", "-1") for word in chosen.split(",")))
    if "nccl" in launch.needs.backend and count > have:
        yield fail(
            f"{_count(count, 'rank')} by NCCL on {_count(have, 'GPU')} of {HERE}",
            seen=f"init_process_group({launch.needs.backend!r}) in {launch.name}; NVML counts {gpus}",
            expected="a GPU for each rank, or another backend",
            hint="--nproc gpu" if have else "a script that falls back on gloo, or hosts with GPUs",
        )
    elif have and count > have:
        yield warn(
            f"{count} ranks share {_count(have, 'GPU')} of {HERE}",
            expected="a rank for each GPU",
            hint="--nproc gpu",
        )
    elif not have and cpus and count > cpus:
        yield info(f"{count} ranks share {_count(cpus, 'processor')} of {HERE}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


RULES = (_launch, _launcher, _interpreter, _workdir, _rendezvous, _ranks)
